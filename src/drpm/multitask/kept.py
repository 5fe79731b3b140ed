"""Figures of single runs, drawn from the arrays that they have kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drpm.report.exhibits import find_exhibit, read_exhibits
from drpm.report.images import draw_grid
from drpm.report.matrices import draw_matrix
from drpm.report.style import INK

# The names of what a run draws; see drpm.multitask.drawn.
_NEURONS: Final = "neurons"
_IMAGES: Final = "images"
_BY_NOISE: Final = "sizes-by-noise"
_BY_TASK: Final = "sizes-by-task"


def draw_neurons(folder: Path, above: str) -> Figure | None:
    """Which task has which neuron, the least noisy task first where noise is known.

    Args:
        folder: The folder of the run.
        above: The title.

    Returns:
        None where the run has kept nothing of it, as one whose tasks all have all neurons.
    """
    kept = {exhibit.name: exhibit for exhibit in read_exhibits(folder)}
    if (neurons := kept.get(_NEURONS)) is None:
        return None
    sizes = kept.get(_BY_NOISE) or kept.get(_BY_TASK)
    # Runs of before tasks were sorted everywhere have these bars alone in the order of the noise.
    order = _places(neurons.rows, () if sizes is None else sizes.rows)
    shares = neurons.values[order]
    columns = by_owner(shares)
    figure = draw_matrix(
        shares[:, columns],
        [neurons.rows[row] for row in order],
        [neurons.columns[column] for column in columns],
        above,
    )
    # All tasks together have all neurons, also those that there was no room for.
    count = len(columns) if sizes is None else max(len(columns), round(sizes.values.sum()))
    part = "" if count == len(columns) else f" (the first {len(columns)} of {count})"
    figure.axes[0].set_xlabel(f"neuron{part}", size=8, color=INK)
    if len(figure.axes) > 1:
        figure.axes[1].set_ylabel("part of the test images", size=8, color=INK)
    return figure


def draw_noisy_images(folder: Path, above: str) -> Figure | None:
    """The same images at growing noise ratios, which are the columns.

    Args:
        folder: The folder of the run.
        above: The title.

    Returns:
        None where the run has kept none, or those of other data.
    """
    images = find_exhibit(folder, _IMAGES)
    # Those of other data are all different, so that there is nothing to say above them.
    if images is None or not images.columns:
        return None
    return draw_grid(images.values, images.rows, images.columns, above)


def _places(rows: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where the rows of an order are, if it has all of them; they stay as they are if not."""
    if sorted(rows) != sorted(wanted):
        return list(range(len(rows)))
    return [rows.index(row) for row in wanted]


def by_owner(shares: NDArray[np.float64]) -> list[int]:
    """Neurons by the tasks that have them, and those that a task has most often first."""
    found: list[int] = np.lexsort((-shares.max(0), shares.argmax(0))).tolist()
    return found
