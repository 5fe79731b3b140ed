"""The page of a finished run, one HTML file that needs no other.

It shows the figures of :mod:`drpm.report.plots`, training curves, and of ``result.json`` the
``metrics``, ``method`` (the name of their column), ``comparison`` (metrics of other methods),
``names`` (headings of metrics), ``tables`` (title -> row -> column -> metric), ``about`` (a
paragraph), ``data`` (a table), ``command`` and ``stacked`` (the seeds trained together).
"""

import base64
import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader

from drpm.report.plots import FigureSpec, Series, draw, figure_specs, format_value, png, read_arrays
from drpm.training.errors import RunError
from drpm.training.runs import ARRAYS, FIGURES, PAGE, RESULT, RunFolder

_NOT_METRICS: Final = ["epoch", "step", "wall_time"]


def write_page(folder: Path | str, title: str | None = None) -> Path:
    """Writes the page of a finished run, ``index.html`` in its folder, and its figures.

    Args:
        folder: The folder of the run.
        title: The title; the name of the folder by default.

    Returns:
        The path of the page.
    """
    run = RunFolder.open(folder)
    if run.status != "finished":
        raise RunError(f"The run {folder} is not finished: {RESULT} is missing or damaged.")
    with run.lock():
        try:
            figures = draw_figures(run)
            page = _render(run, title or run.path.resolve().name, figures)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"The run {folder} has a damaged {RESULT} or {ARRAYS}: {error}"
            ) from error
        for figure, content in figures:
            run.write_atomic(f"{FIGURES}/{figure.name}.png", content)
        return run.write_atomic(PAGE, page)


def draw_figures(run: RunFolder) -> list[tuple[FigureSpec, bytes]]:
    """Draws all figures that the run has data for, as PNG files."""
    specs = figure_specs(read_arrays(run.path))
    if curves := training_curves(run.metrics()):
        about = f"Training curves of {', '.join(curves)}."
        specs.append(FigureSpec("curves", "curves", curves, (), (), "Training", about))
    return [(spec, png(draw(spec))) for spec in specs]


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


def _render(run: RunFolder, title: str, figures: Sequence[tuple[FigureSpec, bytes]]) -> str:
    # Names of data sets, files and settings may contain anything: none of them is markup.
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=PackageLoader("drpm.report"), **options)
    environment.filters |= {
        "value": format_value,
        "base64": lambda png: base64.b64encode(png).decode(),
        "width": lambda png: round(0.7 * int.from_bytes(png[16:20], "big")),
    }
    result: dict[str, Any] = run.result()
    metrics, tables, used = result["metrics"], {}, set()
    for heading, rows in result.get("tables", {}).items():
        tables[heading] = {
            name: {column: metrics.get(metric) for column, metric in row.items()}
            for name, row in rows.items()
        }
        used |= {metric for row in rows.values() for metric in row.values()}
    own = {result.get("method", "this run"): {x: y for x, y in metrics.items() if x not in used}}
    methods = {**own, **result.get("comparison", {}), **own}
    results = {
        result.get("names", {}).get(metric, metric): {x: y.get(metric) for x, y in methods.items()}
        for metric in dict.fromkeys(metric for values in methods.values() for metric in values)
    }
    stacked = list(dict.fromkeys(result.get("stacked", ())))
    return environment.get_template("page.html").render(
        title=title,
        results=results,
        tables=tables,
        about=result.get("about", ""),
        data=result.get("data", {}),
        figures=figures,
        command=shlex.join(result.get("command", ())),
        stacked=",".join(map(str, stacked)) if len(stacked) > 1 else "",
        settings=run.config_text().strip(),
        facts={
            "wall time": str(timedelta(seconds=round(result["wall_time"]))),
            **{name.replace("_", " "): result[name] for name in ("device", "seed", "git_revision")},
            **result["versions"],
        },
    )
