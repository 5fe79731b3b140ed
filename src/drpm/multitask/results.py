"""What the page of results says of several tasks: tables, and the paper's figure."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from drpm.multitask import published, sweeps
from drpm.report.result_page import ResultFigure, Section
from drpm.report.result_tables import Metrics, Place, Row, Table, read_runs, table_text
from drpm.report.style import INK, colours, new_figure, png, title
from drpm.report.trends import Trend, draw_panel
from drpm.training.summaries import summarize

INTRODUCTION: Final = """\
## Several tasks

Accuracies are those on the test part (of CelebA on the validation part, as in the paper) after the
last epoch. The paper has those of the epoch that is best on the same part, which is why ours are
also shown that way.
"""

METHODS: Final = {
    "uls": "ULS",
    "uncertainty": "uncertainty weighting",
    "gradient": "combined gradients",
    "drpm": "DRPM-MTL",
}
TASKS: Final = ("left", "right")  # of MultiMNIST
_BEST: Final = "best_test_epoch_accuracy"


def tables() -> list[Table]:
    """The tables of the page, whatever there is to fill them with."""
    groups = [f"{tasks} tasks" for tasks in sweeps.TASKS]
    mosaic, celeba = (
        {
            method: tuple(Place(sweep, f"tasks-{tasks}", method) for tasks in sweeps.TASKS)
            for method in METHODS
        }
        for sweep in ("mosaic", "celeba")
    )
    return [
        noise_table(),
        Table(
            "Mosaics of many digits",
            "The mean accuracy over all tasks (`mosaic`), at the last epoch (ACC) and at the one "
            "that is best on the test part (best). The paper has no such images.",
            "method",
            groups,
            [Row(name, mosaic[method]) for method, name in METHODS.items()],
            {"accuracy": "ACC", _BEST: "best"},
        ),
        Table(
            "Do noisier digits get more neurons?",
            "The rank correlation between the noise ratio of a task and the number of its neurons.",
            "method",
            groups,
            [Row(METHODS["drpm"], mosaic["drpm"], is_guest=True)],
            {"size_noise_correlation": "rank correlation"},
        ),
        Table(
            "Attributes of faces",
            "A table of the paper's appendix (`celeba`): the mean accuracy over all tasks.",
            "method",
            groups,
            [
                Row(
                    METHODS[method],
                    celeba[method],
                    tuple(published.CELEBA[method][tasks] for tasks in sweeps.TASKS),
                )
                for method in sweeps.PAPER_METHODS
            ],
            {"accuracy": "ACC"},
            paper_digits=3,
        ),
    ]


def noise_table() -> Table:
    """Both digits of MultiMNIST at every noise ratio."""
    return Table(
        "Two digits, the right one with noise",
        "Accuracy on the left (L) and the right (R) digit, and the mean of both at the epoch that "
        "is best on the test part (best). The paper draws them and prints none (`noise`).",
        "noise ratio",
        [METHODS[method] for method in sweeps.PAPER_METHODS],
        [
            # All noise ratios were trained together, so that no row has a time of its own.
            Row(
                str(ratio),
                tuple(Place("noise", x, f"noise-{ratio}") for x in sweeps.PAPER_METHODS),
                is_guest=True,
            )
            for ratio in sweeps.NOISE
        ],
        {"accuracy_left": "L", "accuracy_right": "R", _BEST: "best"},
    )


def multitask_sections(results: Path) -> Iterator[Section]:
    """The part of the page on several tasks.

    Arguments:
        results: The folder of finished studies.
    """
    yield Section(INTRODUCTION)
    first, *others = tables()
    yield Section(table_text(first, results), tuple(_noise_figure(first, results)))
    for table in others:
        yield Section(table_text(table, results))


def _noise_figure(table: Table, results: Path) -> Iterator[ResultFigure]:
    """The paper's figure, as soon as there are two noise ratios."""
    found: dict[str, dict[float, list[Metrics]]] = {}
    for index, method in enumerate(sweeps.PAPER_METHODS):
        runs = {
            ratio: read_runs(table, results, row.places[index])
            for ratio, row in zip(sweeps.NOISE, table.rows, strict=True)
        }
        found[method] = {ratio: each for ratio, each in runs.items() if each}
    if any(len(runs) > 1 for runs in found.values()):
        caption = "accuracy and neurons against the noise ratio of the right digit"
        draw = partial(_drawn, found, caption.capitalize())
        yield ResultFigure("noise.png", "The paper's figure", caption, draw)


def _drawn(found: Mapping[str, Mapping[float, Sequence[Metrics]]], above: str) -> bytes:
    return png(draw_noise(found, above))


def draw_noise(found: Mapping[str, Mapping[float, Sequence[Metrics]]], above: str) -> Figure:
    """Accuracies of both tasks against the noise ratio, and the sizes of their shares beneath.

    Arguments:
        found: From a method to a noise ratio to the metrics of every seed, as runs end with them.
        above: The title.
    """
    figure = new_figure(6.5, 6.0)
    title(figure, above)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    lines = [(method, task) for method in found for task in TASKS]
    shades = dict(zip(lines, colours(len(lines)), strict=True))
    for axes, metric, name in ((upper, "accuracy", "accuracy"), (lower, "size", "neurons")):
        trends = [
            (noise_trend(found[method], f"{metric}_{task}", f"{METHODS[method]}, {task}"), colour)
            for (method, task), colour in shades.items()
        ]
        known = [
            # The right digit is the noisy one.
            (trend._replace(style="-" if task == "left" else "--"), colour)
            for (trend, colour), (_, task) in zip(trends, lines, strict=True)
            if len(trend.places)
        ]
        draw_panel(axes, name, known)
        axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    lower.set_xlabel("noise ratio", size=8, color=INK)
    return figure


def noise_trend(runs: Mapping[float, Sequence[Metrics]], metric: str, name: str) -> Trend:
    """A metric against the noise ratio, where it is known; seeds that have none do not count.

    Arguments:
        runs: From a noise ratio to the metrics of every seed.
        metric: Which one.
        name: What the trend is called.
    """
    summaries = {}
    for ratio, seeds in runs.items():
        known = [value for seed in seeds if (value := seed.get(metric)) is not None]
        if known:
            summaries[ratio] = summarize(known)
    return Trend(
        name,
        np.array([*summaries], dtype=np.float64),
        np.array([summary.mean for summary in summaries.values()], dtype=np.float64),
        np.array([summary.deviation or 0.0 for summary in summaries.values()], dtype=np.float64),
    )
