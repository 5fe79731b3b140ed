"""Numbers as bars: how many points each cluster holds, or any in groups."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drpm.report.numbers import aligned, short
from drpm.report.style import (
    FAINT,
    GREY,
    INK,
    WIDTH,
    bare,
    colours,
    label,
    new_figure,
    number,
    text_width,
    title,
    title_width,
)

MAX_BARS: Final = 40  # groups that can be told apart on a page

_MAX_WRITTEN: Final = 25  # bars whose counts fit above them
_WRITING: Final = 7.5  # points, of numbers on bars in groups
_SHORT_DIGITS: Final = 3  # those that numbers of a picture have anyway
_MAX_DIGITS: Final = 6  # numbers that differ in later ones are as good as equal

# What bars of a name can reach, shown as a whole so that pictures can be compared.
_WHOLE: Final = {"accuracy": 1.0}


def draw_sizes(sizes: NDArray[Any]) -> Figure:
    """One bar for each cluster, in the colour it has everywhere."""
    count = len(sizes)
    figure = new_figure(min(WIDTH, max(4.2, 1.2 + 0.55 * count)), 2.9)
    axes = figure.subplots()
    places = np.arange(count)
    bars = axes.bar(places, sizes, width=0.75, color=colours(count))
    if count <= _MAX_WRITTEN:
        axes.bar_label(bars, [number(size) for size in sizes], size=8, color=INK, padding=2)
        axes.set_yticks([])
    bare(axes, "bottom")
    axes.tick_params(axis="x", length=0)
    step = -(-count // 30)
    axes.set_xticks(places[::step], [str(place) for place in places[::step]])
    # A single bar should not become a wall.
    missing = max(0.0, (6 - count) / 2)
    axes.set_xlim(-0.6 - missing, count - 0.4 + missing)
    axes.set_ylim(0, 1.12 * max(float(np.max(sizes)), 1.0))
    axes.set_xlabel("cluster", size=8, color=INK)
    total = number(float(np.sum(sizes, dtype=np.float64)))
    title(figure, f"Points in each cluster, {total} in all")
    return figure


def tell_apart(values: Sequence[float]) -> list[str]:
    """Numbers of one picture as texts, with the digits that their differences need.

    Arguments:
        values: The numbers.

    Example:
        >>> tell_apart([4.9981, 5.0023])
        ['4.9981', '5.0023']
        >>> tell_apart([1.9981, 5.0023])
        ['2.0', '5.0']
    """
    texts = short(values)
    if not values or not all(map(math.isfinite, values)):
        return texts
    largest, spread = max(map(abs, values)), max(values) - min(values)
    if all(float(value).is_integer() for value in values) or spread < 10**-_MAX_DIGITS * largest:
        return texts
    # Two digits of the largest difference.
    digits = 2 + math.floor(math.log10(largest)) - math.floor(math.log10(spread))
    if digits <= _SHORT_DIGITS:
        return texts
    return aligned([float(value) for value in values], min(digits, _MAX_DIGITS))


def draw_bars(
    values: NDArray[Any], groups: Sequence[str], names: Sequence[str], above: str
) -> Figure:
    """Groups of bars side by side.

    Arguments:
        values: (G, B), the bars of every group.
        groups: What stands below the groups, or nothing.
        names: What the bars of a group are, for a legend where there are several, or nothing.
        above: The title.
    """
    num_groups, num_bars = values.shape
    texts = np.reshape(tell_apart(values.ravel().tolist()), values.shape)
    whole = max((_WHOLE.get(name, 0.0) for name in names), default=0.0)
    groups, names = [label(name) for name in groups], [label(name) for name in names]
    above = label(above, 100)
    wanted = 1.2 + num_groups * (0.3 + num_bars * max(0.25, text_width(texts.flat, _WRITING)))
    width = max(min(WIDTH, wanted), 4.2, title_width(above))
    each = (width - 0.5) / num_groups  # inches for a group
    turned = text_width(groups) > 0.95 * each
    figure = new_figure(width, 3.1 + (text_width(groups) if turned else 0.0))
    axes = figure.subplots()
    places = np.arange(num_groups)
    share = 0.8 / num_bars
    written = text_width(texts.flat, _WRITING) <= share * each
    for index, colour in enumerate(colours(num_bars)):
        heights = values[:, index].astype(np.float64)
        middles = places + share * (index - (num_bars - 1) / 2)
        bars = axes.bar(middles, heights, width=0.92 * share, color=colour)
        if written:
            axes.bar_label(bars, texts[:, index].tolist(), size=_WRITING, color=INK, padding=2)
    # How much is left to the whole cannot be told from the numbers alone.
    has_axis = not written or whole > 0
    bare(axes, *(("left",) if has_axis else ()))
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.tick_params(axis="x", length=0)
    if not has_axis:
        axes.set_yticks([])
    else:
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
    axes.set_xticks(places if groups else [], groups, rotation=90 if turned else 0)
    # A single group should not become a wall.
    missing = max(0.0, (4 / num_bars - num_groups) / 2)
    axes.set_xlim(-0.55 - missing, num_groups - 0.45 + missing)
    _set_heights(axes, values, whole, written)
    if len(names) > 1:
        axes.legend(
            axes.containers,
            names,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=max(1, min(num_bars, int((width - 0.5) / (text_width(names) + 0.5)))),
            fontsize=8,
            frameon=False,
            labelcolor=INK,
            handlelength=1,
            handleheight=1,
            borderaxespad=0.2,
        )
    title(figure, above)
    return figure


def _set_heights(axes: Axes, values: NDArray[Any], whole: float, written: bool) -> None:
    """How high the picture of bars reaches.

    Arguments:
        axes: Where they are.
        values: Their heights.
        whole: What they can reach, or zero where nobody knows.
        written: Whether numbers stand above them.
    """
    low, high = min(float(values.min()), 0.0), max(float(values.max()), whole)
    room = 0.1 * ((high - low) or 1.0)
    if not 0 < whole == high:
        axes.set_ylim(low - room * (low < 0), high + room)
        return
    # Numbers may stand above, but there is nothing beyond the whole to be read off.
    axes.set_ylim(low - room * (low < 0), whole + room * written)
    axes.set_yticks(np.linspace(0, whole, 6))
    axes.spines["left"].set_bounds(low, whole)
