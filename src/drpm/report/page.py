"""Self-contained HTML pages of one or several finished runs.

The page of a run shows the figures of :mod:`drpm.report.plots`, training curves, the clusters of a
clustering and, from ``result.json``, ``metrics``, ``method`` (the name of their column),
``comparison`` (metrics of other methods), ``names`` (headings of metrics), ``tables`` (title -> row
-> column -> metric), ``title``, ``choice`` and ``limits`` (with a ``sentence`` each), ``about`` (a
paragraph), ``data`` (a table), ``command`` and ``stacked`` (the seeds trained together).
"""

import base64
import hashlib
import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, UndefinedError
from numpy.typing import NDArray
from PIL import Image

from drpm.report import plots
from drpm.report.plots import Arrays, FigureSpec, Series, format_value, names_of
from drpm.training.checkpoint import write_atomic
from drpm.training.config import flatten
from drpm.training.errors import RunError
from drpm.training.runs import ARRAYS, FIGURES, LABELS, PAGE, RESULT, RunFolder

# Raised for damaged files.
_DAMAGE: Final = (AttributeError, IndexError, KeyError, TypeError, UndefinedError, ValueError)
_NOT_METRICS: Final = ["epoch", "step", "wall_time"]
_NOT_SETTINGS: Final = ("seed", "device", "fingerprint")
_FOUND: Final = 6  # figures at the top of the page
_PICTURES: Final = 6_000_000  # total bytes of the pictures of all runs
_WIDTH: Final = 1000  # larger side of the map, in its own units
_COLUMNS: Final = 12  # of a table, shown for a point
_APART: Final = 3  # columns that describe a cluster


def write_page(folder: Path | str, title: str | None = None) -> Path:
    """Write the page of a finished run, ``index.html`` in its folder, and its figures.

    Args:
        folder: The folder of the run.
        title: The title if the result has none; by default the name of the folder.

    Returns:
        The path of the page.
    """
    run = RunFolder.open_finished(folder)
    with run.lock():
        try:
            arrays = plots.read_arrays(run.path)
            specs = plots.figure_specs(arrays)
            if curves := training_curves(run.metrics()):
                about = f"Training curves of {', '.join(curves)}."
                specs.append(FigureSpec("curves", "curves", curves, (), (), "Training", about))
            figures = [(spec, _draw_png(spec)) for spec in specs]
            clustering = describe_clusters(run.path, arrays)
            files = {f"{spec.name}.png": content for spec, content in figures}
            if clustering:
                files["latent.svg"] = _render("map.svg", **clustering).encode()
            page = _render_run(run, title or run.path.resolve().name, clustering, figures=figures)
        except _DAMAGE as error:
            raise RunError(
                f"The run {folder} has a damaged {RESULT}, {ARRAYS} or {LABELS}: {error}"
            ) from error
        for name, content in files.items():
            run.write_atomic(f"{FIGURES}/{name}", content)
        return run.write_atomic(PAGE, page)


def training_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Series]]:
    """The metrics of ``metrics.jsonl`` over epochs or steps, by stage."""
    frame = pd.DataFrame([{"stage": "", **record} for record in records])
    curves = {}
    for stage, rows in frame.groupby("stage", sort=False) if records else ():
        # Drop means over few steps, at checkpoints or interruptions, which look like dips.
        if "loss" in rows:
            ends = rows.loc[rows["loss"].notna(), "step"]
            lengths = ends.diff().fillna(ends)
            rows = rows.drop(lengths.index[lengths < lengths.max() / 2])
        unit = "epoch" if "epoch" in rows and rows["epoch"].notna().all() else "step"
        for metric in rows.select_dtypes("number").columns.drop(_NOT_METRICS, errors="ignore"):
            x, y = rows[[unit, metric]].dropna().to_numpy(np.float64).T
            if len(x):
                name = f"{stage}: {metric}" if stage else str(metric)
                curves[f"{name} ({unit}s)".replace("_", " ")] = [Series("", x, y)]
    return curves


def describe_clusters(folder: Path, arrays: Arrays) -> dict[str, Any]:
    """The template values of a clustering: ``found``, ``clusters`` and ``map``; else empty."""
    if "sizes" not in arrays:
        return {}
    clusters, sizes = arrays["latent_clusters"], arrays["sizes"]
    labels = pd.DataFrame({"split": "", "index": range(len(clusters)), "cluster": clusters})
    if (folder / LABELS).exists():
        labels = pd.read_csv(folder / LABELS, keep_default_na=False)
    trained, tested = (labels[labels["split"] == labels["split"].iloc[i]] for i in (0, -1))
    found: dict[str, Any] = {"clusters": len(sizes), "examples": int(sizes.sum())}
    found["examples per cluster"] = f"{sizes.min():,} to {sizes.max():,}"
    table = pd.DataFrame({"examples": sizes, "share": [f"{x:.1%}" for x in sizes / sizes.sum()]})
    if "confidence" in labels:
        found["mean confidence"] = trained["confidence"].mean().item()
        found["with confidence below 0.5"] = f"{(trained['confidence'] < 0.5).mean():.1%}"
        table["mean confidence"] = trained.groupby("cluster")["confidence"].mean()
    if (counts := arrays.get("confusion")) is not None:
        names = np.array(names_of(arrays, "label_names"))[counts.argmax(0)]
        pairs = zip(names, counts.max(0) / np.maximum(counts.sum(0), 1), strict=True)
        table["most common label"] = [f"{x} ({share:.0%})" if share else None for x, share in pairs]
    if "column_means" in arrays:
        table["distinguishing columns"] = distinguishing_columns(arrays)
    return {"found": found, "clusters": table.to_dict("index"), "map": _code_map(arrays, tested)}


