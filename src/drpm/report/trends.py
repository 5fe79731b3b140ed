"""Scores against a number that was varied: a panel for each score, a line for each method."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from drpm.report.style import (
    FAINT,
    INK,
    WIDTH,
    bare,
    colours,
    heading,
    label,
    new_figure,
    text_width,
    title,
)


class Trend(NamedTuple):
    """What became of one method.

    Arguments:
        name: That of the method.
        places: (P,), the number that was varied.
        means: (P,), the score there.
        deviations: (P,), how far it strays; nothing is drawn where that is not known.
        style: That of its line, as matplotlib names it.
    """

    name: str
    places: NDArray[np.float64]
    means: NDArray[np.float64]
    deviations: NDArray[np.float64]
    style: str = "-"


def draw_trends(panels: Mapping[str, Sequence[Trend]], unit: str, above: str) -> Figure:
    """Panels side by side, with one legend.

    Arguments:
        panels: From a score to its trends; a method has the same place in each of them, and a
            place in the legend where it has a score at all.
        unit: What the varied number is.
        above: The title.
    """
    figure = new_figure(min(WIDTH, 0.6 + 3.0 * len(panels)), 3.3)
    title(figure, label(above, 100))
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    first = next(iter(panels.values()))
    names = [trend.name for trend in first]
    drawn = [i for i, trend in enumerate(first) if np.isfinite(trend.means).any()]
    for axes, (score, trends) in zip(grid, panels.items(), strict=True):
        draw_panel(axes, score, list(zip(trends, colours(len(trends)), strict=True)))
        axes.set_xlabel(unit, size=8, color=INK)
    figure.legend(
        [grid[0].lines[i] for i in drawn],
        [label(names[i]) for i in drawn],
        loc="outside lower left",
        ncols=max(1, int((WIDTH - 0.5) / (text_width(names) + 0.6))),
        fontsize=8,
        frameon=False,
        labelcolor=INK,
    )
    return figure


def draw_panel(axes: Axes, score: str, trends: Sequence[tuple[Trend, NDArray[np.float64]]]) -> None:
    """One score: a line for each trend, with its deviations around it.

    Arguments:
        axes: Where.
        score: Its name.
        trends: Each with its colour.
    """
    bare(axes, "left", "bottom")
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for trend, colour in trends:
        deviations = np.where(np.isfinite(trend.deviations), trend.deviations, 0.0)
        low, high = trend.means - deviations, trend.means + deviations
        axes.fill_between(trend.places, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            trend.places,
            trend.means,
            color=colour,
            linewidth=1.4,
            linestyle=trend.style,
            marker="o",
            markersize=3,
            label=label(trend.name),
        )
    places = np.unique(np.concatenate([trend.places for trend, _ in trends]))
    axes.set_xticks(places if len(places) <= 12 else places[::2])
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(labelsize=8, colors=INK)
    heading(axes, label(score))
