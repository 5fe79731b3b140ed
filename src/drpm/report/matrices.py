"""Matrices as heat maps: how labels and clusters go together, or any numbers.

The columns of labels and clusters are in matching order; those of other numbers stay as they are.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from drpm.report.arrays import Arrays
from drpm.report.numbers import short
from drpm.report.style import (
    GREY,
    INK,
    WIDTH,
    bare,
    label,
    new_figure,
    number,
    text_width,
    title,
    title_width,
)

_CELL: Final = 0.46  # inches, where there are few
_MAX_SIDE: Final = 8.0
_LOWEST: Final = 1.0  # what a scale of colours needs beside it
_NAMED: Final = 0.12  # the lowest row whose name can be read
_MIN_WRITTEN: Final = 0.3  # the smallest cell that a count fits into
_MAX_NAMED: Final = 80
_MAX_WIDENED: Final = 0.9  # the widest cell that the name above may ask for
_WRITING: Final = 7.5  # points, of numbers in cells
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
        _separate(axes, num_labels, num_clusters)
    if cell >= _MIN_WRITTEN:
        _write_counts(figure, counts[:, order], shares)
    return figure


def draw_matrix(
    values: NDArray[Any], rows: Sequence[str], columns: Sequence[str], above: str
) -> Figure:
    """Numbers as colours, written in where there is room.

    Arguments:
        values: (R, C), the numbers.
        rows: What stands beside the rows, or nothing.
        columns: What stands above the columns, or nothing.
        above: The title.
    """
    num_rows, num_columns = values.shape
    values = values.astype(np.float64)
    texts = np.reshape(short(values.ravel().tolist()), values.shape)
    rows, columns = [label(name) for name in rows], [label(name) for name in columns]
    above = label(above, 100)

    beside = 0.4 + text_width(rows)
    height = min(_CELL, _MAX_SIDE / num_rows)
    needed = text_width(texts.flat, _WRITING) + 0.06
    # Cells as wide as the names above them, unless these are too long for that.
    heading = text_width(columns) / 0.95
    needed_above = heading if heading <= _MAX_WIDENED else 0.0
    width = min(max(_CELL, needed, needed_above), (WIDTH - beside - 0.6) / num_columns)
    written = height >= 0.18 and width >= needed
    if not written:
        # Without numbers there is no need for wide cells, but for a scale.
        width = min(width, height)
        # A few rows of many columns may be higher than wide, and those with names must be.
        height = min(height, max(width, _LOWEST / num_rows, _NAMED if rows else 0.0))
        beside += 0.6
    turned = text_width(columns) > 0.85 * width
    heads = (text_width(columns) if turned else 0.15) if columns else 0.0
    figure = new_figure(
        max(beside + width * num_columns, title_width(above)),
        max(height * num_rows, 0.6 if written else _LOWEST) + heads + 0.55,
    )
    title(figure, above)
    axes = figure.subplots()
    axes.set_anchor("W")
    low, high = _ends(values)
    picture = axes.imshow(
        values,
        cmap="RdBu_r" if low < 0 < high else "Blues",
        vmin=low,
        vmax=high,
        interpolation="nearest",
        aspect=height / width,
    )
    bare(axes)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    _separate(axes, num_rows, num_columns)
    axes.set_yticks(range(len(rows)), rows, size=min(8.0, 60 * height))
    turn = 90 if turned else 0
    axes.set_xticks(range(len(columns)), columns, size=min(8.0, 60 * width), rotation=turn)
    if written:
        _write_numbers(picture, texts, values)
    else:
        scale = figure.colorbar(picture, ax=axes, pad=0.02, fraction=0.03, aspect=30)
        scale.ax.tick_params(labelsize=7, color=GREY, labelcolor=INK, length=2)
        scale.outline.set_visible(False)
    return figure


def _write_numbers(
    picture: AxesImage, texts: NDArray[np.str_], values: NDArray[np.float64]
) -> None:
    for (row, column), text in np.ndenumerate(texts):
        red, green, blue = picture.to_rgba(values[row, column])[:3]
        dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.55
        # Zeros step back here too.
        colour = "white" if dark else INK if values[row, column] else _FAINT_INK
        picture.axes.text(
            column, row, str(text), ha="center", va="center", size=_WRITING, color=colour
        )


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """The numbers at the ends of the colours; zero is in the middle where signs differ."""
    low, high = float(values.min()), float(values.max())
    if low < 0 < high:
        high = max(-low, high)
        return -high, high
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def _separate(axes: Axes, num_rows: int, num_columns: int) -> None:
    """White lines between the cells, so that neighbours of one colour stay apart."""
    axes.set_xticks(np.arange(1, num_columns) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, num_rows) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)


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
