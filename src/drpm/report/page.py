"""One page about a finished run, in one file that needs nothing else."""

import base64
import shlex
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from drpm.report.figures import Picture, draw_pictures, open_finished, save_pictures
from drpm.report.numbers import duration, flat, group_tables, metric_table, text
from drpm.training.errors import RunError
from drpm.training.runs import CONFIG, RESULT, RunFolder

PAGE: Final = "index.html"

# Pixels of the page for each of a picture: fine on sharp screens, and all writing the same size.
_SCALE: Final = 0.7

# Where an entry of the result must be made of names and values.
_MAPPINGS: Final = ("metrics", "comparison", "versions", "names", "tables")


def write_page(folder: Path | str, title: str | None = None) -> Path:
    """Write the page of a finished run, ``index.html`` in its folder, and its pictures.

    Arguments:
        folder: The folder of the run.
        title: What stands above; the name of the folder where it is None.

    Returns:
        The file.

    Raises:
        RunError: Where the run is not finished, a file of it is damaged or nothing can be written.
    """
    run = open_finished(folder)
    with run.lock():
        pictures = draw_pictures(run)
        page = _render(run, title or run.path.resolve().name, pictures)
        save_pictures(run, pictures)
        return run.write_atomic(PAGE, page)


def _render(run: RunFolder, title: str, pictures: list[Picture]) -> str:
    result = _read_result(run)
    settings = _read_settings(run)
    metrics, tables = result.get("metrics", {}), result.get("tables", {})
    # What has a table of its own does not stand among the others.
    apart = {name for rows in tables.values() for row in rows.values() for name in row.values()}
    return _template().render(
        title=title,
        results=metric_table(
            {name: value for name, value in metrics.items() if name not in apart},
            result.get("comparison", {}),
            str(result.get("method", "this run")),
            result.get("names", {}),
        ),
        tables=group_tables(metrics, tables),
        about=result.get("about", ""),
        data=_describe_data(result.get("data"), settings),
        pictures=[
            {
                "name": picture.name,
                "title": picture.title,
                "description": picture.description,
                "width": round(_SCALE * picture.width),
                "source": "data:image/png;base64," + base64.b64encode(picture.png).decode(),
            }
            for picture in pictures
        ],
        command=_command(result.get("command")),
        stacked=_stacked(result.get("stacked")),
        settings=settings,
        facts=_facts(result),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("drpm.report"),
        # Names of data sets, files and settings come from anywhere: none of them is markup.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _read_result(run: RunFolder) -> dict[str, Any]:
    result: Any = run.result()
    sound = isinstance(result, dict)
    sound = sound and all(isinstance(result.get(name, {}), dict) for name in _MAPPINGS)
    sound = sound and all(isinstance(each, dict) for each in result.get("comparison", {}).values())
    for rows in result.get("tables", {}).values() if sound else ():
        sound = sound and isinstance(rows, dict) and all(isinstance(x, dict) for x in rows.values())
    if not sound:
        raise RunError(f"The file {run.path / RESULT} is damaged: names and values are missing.")
    return dict(result)


def _read_settings(run: RunFolder) -> str:
    try:
        return run.config_text().strip()
    except (OSError, ValueError) as error:
        raise RunError(f"The file {run.path / CONFIG} cannot be read as text.") from error


def _describe_data(data: Any, settings: str) -> str | dict[str, str]:
    """What the result says about the data, or else what the settings say."""
    if data is None:
        try:
            data = tomllib.loads(settings).get("data")
        except tomllib.TOMLDecodeError:
            data = None
    if isinstance(data, Mapping):
        return {name: text(value) for name, value in flat(data).items()}
    return "" if data is None else text(data)


def _command(command: Any) -> str:
    """A command line, given as one text or as its words."""
    if isinstance(command, list):
        return shlex.join(map(str, command))
    return "" if command is None else str(command)


def _stacked(seeds: Any) -> str:
    """The seeds that were trained together, as the command line has them; nothing for one alone."""
    some = list(dict.fromkeys(map(str, seeds))) if isinstance(seeds, list) else []
    return ",".join(some) if len(some) > 1 else ""


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    """How the result came about."""
    facts = {}
    wall_time = result.get("wall_time")
    if isinstance(wall_time, int | float):
        facts["wall time"] = duration(wall_time)
    for name in ("device", "seed", "git_revision"):
        if result.get(name) is not None:
            # Not grouped by thousands: a seed is a name.
            facts[name.replace("_", " ")] = str(result[name])
    return facts | {name: str(version) for name, version in result.get("versions", {}).items()}
