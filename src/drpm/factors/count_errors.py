"""Errors of the number of shared factors, as the paper draws them: methods side by side."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from drpm.report.style import FAINT, GREY, WIDTH, bare, colours, label, new_figure, title
from drpm.report.trends import STRAYING, legend_below, line_key, whisker_key
from drpm.training.summaries import Summary

_LINEAR: Final = 1.0  # errors up to here have a scale of their own, on which there is a zero
_BESIDE: Final = 0.8  # of the way to the next group, for all methods together
_ROOM: Final = 1.3  # times the largest error, so that no whisker ends at the edge


def draw_errors(
    errors: Mapping[str, Sequence[Summary]], groups: Sequence[str], above: str
) -> Figure:
    """Points with their deviations, on a scale for small errors and large ones.

    They are points and not bars, whose lengths would mean nothing on such a scale.

    Arguments:
        errors: From the name of a method to its error in every group, none of them negative.
        groups: What the groups are called, here how many factors are shared.
        above: The title.
    """
    figure = new_figure(WIDTH, 3.6)
    title(figure, label(above, 100))
    axes = figure.subplots()
    shades = colours(len(errors))
    for place, (found, shade) in enumerate(zip(errors.values(), shades, strict=True)):
        beside = _BESIDE * ((place + 0.5) / len(errors) - 0.5)
        _draw_method(axes, np.arange(len(groups), dtype=np.float64) + beside, found, shade)
    _frame(axes, [label(group) for group in groups], _largest(errors))
    keys = [line_key(shade, "", "o", 4.5) for shade in shades]
    names = [label(name) for name in errors]
    if any(summary.deviation for found in errors.values() for summary in found):
        keys, names = [*keys, whisker_key()], [*names, STRAYING]
    legend_below(figure, keys, names)
    return figure


def _draw_method(
    axes: Axes,
    places: NDArray[np.float64],
    found: Sequence[Summary],
    shade: NDArray[np.float64],
) -> None:
    """The points of one method, and whiskers through those whose deviation is known."""
    means = np.array([summary.mean for summary in found])
    deviations = np.array([summary.deviation or 0.0 for summary in found])
    strays = deviations > 0
    # No error is below zero, however far they stray.
    below = np.minimum(deviations, means)
    axes.errorbar(
        places[strays],
        means[strays],
        (below[strays], deviations[strays]),
        linestyle="",
        color=shade,
        elinewidth=1.3,
        capsize=4,  # wider than the point, which hides a short whisker
    )
    axes.plot(places, means, color=shade, linestyle="", marker="o", markersize=4.5, clip_on=False)


def _largest(errors: Mapping[str, Sequence[Summary]]) -> float:
    """How high the longest whisker reaches."""
    return max(
        summary.mean + (summary.deviation or 0.0) for found in errors.values() for summary in found
    )


def _frame(axes: Axes, groups: Sequence[str], largest: float) -> None:
    """The scale, and what stands below the groups."""
    top = _ROOM * max(largest, _LINEAR)
    axes.set_yscale("symlog", linthresh=_LINEAR)
    ticks = _ticks(top)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.set_ylim(0, top)
    if largest > _LINEAR:
        axes.set_ylabel(f"logarithmic from {_LINEAR:g} on", size=8, color=GREY)
    bare(axes, "left", "bottom")
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    for between in range(1, len(groups)):
        axes.axvline(between - 0.5, color=FAINT, linewidth=0.8)


def _ticks(top: float) -> list[float]:
    """Zero, a half, and 1, 2 and 5 times every power of ten as far as they are seen.

    Example:
        >>> _ticks(11.0)
        [0.0, 0.5, 1.0, 2.0, 5.0, 10.0]
    """
    powers = range(int(np.log10(top)) + 1)
    steps = [float(step * 10**power) for power in powers for step in (1, 2, 5)]
    return [0.0, 0.5 * _LINEAR, *(step for step in steps if step <= top)]