def distinguishing_columns(arrays: Arrays) -> list[list[str]]:
    """The columns in which the mean of each cluster differs most, in standard deviations."""
    sizes, means = arrays["sizes"][:, None], arrays["column_means"]
    sums, others = sizes * means, sizes.sum() - sizes
    rest = (sums.sum(0) - sums) / np.maximum(others, 1)
    # Empty and single clusters have no difference.
    differences = np.where(sizes * others > 0, _in_deviations(arrays, means - rest), 0)
    names, overall = names_of(arrays, "column_names", means.shape[1]), sums.sum(0) / sizes.sum()
    return [
        [
            f"{names[i]} {'↑' if change[i] > 0 else '↓'} "
            f"{format_value(mean[i].item())} ({format_value(overall[i].item())})"
            for i in np.argsort(-np.abs(change), kind="stable")[:_APART]
            if change[i]
        ]
        for mean, change in zip(means, differences, strict=True)
    ]


def _in_deviations(arrays: Arrays, values: NDArray[Any]) -> NDArray[np.float64]:
    deviations = arrays["column_deviations"]
    return values / np.where(deviations > 0, deviations, np.inf)


def _code_map(arrays: Arrays, labels: pd.DataFrame) -> dict[str, Any]:
    """Points in the plane with their groups and details."""
    examples = arrays.get("examples", np.empty((len(arrays["latent"]), 0)))
    count, codes = len(examples), np.nan_to_num(arrays["latent"]) * (1, -1)
    # One scale for both axes, since an embedding has no units.
    places = codes[:count] * _WIDTH / max(np.ptp(codes[:count], axis=0).max(), 1e-9)
    points = pd.DataFrame(places.round().astype(int), columns=["x", "y"])
    facts = labels.drop(columns="split").rename(columns={"index": "example"})[:count]
    facts = facts.reset_index(drop=True)
    points["cluster"] = facts["cluster"]
    names = {"cluster": [*map(str, range(len(arrays["sizes"])))]}
    if "confusion" in arrays:
        points["label"] = arrays["latent_labels"][:count]
        names["label"] = [*names_of(arrays, "label_names")]
        facts["label"] = [names["label"][x] if x >= 0 else None for x in points["label"]]
    if "column_means" in arrays:
        spread = _in_deviations(arrays, arrays["column_means"]).std(0)
        shown = np.sort(np.argsort(-spread, kind="stable")[:_COLUMNS])
        columns = np.array(names_of(arrays, "column_names", len(spread)))[shown]
        facts = pd.concat([facts, pd.DataFrame(examples[:, shown], columns=columns)], axis=1)
    # In a fixed random order, so that no group covers the others.
    order = np.random.default_rng(0).permutation(count)
    by_kind = {kind: points.groupby(kind)[["x", "y"]].median().round() for kind in names}
    return {
        "points": points.iloc[order].to_dict("records"),
        "total": len(codes),
        "names": names,
        "middles": {kind: places.to_dict("index") for kind, places in by_kind.items()},
        "facts": {"names": [*facts], "rows": facts.iloc[order].map(format_value).values.tolist()},
        "sprite": _sprite(plots.to_pixels(examples[order])) if examples.ndim > 2 else None,
    }


def _sprite(pixels: NDArray[np.float32]) -> dict[str, Any]:
    """All images (N, H, W, channels) in one file, row by row."""
    across, content = ceil(len(pixels) ** 0.5), BytesIO()
    rows = np.split(pixels, range(across, len(pixels), across))
    canvas = (255 * plots.tile(rows)).round().astype(np.uint8)
    Image.fromarray(canvas.squeeze()).save(content, "PNG", optimize=True)
    ratio = pixels.shape[2] / pixels.shape[1]
    return {"png": content.getvalue(), "across": across, "down": len(rows), "ratio": ratio}


