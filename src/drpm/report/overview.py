"""Several runs on one page: their scores, means over seeds, and a picture of each."""

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pandas as pd

from drpm.report.clusters import describe_clusters
from drpm.report.page import DAMAGE, draw_png, named_metrics, open_finished, render
from drpm.report.plots import figure_specs, read_arrays
from drpm.training.checkpoint import write_atomic
from drpm.training.config import flatten
from drpm.training.errors import RunError
from drpm.training.runs import PAGE

_PICTURES: Final = 6_000_000  # bytes of all together
_NOT_SETTINGS: Final = ("seed", "device", "fingerprint")


def write_overview(folders: Sequence[Path], out: Path) -> dict[str, str]:
    """Writes one page of several finished runs.

    Args:
        folders: The folders of runs, or of runs ``seed-...``.
        out: The file to write.

    Returns:
        The reason for each folder that cannot be read; it is an error if none can.
    """
    runs, faults = [], {}
    for folder in (run for each in folders for run in _seeds(each) or [each]):
        try:
            runs.append(_read_run(folder, out.parent))
        except (OSError, RunError, *DAMAGE) as error:
            faults[str(folder)] = str(error)
    if not runs:
        raise RunError(f"No run can be read: {' '.join(faults.values())}")
    # Other applications have other settings.
    settings = pd.DataFrame([run["settings"] for run in runs]).dropna(axis=1).astype(str)
    metrics = pd.DataFrame([run["metrics"] for run in runs])
    metrics = metrics.apply(pd.to_numeric, errors="coerce")
    same_settings = metrics.groupby([str(run["settings"]) for run in runs], sort=False)
    sizes = pd.Series([len(run["picture"]) for run in runs])
    page = render(
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
        has_room=(sizes.cumsum() <= _PICTURES).tolist(),
        faults=faults,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, page.encode())
    return faults


def _seeds(folder: Path) -> list[Path]:
    return sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name))


def _read_run(folder: Path, start: Path) -> dict[str, Any]:
    """What the page shows of a run."""
    run = open_finished(folder)
    result, arrays, specs = run.result(), read_arrays(folder), []
    if clustering := describe_clusters(folder, arrays):
        picture = render("map.svg", **clustering).encode()
    else:
        specs = figure_specs(arrays)[:1]
        picture = b"".join(map(draw_png, specs))
    settings = flatten(tomllib.loads(run.config_text()))
    return {
        "name": str(folder),
        "page": quote(os.path.relpath(folder / PAGE, start)) if (folder / PAGE).exists() else None,
        "seed": result["seed"],
        "wall_time": float(result["wall_time"]),
        "metrics": named_metrics(result),
        "settings": {
            name: value
            for name, value in settings
            if not isinstance(value, dict) and name.split(".")[-1] not in _NOT_SETTINGS
        },
        "found": clustering.get("found", {}),
        "picture": picture,
        "kind": specs[0].kind if specs else "map",
    }
