"""Scores against a number that was varied: a panel for each score, a line for each method.

Where each place is a thing of its own, a line between them would tell nothing: they are points.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from drpm.report.style import (
    FAINT,
    GREY,
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

_BAND: Final = 0.15  # how much of a colour its band has
_BESIDE: Final = 0.17  # of the way to the next place, between points of different trends
_FINEST: Final = 120  # but so many points fit side by side, and farther apart they are no group
STRAYING: Final = "one deviation over seeds"


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
    handles: list[Artist] = [grid[0].lines[i] for i in drawn]
    shown = [label(names[i]) for i in drawn]
    if any(strays(trend) for trends in panels.values() for trend in trends):
        handles, shown = [*handles, band_key()], [*shown, f"band: {STRAYING}"]
    legend_below(figure, handles, shown)
    return figure


def legend_below(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """One legend for all panels, in as few lines as it fits into.

    Arguments:
        figure: Whose.
        handles: What is drawn.
        names: What each of them is called.
    """
    room = figure.get_figwidth() - 0.5
    across = int(room / (text_width(names) + 0.6))
    # A column is as wide as its own longest name, so that more may fit than of the longest.
    if sum(text_width([name]) + 0.6 for name in names) <= room:
        across = len(names)
    figure.legend(
        handles,
        names,
        loc="outside lower left",
        ncols=max(1, across),
        fontsize=8,
        frameon=False,
        labelcolor=INK,
    )


def strays(trend: Trend) -> bool:
    """Whether anything is known of how far the scores stray."""
    return bool((np.nan_to_num(trend.deviations) > 0).any())


def band_key() -> Patch:
    """What says in a legend what a band is."""
    return Patch(color=GREY, alpha=2 * _BAND, linewidth=0)


def line_key(colour: Any, style: Any = "-", marker: str = "", size: float = 4) -> Line2D:
    """The same for lines and points.

    Arguments:
        colour: Theirs, as matplotlib takes it.
        style: That of the line; nothing for points alone.
        marker: What points are.
        size: That of points.
    """
    return Line2D([], [], color=colour, linestyle=style, marker=marker, markersize=size)


def whisker_key() -> Line2D:
    """The same for the whiskers of points."""
    return line_key(GREY, "", "|", 9)


def draw_panel(axes: Axes, score: str, trends: Sequence[tuple[Trend, NDArray[np.float64]]]) -> None:
    """One score: a line for each trend, with its deviations around it.

    Arguments:
        axes: Where.
        score: Its name.
        trends: Each with its colour.
    """
    for trend, colour in trends:
        deviations = np.where(np.isfinite(trend.deviations), trend.deviations, 0.0)
        low, high = trend.means - deviations, trend.means + deviations
        axes.fill_between(trend.places, low, high, color=colour, alpha=_BAND, linewidth=0)
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
    _frame(axes, score, [trend for trend, _ in trends])


def draw_points(
    axes: Axes, score: str, trends: Sequence[tuple[Trend, NDArray[np.float64]]]
) -> None:
    """One score: a point for each place of a trend, those of one place side by side.

    Arguments:
        axes: Where.
        score: Its name.
        trends: Each with its colour.
    """
    every = _places([trend for trend, _ in trends])
    step = 0.0
    if len(every) > 1:
        step = min(_BESIDE * np.diff(every).min(), np.ptp(every) / _FINEST)
    for index, (trend, colour) in enumerate(trends):
        beside = step * (index - (len(trends) - 1) / 2)
        places, deviations = trend.places + beside, np.nan_to_num(trend.deviations)
        low, high = trend.means - deviations, trend.means + deviations
        axes.vlines(places, low, high, color=colour, linewidth=0.9)
        axes.plot(
            places,
            trend.means,
            color=colour,
            linestyle="",
            marker="o",
            markersize=3.2,
            markeredgewidth=0,
            label=label(trend.name),
        )
    _frame(axes, score, [trend for trend, _ in trends])


def mark_level(axes: Axes, height: float, name: str) -> None:
    """A thin line at a height that others are compared with, named at its right end.

    Arguments:
        axes: Where.
        height: Of the line.
        name: What it is.
    """
    axes.axhline(height, color=GREY, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1.5)
    where = axes.get_yaxis_transform()
    axes.text(1.005, height, name, transform=where, size=7.5, color=GREY, va="center")


def _places(trends: Sequence[Trend]) -> NDArray[np.float64]:
    """All places of some trends, each once."""
    return np.unique(np.concatenate([np.empty(0), *(trend.places for trend in trends)]))


def _frame(axes: Axes, score: str, trends: Sequence[Trend]) -> None:
    """What is around the trends of a panel."""
    bare(axes, "left", "bottom")
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    places = _places(trends)
    axes.set_xticks(places if len(places) <= 12 else places[::2])
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(labelsize=8, colors=INK)
    heading(axes, label(score, 60))
