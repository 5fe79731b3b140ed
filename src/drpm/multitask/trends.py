"""Scores against noise ratios: the paper's figure, and the same for mosaics of many digits."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from drpm.report.result_tables import Metrics
from drpm.report.style import INK, colours, new_figure, title
from drpm.report.trends import Trend, draw_panel, draw_trends
from drpm.training.summaries import summarize

TASKS: Final = ("left", "right")  # of MultiMNIST
_TICKS: Final = (0.0, 0.3, 0.6, 0.9)  # those of forty tasks would overlap


def draw_noise(
    found: Mapping[str, Mapping[float, Sequence[Metrics]]], names: Mapping[str, str], above: str
) -> Figure:
    """Accuracies of both tasks against the noise ratio, and the sizes of their shares beneath.

    Arguments:
        found: From a method to a noise ratio to the metrics of every seed, as runs end with them.
        names: From a method to what it is called.
        above: The title.
    """
    figure = new_figure(6.5, 6.0)
    title(figure, above)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    lines = [(method, task) for method in found for task in TASKS]
    shades = dict(zip(lines, colours(len(lines)), strict=True))
    for axes, metric, name in ((upper, "accuracy", "accuracy"), (lower, "size", "neurons")):
        known = []
        for (method, task), colour in shades.items():
            values = {
                ratio: [seed.get(f"{metric}_{task}") for seed in seeds]
                for ratio, seeds in found[method].items()
            }
            trend = noise_trend(f"{names[method]}, {task}", values)
            if len(trend.places):
                # The right digit is the noisy one.
                known.append((trend._replace(style="-" if task == "left" else "--"), colour))
        draw_panel(axes, name, known)
        axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    lower.set_xlabel("noise ratio", size=8, color=INK)
    return figure


def draw_mosaic(panels: Mapping[str, Sequence[Trend]], above: str) -> Figure:
    """What tasks of one image are worth, each at its own noise ratio.

    Arguments:
        panels: From how many tasks there are to a trend for each method.
        above: The title.
    """
    figure = draw_trends(panels, "noise ratio of the task", above)
    for axes in figure.axes:
        axes.set_xticks(_TICKS)
    return figure


def noise_trend(name: str, values: Mapping[float, Sequence[float | None]]) -> Trend:
    """Numbers against the noise ratio, where they are known; seeds that have none do not count.

    Arguments:
        name: What the trend is called.
        values: From a noise ratio to a number for each seed.
    """
    known = {
        ratio: summarize(numbers)
        for ratio, each in sorted(values.items())
        if (numbers := [number for number in each if number is not None])
    }
    return Trend(
        name,
        np.array([*known], dtype=np.float64),
        np.array([summary.mean for summary in known.values()], dtype=np.float64),
        np.array([summary.deviation or 0.0 for summary in known.values()], dtype=np.float64),
    )
