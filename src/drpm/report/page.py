"""The page of a finished run, one HTML file that needs no other."""

import base64
import shlex
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from drpm.report.numbers import format_value, format_values
from drpm.report.run_figures import RunFigure, draw_figures
from drpm.training.errors import RunError
from drpm.training.runs import FIGURES, PAGE, RESULT, RunFolder

# Pixels of the page for each of a figure: sharp on fine screens, with text of one size.
_SCALE: Final = 0.7


class PageTable(NamedTuple):
    """A table of the page: its columns, and the name and cells of each row."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]


def write_page(folder: Path | str, title: str | None = None) -> Path:
    """Writes the page of a finished run, ``index.html`` in its folder, and its figures.

    Args:
        folder: The folder of the run.
        title: The title; the name of the folder by default.

    Returns:
        The path of the page.

    Raises:
        RunError: If the run is not finished, a file is damaged, or nothing can be written.
    """
    run = RunFolder.open(folder)
    if run.status != "finished":
        raise RunError(f"The run {folder} is not finished: {RESULT} is missing or damaged.")
    with run.lock():
        figures = draw_figures(run)
        try:
            page = _render(run, title or run.path.resolve().name, figures)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"The file {run.path / RESULT} is damaged: {error}") from error
        for figure in figures:
            run.write_atomic(f"{FIGURES}/{figure.name}.png", figure.png)
        return run.write_atomic(PAGE, page)


def _render(run: RunFolder, title: str, figures: list[RunFigure]) -> str:
    result: dict[str, Any] = run.result()
    settings, command = run.config_text().strip(), result.get("command", "")
    stacked = list(dict.fromkeys(map(str, result.get("stacked", ()))))
    environment = Environment(
        loader=PackageLoader("drpm.report"),
        # Names of data sets, files and settings may contain anything: none of them is markup.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=title,
        results=_metric_table(result),
        tables=_named_tables(result),
        about=result.get("about", ""),
        data=_describe_data(result.get("data", "")),
        figures=[
            {
                "name": figure.name,
                "title": figure.title,
                "description": figure.description,
                "width": round(_SCALE * int.from_bytes(figure.png[16:20], "big")),
                "source": "data:image/png;base64," + base64.b64encode(figure.png).decode(),
            }
            for figure in figures
        ],
        command=command if isinstance(command, str) else shlex.join(map(str, command)),
        stacked=",".join(stacked) if len(stacked) > 1 else "",
        settings=settings,
        facts=_facts(result),
    )


def _metric_table(result: Mapping[str, Any]) -> PageTable:
    """The metrics of a run beside those of other methods, without those of the named tables."""
    apart = {
        metric
        for rows in result.get("tables", {}).values()
        for row in rows.values()
        for metric in row.values()
    }
    own = _flat({name: x for name, x in result["metrics"].items() if name not in apart})
    others = {name: _flat(values) for name, values in result.get("comparison", {}).items()}
    # The run may be one of the compared methods; it is recognized by its values.
    own_name = next((name for name, x in others.items() if x and x.items() <= own.items()), None)
    if own_name is None:
        own_name = str(result.get("method", "this run"))
        others = {own_name: {}, **others} if own else others
    columns = {name: own if name == own_name else values for name, values in others.items()}
    names = result.get("names", {})
    rows = [
        (str(names.get(name, name)), format_values([x.get(name) for x in columns.values()]))
        for name in dict.fromkeys(name for values in columns.values() for name in values)
    ]
    return PageTable("Results", list(columns), rows)


def _named_tables(result: Mapping[str, Any]) -> list[PageTable]:
    """Tables that a run describes itself, from titles to rows to columns to metrics."""
    tables = []
    for title, rows in result.get("tables", {}).items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        cells = [
            format_values([result["metrics"].get(row.get(column)) for row in rows.values()])
            for column in columns
        ]
        lines = [list(line) for line in zip(*cells, strict=True)]
        tables.append(PageTable(title, columns, list(zip(rows, lines, strict=True))))
    return tables


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted names; a list becomes one text."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = format_value(value) if isinstance(value, list) else value
    return flat


def _describe_data(data: Any) -> str | dict[str, str]:
    """The description of the data: a sentence, or names and values."""
    if isinstance(data, Mapping):
        return {name: format_value(value) for name, value in _flat(data).items()}
    return format_value(data)


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    """Where and how the run was trained."""
    facts = {}
    if "wall_time" in result:
        facts["wall time"] = str(timedelta(seconds=round(result["wall_time"])))
    for name in ("device", "seed", "git_revision"):
        if result.get(name) is not None:
            facts[name.replace("_", " ")] = str(result[name])
    return facts | {name: str(version) for name, version in result.get("versions", {}).items()}