def write_overview(folders: Sequence[Path], out: Path) -> dict[str, str]:
    """Write one page of several finished runs: scores, means over seeds, and pictures.

    Args:
        folders: The folders of runs, or of runs ``seed-...``.
        out: The file to write.

    Returns:
        The reason for each folder that cannot be read; raises if none can be read.
    """
    runs, faults = [], {}
    for folder in folders:
        seeds = sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name))
        for each in seeds or [folder]:
            try:
                runs.append(_read_run(each, out.parent))
            except (OSError, RunError, *_DAMAGE) as error:
                faults[str(each)] = str(error)
    if not runs:
        raise RunError(f"No run can be read: {' '.join(faults.values())}")
    # Other applications have other settings.
    settings = pd.DataFrame([run["settings"] for run in runs]).dropna(axis=1).astype(str)
    metrics = pd.DataFrame([run["metrics"] for run in runs]).apply(pd.to_numeric, errors="coerce")
    same_settings = metrics.groupby([str(run["settings"]) for run in runs], sort=False)
    sizes = np.cumsum([len(run["picture"]) for run in runs])
    page = _render(
        "runs.html",
        title=f"{len(runs)} run{'s' * (len(runs) > 1)}",
        runs=runs,
        varied=[name for name, number in settings.nunique().items() if number > 1],
        settings=settings.to_dict("records"),
        metrics=metrics.to_dict("records"),
        means=[
            (rows.index[0], len(rows), rows.mean(skipna=False), rows.std(skipna=False))
            for _, rows in same_settings
            if len(rows) > 1
        ],
        has_room=(sizes <= _PICTURES).tolist(),
        faults=faults,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, page.encode())
    return faults


def _read_run(folder: Path, start: Path) -> dict[str, Any]:
    """The template values of one of several runs."""
    run = RunFolder.open_finished(folder)
    result, arrays, specs = run.result(), plots.read_arrays(folder), []
    if clustering := describe_clusters(folder, arrays):
        picture = _render("map.svg", **clustering).encode()
    else:
        specs = plots.figure_specs(arrays)[:1]
        picture = b"".join(map(_draw_png, specs))
    return {
        "name": str(folder),
        "page": quote(os.path.relpath(folder / PAGE, start)) if (folder / PAGE).exists() else None,
        "seed": result["seed"],
        "wall_time": float(result["wall_time"]),
        "metrics": _named_metrics(result, result["metrics"]),
        "settings": {
            name: value
            for name, value in flatten(tomllib.loads(run.config_text()))
            if not isinstance(value, dict) and name.split(".")[-1] not in _NOT_SETTINGS
        },
        "found": clustering.get("found", {}),
        "picture": picture,
        "kind": specs[0].kind if specs else "map",
    }


def _draw_png(spec: FigureSpec) -> bytes:
    """A figure without its title, which is text on the page."""
    return plots.png(plots.draw(spec._replace(title="")))


def _named_metrics(result: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that are not in the tables of a result, by heading, in the order of headings."""
    tables = result.get("tables", {}).values()
    used = {metric for rows in tables for row in rows.values() for metric in row.values()}
    names = result.get("names", {})
    order = [x for x in (*names, *metrics) if x in metrics and x not in used]
    return {names.get(x, x): metrics[x] for x in order}


def _render(template: str, **values: Any) -> str:
    """A page from a template."""
    # Escaped, since names of data sets, files and settings may contain markup.
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=PackageLoader("drpm.report"), **options)
    environment.filters |= {
        "value": format_value,
        "duration": lambda seconds: str(timedelta(seconds=round(seconds))),
        "command": shlex.join,
        "base64": lambda content: base64.b64encode(content).decode(),
        "width": lambda png: round(0.7 * int.from_bytes(png[16:20], "big")),
    }
    # The content security policy allows only this script.
    script = environment.get_template("page.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values |= {"script": script, "digest": digest, "colors": plots.COLORS}
    return environment.get_template(template).render(values)


def _render_run(run: RunFolder, title: str, clustering: Mapping[str, Any], **shown: Any) -> str:
    result = run.result()
    method, own = result.get("method", "this run"), _named_metrics(result, result["metrics"])
    others = {x: _named_metrics(result, y) for x, y in result.get("comparison", {}).items()}
    methods = {method: own} | others | {method: own}
    names = dict.fromkeys(name for values in methods.values() for name in values)
    found = [(name, value) for name, value in own.items() if value is not None]
    if clustering:  # without labels, no score says how good it is
        found = [*clustering["found"].items(), *found[: len(clustering["map"]["names"]) - 1]]
    return _render(
        "page.html",
        title=result.get("title", title),
        # Methods in sortable rows; metrics in rows for a single method.
        scores={x: {name: values.get(name) for name in names} for x, values in methods.items()}
        if len(methods) > 1
        else {name: {method: value} for name, value in own.items()},
        result={"tables": {}, "data": {}, **result},
        stacked=",".join(map(str, dict.fromkeys(result.get("stacked", ())))),
        settings=run.config_text().strip(),
        **{**shown, **clustering, "found": dict(found[:_FOUND])},
    )
