"""How labels and clusters go together: the matrix of counts, its columns in matching order."""

from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from drpm.report.arrays import Arrays
from drpm.report.style import INK, bare, label, new_figure, number, title, title_width

_CELL: Final = 0.46  # inches, where there are few
_MAX_SIDE: Final = 8.0
_MIN_WRITTEN: Final = 0.3  # the smallest cell that a count fits into
_MAX_NAMED: Final = 80
_FAINT_INK: Final = "#b5b5b5"


def best_matching(counts: NDArray[Any]) -> dict[int, int]:
    """The one-to-one pairs of rows and columns with the largest total: column by row."""
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return dict(zip(rows.tolist(), columns.tolist(), strict=True))


def matching_order(counts: NDArray[Any]) -> list[int]:
    """The columns in the order of the rows they match, then those that match none."""
    matched = [column for _, column in sorted(best_matching(counts).items())]
    return matched + sorted(set(range(counts.shape[1])) - set(matched))


def draw_confusion(arrays: Arrays) -> Figure:
    """Counts of labels by clusters; the colour is the share of the label."""
    assert arrays.confusion is not None
    counts = arrays.confusion
    num_labels, num_clusters = counts.shape
    order = matching_order(counts)
    totals = counts.sum(1, keepdims=True, dtype=np.float64)
    shares = (counts / np.where(totals > 0, totals, 1.0))[:, order]
    names = [label(arrays.label_name(index)) for index in range(num_labels)]

    cell = min(_CELL, _MAX_SIDE / max(num_labels, num_clusters))
    width = 1.0 + 0.075 * max(map(len, names)) + cell * num_clusters
    above = _headline(counts)
    figure = new_figure(max(width, title_width(above)), max(cell * num_labels, 0.6) + 1.1)
    title(figure, above)
    axes = figure.subplots()
    axes.set_anchor("W")
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bare(axes)
    axes.tick_params(length=0)
    size = 8 if cell >= 0.2 else 5
    # Of very many names only some are written, at regular distances.
    across = range(0, num_clusters, -(-num_clusters // _MAX_NAMED))
    down = range(0, num_labels, -(-num_labels // _MAX_NAMED))
    axes.set_xticks(across, [str(order[index]) for index in across], size=size)
    axes.set_yticks(down, [names[index] for index in down], size=size)
    if num_clusters > 30:
        axes.tick_params(axis="x", rotation=90)
    axes.set_xlabel("cluster, in the order of the labels it matches", size=8, color=INK, loc="left")
    axes.set_ylabel("label", size=8, color=INK)
    if max(num_labels, num_clusters) <= _MAX_NAMED:
        # White lines between the cells, so that neighbours of one colour stay apart.
        axes.set_xticks(np.arange(1, num_clusters) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, num_labels) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
    if cell >= _MIN_WRITTEN:
        _write_counts(figure, counts[:, order], shares)
    return figure


def _headline(counts: NDArray[Any]) -> str:
    total = float(counts.sum(dtype=np.float64))
    if total == 0:
        return "Labels and clusters"
    agreed = sum(float(counts[pair]) for pair in best_matching(counts).items())
    return f"Labels and clusters: {agreed / total:.1%} on matching pairs"


def _write_counts(figure: Figure, counts: NDArray[Any], shares: NDArray[np.float64]) -> None:
    for (row, column), count in np.ndenumerate(counts):
        text = number(count)
        share = shares[row, column]
        # Zeros step back: the eye should find what is there.
        colour = "white" if share > 0.6 else INK if count else _FAINT_INK
        figure.axes[0].text(
            column,
            row,
            text,
            ha="center",
            va="center",
            size=7.5 if len(text) <= 5 else 6,
            color=colour,
        )
