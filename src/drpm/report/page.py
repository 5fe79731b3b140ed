"""The page of a finished run, one HTML file that needs no other.

It shows the clusters of :mod:`drpm.report.clusters`, the figures of :mod:`drpm.report.plots`,
training curves, and of ``result.json`` the ``metrics``, ``method`` (the name of their column),
``comparison`` (metrics of other methods), ``names`` (headings of metrics), ``tables`` (title -> row
-> column -> metric), ``about`` (a paragraph), ``data`` (a table), ``command`` and ``stacked`` (the
seeds trained together).
"""

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, UndefinedError

from drpm.report.clusters import describe_clusters
from drpm.report.plots import (
    COLORS,
    Arrays,
    FigureSpec,
    Series,
    draw,
    figure_specs,
    format_value,
    png,
    read_arrays,
)
from drpm.training.errors import RunError
from drpm.training.runs import ARRAYS, FIGURES, LABELS, PAGE, RESULT, RunFolder

Metrics = Mapping[str, Any]

DAMAGE: Final = (AttributeError, IndexError, KeyError, TypeError, UndefinedError, ValueError)
"""What reading a damaged file raises."""

_NOT_METRICS: Final = ["epoch", "step", "wall_time"]
MAP: Final = "latent.svg"
_FOUND: Final = 6  # figures at the top of the page


def write_page(folder: Path | str, title: str | None = None) -> Path:
    """Writes the page of a finished run, ``index.html`` in its folder, and its figures.

    Args:
        folder: The folder of the run.
        title: The title; the name of the folder by default.

    Returns:
        The path of the page.
    """
    run = open_finished(folder)
    with run.lock():
        try:
            arrays = read_arrays(run.path)
            figures = draw_figures(run, arrays)
            clustering = describe_clusters(run.path, arrays)
            map_of_codes = render("map.svg", **clustering) if clustering else None
            page = _render(run, title or run.path.resolve().name, figures, clustering)
        except DAMAGE as error:
            raise RunError(
                f"The run {folder} has a damaged {RESULT}, {ARRAYS} or {LABELS}: {error}"
            ) from error
        for figure, content in figures:
            run.write_atomic(f"{FIGURES}/{figure.name}.png", content)
        if map_of_codes is not None:
            run.write_atomic(f"{FIGURES}/{MAP}", map_of_codes)
        return run.write_atomic(PAGE, page)


def open_finished(folder: Path | str) -> RunFolder:
    """The run in a folder, which must be finished."""
    run = RunFolder.open(folder)
    if run.status != "finished":
        raise RunError(f"The run {folder} is not finished: {RESULT} is missing or damaged.")
    return run


def draw_figures(run: RunFolder, arrays: Arrays) -> list[tuple[FigureSpec, bytes]]:
    """Draws all figures that the run has data for, as PNG files."""
    specs = figure_specs(arrays)
    if curves := training_curves(run.metrics()):
        about = f"Training curves of {', '.join(curves)}."
        specs.append(FigureSpec("curves", "curves", curves, (), (), "Training", about))
    return [(spec, draw_png(spec)) for spec in specs]


def draw_png(spec: FigureSpec) -> bytes:
    """A figure as a PNG file, without its title, which the page has as text."""
    return png(draw(spec._replace(title="")))


def training_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Series]]:
    """The metrics of ``metrics.jsonl`` over epochs or steps, stage by stage."""
    frame = pd.DataFrame([{"stage": "", **record} for record in records])
    curves = {}
    for stage, rows in frame.groupby("stage", sort=False) if records else ():
        # Means over few steps, at a checkpoint or an interruption, would look like dips.
        if "loss" in rows:
            ends = rows.loc[rows["loss"].notna(), "step"]
            lengths = ends.diff().fillna(ends)
            rows = rows.drop(lengths.index[lengths < lengths.max() / 2])
        unit = "epoch" if "epoch" in rows and rows["epoch"].notna().all() else "step"
        for metric in rows.select_dtypes("number").columns.drop(_NOT_METRICS, errors="ignore"):
            x, y = rows[[unit, metric]].dropna().to_numpy(np.float64).T
            if len(x):
                name = f"{stage}: {metric}" if stage else str(metric)
                curves[f"{name} ({unit}s)".replace("_", " ")] = [Series("", x, y, 0 * x)]
    return curves


def render(template: str, **values: Any) -> str:
    """A page from a template."""
    # Names of data sets, files and settings may contain anything: none of them is markup.
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=PackageLoader("drpm.report"), **options)
    environment.filters |= {
        "value": format_value,
        "duration": lambda seconds: str(timedelta(seconds=round(seconds))),
        "command": shlex.join,
        "base64": lambda content: base64.b64encode(content).decode(),
        "width": lambda png: round(0.7 * int.from_bytes(png[16:20], "big")),
    }
    # Of all scripts only this one runs, whatever a name in the page may hold.
    script = environment.get_template("page.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values |= {"script": script, "digest": digest, "colors": COLORS}
    return environment.get_template(template).render(values)


def named_metrics(result: Metrics, metrics: Metrics | None = None) -> dict[str, Any]:
    """The metrics of a result that are not in its tables, by their headings and in their order."""
    tables = result.get("tables", {}).values()
    used = {metric for rows in tables for row in rows.values() for metric in row.values()}
    metrics, names = result["metrics"] if metrics is None else metrics, result.get("names", {})
    order = [x for x in (*names, *metrics) if x in metrics and x not in used]
    return {names.get(x, x): metrics[x] for x in order}


def _render(
    run: RunFolder,
    title: str,
    figures: Sequence[tuple[FigureSpec, bytes]],
    clustering: Mapping[str, Any],
) -> str:
    result = run.result()
    method, own = result.get("method", "this run"), named_metrics(result)
    others = {x: named_metrics(result, y) for x, y in result.get("comparison", {}).items()}
    methods = {method: own, **others} | {method: own}
    names = dict.fromkeys(name for values in methods.values() for name in values)
    found = [(name, value) for name, value in own.items() if value is not None]
    if clustering:  # without labels, no score says how good it is
        found = [*clustering["found"].items(), *found[: len(clustering["map"]["names"]) - 1]]
    return render(
        "page.html",
        title=title,
        # Methods in rows, which can be sorted; metrics in rows if there is only one method.
        scores={x: {name: values.get(name) for name in names} for x, values in methods.items()}
        if len(methods) > 1
        else {name: {method: value} for name, value in own.items()},
        result={"tables": {}, "data": {}, **result},
        figures=figures,
        stacked=",".join(map(str, dict.fromkeys(result.get("stacked", ())))),
        settings=run.config_text().strip(),
        **{**clustering, "found": dict(found[:_FOUND])},
    )
