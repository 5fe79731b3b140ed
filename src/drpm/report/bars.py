"""How many points each cluster holds, as bars."""

from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drpm.report.style import INK, WIDTH, bare, colours, new_figure, number, title

_MAX_WRITTEN: Final = 25  # bars whose counts fit above them


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
