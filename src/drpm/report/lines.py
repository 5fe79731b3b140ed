"""Numbers that change in the course of training, a line for each of them."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from drpm.report.style import FAINT, GREY, INK, bare, colours, label, new_figure, title

MAX_LINES: Final = 200
MAX_PLACES: Final = 10_000

_FEW: Final = 10  # lines that a legend can name
_FEW_PLACES: Final = 25  # that are marked, because a line between so few would tell less
_NAMED: Final = 5  # of many lines


def draw_lines(
    values: NDArray[Any], names: Sequence[str], epochs: Sequence[str], above: str
) -> Figure:
    """Lines over epochs, few of them by name, many in shades from the first to the last.

    Arguments:
        values: (L, P), the lines.
        names: What the lines are, or nothing.
        epochs: The P places as numbers, growing; from one on where there are none.
        above: The title.
    """
    count, places = values.shape
    names = [label(name) for name in names] or [str(index) for index in range(count)]
    figure = new_figure(7.5, 3.4)
    title(figure, label(above, 100))
    axes = figure.subplots()
    x = [float(epoch) for epoch in epochs] or range(1, places + 1)
    chosen = colours(count) if count <= _FEW else _shades(count)
    marker = "o" if places <= _FEW_PLACES and count <= _FEW else None
    for line, colour in zip(values.astype(np.float64), chosen, strict=True):
        width = 1.3 if count <= _FEW else 0.8
        axes.plot(x, line, color=colour, linewidth=width, marker=marker, markersize=2.5)
    _frame(axes, values)
    if count <= _FEW:
        written = {"fontsize": 8, "frameon": False, "labelcolor": INK}
        figure.legend(axes.lines, names, loc="outside right upper", **written)
    else:
        _draw_scale(axes, chosen, names)
    return figure


def _frame(axes: Axes, values: NDArray[Any]) -> None:
    """What is around lines; what is never negative starts at zero."""
    bare(axes, "left", "bottom")
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("epoch", size=8, color=INK)
    low, high = float(values.min()), float(values.max())
    if low >= 0:
        # Parts of a whole are shown with all of it, so that pictures can be compared.
        axes.set_ylim(0, 1.08 * high if high > 1 else 1)


def _shades(count: int) -> NDArray[np.float64]:
    """Colours in an order; the palest would be lost on white."""
    return np.asarray(colormaps["viridis"](np.linspace(0, 0.93, count)), dtype=np.float64)


def _draw_scale(axes: Axes, shades: NDArray[np.float64], names: Sequence[str]) -> None:
    """Which shade is whose, for some of many lines."""
    count = len(names)
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    norm = BoundaryNorm(np.arange(count + 1) - 0.5, count)
    shown = ScalarMappable(norm, ListedColormap(shades))
    bar = figure.colorbar(shown, ax=axes, pad=0.02, fraction=0.03, aspect=30)
    some = np.linspace(0, count - 1, _NAMED).round().astype(int).tolist()
    bar.set_ticks(some, labels=[names[index] for index in some])
    bar.ax.tick_params(labelsize=8, color=GREY, labelcolor=INK, length=2, which="both")
    bar.ax.minorticks_off()
    # As the names of a table stand: the first above.
    bar.ax.invert_yaxis()
    bar.outline.set_visible(False)
