"""Multitask learning in the results document: tables and figures."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from drpm.data.mnist import noise_ratios, task_names
from drpm.multitask.config import METHOD_NAMES
from drpm.report.plots import Series, draw_stored, series_panels
from drpm.studies import sweeps
from drpm.studies.results import Table, metric_columns, parse_published, summarize_metrics

METHODS: Final = {name: method for method, name in METHOD_NAMES.items()}
PAPER_METHODS: Final = {METHOD_NAMES[method]: method for method in sweeps.PAPER_METHODS}
_TASKS: Final = {str(tasks): str(tasks) for tasks in sweeps.TASKS}
_NOISE: Final = {str(ratio): str(ratio) for ratio in sweeps.NOISE}
_ACCURACY: Final = {"accuracy": "ACC", "best_test_epoch_accuracy": "best"}
_FREE: Final = "DRPM-MTL, no penalty"

# "tab:app_exp_mtl_celeba", the mean over all attributes. The paper plots the accuracies of
# MultiMNIST without printing them.
PUBLISHED: Final = parse_published(
    """
    celeba/tasks-10/uls   0.878 0.003
    celeba/tasks-10/drpm  0.883 0.001
    celeba/tasks-20/uls   0.907 0.002
    celeba/tasks-20/drpm  0.911 0.001
    celeba/tasks-40/uls   0.906 0.001
    celeba/tasks-40/drpm  0.908 0.001
    """,
    "best_test_epoch_accuracy",
)


def _by_tasks(study: str, rows: dict[str, str], metrics: dict[str, str], **options: Any) -> Table:
    columns = metric_columns(study, metrics)
    return Table(("tasks", "method"), rows, columns, _TASKS, PUBLISHED, **options)


def _of_neurons(study: str) -> Table:
    columns = metric_columns(study, {"size_left": "left digit", "size_right": "right digit"})
    return Table(("noise ratio",), _NOISE, columns, digits=1, is_bold=False, has_runs=False)


TABLES: Final = {
    "noise": Table(
        ("noise ratio", "method"),
        PAPER_METHODS,
        metric_columns(
            "noise/{row}/noise-{group}",
            {"accuracy_left": "left", "accuracy_right": "right", **_ACCURACY},
        ),
        _NOISE,
        main=("ACC",),
    ),
    "noise-sizes": _of_neurons("noise/drpm/noise-{row}"),
    "noise-sizes-order": _of_neurons("noise-order/drpm/noise-{row}"),
    "mosaic": _by_tasks("mosaic/tasks-{group}/{row}", METHODS, _ACCURACY, main=("ACC",)),
    "mosaic-sizes": _by_tasks(
        "{row}/tasks-{group}/drpm",
        {"DRPM-MTL": "mosaic", _FREE: "mosaic-free"},
        {"size_noise_correlation": "rank correlation", "accuracy": "ACC"},
        is_bold=False,
        main=("rank correlation",),
    ),
    "celeba": _by_tasks("celeba/tasks-{group}/{row}", PAPER_METHODS, _ACCURACY),
}


def _noise_series(results: Path, name: str, study: str, metric: str) -> Series:
    cells = [(f"{study}/noise-{ratio}", metric) for ratio in sweeps.NOISE]
    return Series(name, np.array(sweeps.NOISE), *summarize_metrics(results, cells))


def _draw_noise(results: Path) -> Figure:
    """Accuracies and neurons against the noise ratio of the right digit."""
    panels = {
        f"accuracy of the {digit} digit": [
            _noise_series(results, name, f"noise/{method}", f"accuracy_{digit}")
            for name, method in PAPER_METHODS.items()
        ]
        for digit in ("left", "right")
    }
    uls, drpm = (
        _noise_series(results, "DRPM-MTL", f"noise/{x}", "accuracy") for x in ("uls", "drpm")
    )
    deviation = np.hypot(uls.deviation, drpm.deviation)
    difference = drpm._replace(mean=drpm.mean - uls.mean, deviation=deviation)
    panels["mean accuracy: DRPM-MTL minus ULS"] = [difference]
    neurons = _noise_series(results, "DRPM-MTL", "noise/drpm", "size_right")
    panels["neurons of the right digit, of 50"] = [neurons]
    title = "Accuracy and neurons against the noise ratio of the right digit"
    return series_panels(panels, "noise ratio of the right digit", title, height=1.8)


def _draw_mosaic(metric: str, rows: dict[str, str], results: Path) -> Figure:
    """A metric of every task of the mosaics against its noise ratio."""
    what = {"size": "neurons"}.get(metric, metric)
    title = f"{what.capitalize()} of every task against its noise ratio"
    panels: dict[str, list[Series]] = {}
    for heading, tasks in _TASKS.items():
        ratios, names = noise_ratios(int(tasks)), task_names(int(tasks))
        for name, study in rows.items():
            cells = [(study.format(tasks), f"{metric}_{task}") for task in names]
            series = Series(name, np.array(ratios), *summarize_metrics(results, cells))
            panels.setdefault(f"{heading} tasks", []).append(series)
    return series_panels(panels, "noise ratio of the task", title, what, height=2.0, is_line=False)


FIGURES: Final = {
    "noise": _draw_noise,
    "noise-images": partial(draw_stored, "noise-order/drpm/noise-0.0/seed-0", "images"),
    "mosaic-accuracy": partial(
        _draw_mosaic,
        "accuracy",
        {name: f"mosaic/tasks-{{}}/{method}" for name, method in METHODS.items()},
    ),
    "mosaic-neurons": partial(
        _draw_mosaic,
        "size",
        {"DRPM-MTL": "mosaic/tasks-{}/drpm", _FREE: "mosaic-free/tasks-{}/drpm"},
    ),
    "mosaic-owners": partial(draw_stored, "mosaic-free/tasks-10/drpm/seed-0", "neurons"),
}
