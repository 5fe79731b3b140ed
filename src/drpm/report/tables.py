"""Pictures of generated rows of a table: the columns of each cluster, the rows of a partition."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    title,
)

_MAX_PANELS: Final = 24  # columns that get a panel each; more become a heat map
_MAX_CLUSTERS: Final = 30  # that fit one below the other in a panel
_MAX_NAMED: Final = 40  # columns whose names fit under a heat map
_DEVIATIONS: Final = 2.5  # where the colours of a heat map end


def draw_row_samples(
    samples: NDArray[Any], columns: Sequence[str], whole: int | None = None
) -> Figure:
    """How each column is distributed in each cluster; samples (K, m, d).

    Arguments:
        samples: Generated rows of every cluster.
        columns: The names of the d columns.
        whole: How many columns there are, where these are chosen from them.
    """
    num_clusters, _, num_columns = samples.shape
    if num_columns <= _MAX_PANELS and num_clusters <= _MAX_CLUSTERS:
        return _intervals(samples.astype(np.float64), columns)
    return _means(samples.astype(np.float64), columns, whole)


def draw_row_partition(
    points: NDArray[Any], clusters: NDArray[Any], num_clusters: int, columns: Sequence[str]
) -> Figure:
    """The sizes as a stacked bar, beside it the rows as lines of colour, cluster by cluster."""
    order = np.argsort(clusters, kind="stable")
    sizes = np.bincount(clusters, minlength=num_clusters)
    width = min(WIDTH, 4.2 + 0.5 * len(columns))
    figure = new_figure(width, 5.0 + _room(columns))
    bar, rows = figure.subplots(1, 2, width_ratios=(0.05, 1), sharey=True)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    bar.bar(np.zeros(num_clusters), sizes, 1.0, bottom=starts[:-1], color=colours(num_clusters))
    bare(bar)
    bar.margins(0)
    bar.set_xticks([])
    bar.tick_params(length=0)
    middles, named = _readable(starts, sizes, places=30)
    bar.set_yticks(middles, [f"cluster {index} ({sizes[index]:,})" for index in named])
    bar.tick_params(labelleft=True)
    _heat_map(figure, rows, _standardised(points.astype(np.float64))[order], columns)
    rows.images[0].set_extent((-0.5, len(columns) - 0.5, len(points), 0))
    rows.tick_params(labelleft=False, left=False)
    rows.hlines(starts[1:-1], -0.5, len(columns) - 0.5, color="white", linewidth=1)
    bar.hlines(starts[1:-1], -0.5, 0.5, color="white", linewidth=1)
    bar.set_ylim(len(points), 0)
    title(figure, f"One sampled partition of {len(points):,} points (sizes in brackets)")
    return figure


def _intervals(samples: NDArray[np.float64], columns: Sequence[str]) -> Figure:
    """One panel for each column: median, middle half and middle nine tenths of each cluster."""
    num_clusters, num_columns = len(samples), len(columns)
    across = min(num_columns, 4)
    down = -(-num_columns // across)
    each = 0.7 + 0.17 * max(num_clusters, 3)
    width = max(1.3 + 1.95 * across, 5.5)
    figure = new_figure(width, 0.5 + down * each)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    palette = colours(num_clusters)
    places = np.arange(num_clusters)
    for index, axes in enumerate(grid.flat):
        if index >= num_columns:
            axes.set_visible(False)
            continue
        low, quarter, median, three, high = np.quantile(
            samples[:, :, index], (0.05, 0.25, 0.5, 0.75, 0.95), axis=1
        )
        axes.hlines(places, low, high, color=palette, linewidth=1.2)
        axes.hlines(places, quarter, three, color=palette, linewidth=4)
        axes.scatter(median, places, s=12, color="white", edgecolors=palette, zorder=3)
        bare(axes, "bottom")
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=7)
        axes.locator_params(axis="x", nbins=4)
        heading(axes, label(columns[index], 24))
    # Shared by all panels, so set once: the first cluster is on top.
    grid[0, 0].set_ylim(num_clusters - 0.4, -0.6)
    grid[0, 0].set_yticks(places, [f"cluster {index}" for index in places])
    title(figure, "Generated rows: median, middle 50 % and 90 % of each column")
    return figure


def _means(samples: NDArray[np.float64], columns: Sequence[str], whole: int | None) -> Figure:
    num_clusters = len(samples)
    standardised = _standardised(samples.reshape(-1, len(columns))).reshape(samples.shape)
    height = min(1.2 + 0.2 * num_clusters, 10.0) + _room(columns)
    figure = new_figure(WIDTH, height)
    axes = figure.subplots()
    _heat_map(figure, axes, standardised.mean(1), columns)
    bare(axes)
    # As many names as there is room for, at regular distances.
    named = np.arange(0, num_clusters, -(-num_clusters // 45))
    axes.set_yticks(named, [f"cluster {index}" for index in named])
    above = "Generated rows: the mean of each column in each cluster"
    if whole is not None and whole > len(columns):
        above += f" ({len(columns)} telling columns of {whole:,})"
    title(figure, above)
    return figure


def _standardised(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns of mean zero and deviation one; a constant column is zero."""
    deviation = rows.std(0)
    result: NDArray[np.float64] = (rows - rows.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    return result


def _heat_map(
    figure: Figure, axes: Axes, values: NDArray[np.float64], columns: Sequence[str]
) -> None:
    picture = axes.imshow(
        values,
        aspect="auto",
        interpolation="nearest",
        cmap="RdBu_r",
        vmin=-_DEVIATIONS,
        vmax=_DEVIATIONS,
    )
    bare(axes)
    if len(columns) <= _MAX_NAMED:
        names = [label(name) for name in columns]
        rotation = 90 if _turned(columns) else 0
        axes.set_xticks(range(len(columns)), names, rotation=rotation, size=8)
        axes.tick_params(axis="x", length=0)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(columns):,} columns", size=8, color=INK)
    scale = figure.colorbar(picture, ax=axes, pad=0.02, fraction=0.03, aspect=40, extend="both")
    scale.ax.tick_params(labelsize=7, color=GREY, labelcolor=INK, length=2)
    scale.outline.set_visible(False)
    scale.set_label("standard deviations from the column's mean", size=8, color=INK)


def _turned(columns: Sequence[str]) -> bool:
    """Whether names of columns are too long to stand side by side below a heat map."""
    return len(columns) * max(len(label(name)) for name in columns) > 80


def _room(columns: Sequence[str]) -> float:
    """Inches that names of columns need below a heat map where they are turned."""
    if len(columns) > _MAX_NAMED or not _turned(columns):
        return 0.0
    return 0.07 * max(len(label(name)) for name in columns)


def _readable(
    starts: NDArray[Any], sizes: NDArray[Any], *, places: int
) -> tuple[list[float], list[int]]:
    """The clusters whose names do not touch, large ones first, and where the names go."""
    distance = starts[-1] / places
    chosen: dict[int, float] = {}
    for index in np.argsort(-sizes, kind="stable").tolist():
        middle = float(starts[index] + sizes[index] / 2)
        if sizes[index] and all(abs(middle - other) >= distance for other in chosen.values()):
            chosen[index] = middle
    named = sorted(chosen)
    return [chosen[index] for index in named], named
