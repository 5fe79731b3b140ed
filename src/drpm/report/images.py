"""Pictures of images in rows: those of each cluster, or any in rows and columns."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from drpm.report.style import INK, RESOLUTION, WIDTH, bare, colours, label, new_figure, text_width

MAX_CLUSTERS: Final = 50  # that get a row; more make a picture nobody scrolls through
MAX_SAMPLES: Final = 32  # of a cluster, side by side
_MAX_ACROSS: Final = 32
_MAX_ROWS: Final = 3  # of one cluster in a partition

_MARGIN, _LABELS, _TITLE = 0.12, 1.05, 0.4  # inches
_MAX_CELL: Final = 0.62
_MAX_GRID_CELL: Final = 1.0  # of images that are few, as they may be in a grid
_MAX_GRID_HEIGHT: Final = 12.0


class _Mosaic(NamedTuple):
    """Blocks of images one below the other: pixels, and where each block starts and ends."""

    pixels: NDArray[np.float32]
    tops: list[int]
    bottoms: list[int]


def draw_image_samples(samples: NDArray[Any], kind: str = "Generated images") -> Figure:
    """One row of images for each cluster; samples (K, m, ...) of a kind."""
    num_clusters, num_samples = samples.shape[:2]
    shown = samples[:MAX_CLUSTERS, :MAX_SAMPLES]
    pixels = displayable(shown.reshape(-1, *samples.shape[2:]))
    blocks = pixels.reshape(*shown.shape[:2], *pixels.shape[1:])
    title = f"{kind}, one row for each cluster"
    if num_clusters > MAX_CLUSTERS:
        title += f" (the first {MAX_CLUSTERS} of {num_clusters})"
    names = [f"cluster {index}" for index in range(len(blocks))]
    across = min(num_samples, MAX_SAMPLES)
    return _draw(list(blocks), names, across, title, palette=colours(num_clusters))


def draw_image_partition(points: NDArray[Any], clusters: NDArray[Any], num_clusters: int) -> Figure:
    """The images of one partition, cluster by cluster; the length of a row is the size."""
    sizes = np.bincount(clusters, minlength=num_clusters)[:MAX_CLUSTERS]
    across = min(max(int(sizes.max()), 1), _MAX_ACROSS)
    pixels = displayable(points)
    most = _MAX_ROWS * across
    blocks, names = [], []
    for index, size in enumerate(sizes.tolist()):
        blocks.append(pixels[clusters == index][:most])
        names.append(f"cluster {index} ({size:,})")
    title = f"One sampled partition of {len(points):,} points (sizes in brackets)"
    if (sizes > most).any():
        title += f", at most {most} shown of a cluster"
    return _draw(blocks, names, across, title, palette=colours(num_clusters))


def draw_grid(
    images: NDArray[Any], rows: Sequence[str], columns: Sequence[str], above: str
) -> Figure:
    """Images in rows and columns.

    Arguments:
        images: (R, C, H, W) or (R, C, channels, H, W).
        rows: What stands beside the rows, or nothing.
        columns: What stands above the columns, or nothing.
        above: The title.
    """
    pixels = displayable(images.reshape(-1, *images.shape[2:]))
    blocks = pixels.reshape(*images.shape[:2], *pixels.shape[1:])
    num_rows, num_columns, height, width = blocks.shape[:4]
    names = [label(name) for name in rows]
    labels = text_width(names) + 2 * _MARGIN if names else _MARGIN
    cell = min(
        _MAX_GRID_CELL,
        (WIDTH - labels - _MARGIN) / num_columns,
        _MAX_GRID_HEIGHT * width / (height * num_rows),
    )
    return _draw(
        list(blocks),
        names,
        num_columns,
        label(above, 100),
        columns=[label(name) for name in columns],
        cell=cell,
        labels=labels,
    )


def displayable(images: NDArray[Any]) -> NDArray[np.float32]:
    """Images (N, H, W, 3) in [0, 1] from (N, H, W) or (N, C, H, W) in any range."""
    pixels = images.astype(np.float32)
    if images.dtype == np.uint8:
        pixels /= 255
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    low, high = float(pixels.min()), float(pixels.max())
    # Only what lies outside is stretched: a dark image in the usual range is meant to be dark.
    if low < -1e-3 or high > 1 + 1e-3:
        pixels = (pixels - low) / ((high - low) or 1.0)
    pixels = np.clip(pixels, 0, 1).transpose(0, 2, 3, 1)
    return np.broadcast_to(pixels, (*pixels.shape[:3], 3))


def _draw(
    blocks: Sequence[NDArray[np.float32]],
    names: Sequence[str],
    across: int,
    title: str,
    *,
    palette: NDArray[np.float64] | None = None,
    columns: Sequence[str] = (),
    cell: float | None = None,
    labels: float = _LABELS,
) -> Figure:
    """Blocks of images one below the other.

    Arguments:
        blocks: The images (m, H, W, 3) of each block.
        names: What stands beside the blocks, or nothing.
        across: How many images stand side by side.
        title: What stands above.
        palette: A colour for each block, drawn between name and images.
        columns: What stands above the images of the first row, or nothing.
        cell: Inches that each image is wide, where it is not all the room there is.
        labels: Inches to the left of the images.
    """
    if cell is None:
        cell = min(_MAX_CELL, (WIDTH - labels - _MARGIN) / across)
    blocks = [_shrunk(block, round(cell * RESOLUTION)) for block in blocks]
    mosaic = _compose(blocks, across)
    height, width = mosaic.pixels.shape[:2]
    inches = cell * across / width  # for each pixel of the mosaic
    picture_width, picture_height = width * inches, height * inches
    # Wide enough for the title, however narrow the picture is.
    full_width = max(labels + picture_width + _MARGIN, 0.075 * len(title) + 2 * _MARGIN)
    turned = text_width(columns) > 0.95 * cell
    heads = (text_width(columns) if turned else 0.15) + 0.05 if columns else 0.0
    full_height = _TITLE + heads + picture_height + _MARGIN
    figure = new_figure(full_width, full_height, layout=None)
    axes = figure.add_axes(
        (
            labels / full_width,
            _MARGIN / full_height,
            picture_width / full_width,
            picture_height / full_height,
        )
    )
    enlarged = inches * RESOLUTION >= 1.5
    axes.imshow(
        mosaic.pixels, aspect="auto", interpolation="nearest" if enlarged else "antialiased"
    )
    bare(axes)
    axes.tick_params(length=0, pad=4 if palette is None else 9)
    axes.tick_params(axis="x", pad=3, labeltop=True, labelbottom=False)
    middles = [
        (top + bottom) / 2 - 0.5 for top, bottom in zip(mosaic.tops, mosaic.bottoms, strict=True)
    ]
    # Rows of very flat images are lower than writing is.
    size = min(8.0, max(4.0, 60 * picture_height / len(blocks)))
    axes.set_yticks(middles if names else [], names, size=size, color=INK)
    image_width = blocks[0].shape[2]
    step = (width - image_width) / max(across - 1, 1)
    centres = step * np.arange(len(columns)) + (image_width - 1) / 2
    size = min(8.0, max(4.0, 60 * cell))
    axes.set_xticks(centres, columns, size=size, color=INK, rotation=90 if turned else 0)
    if palette is not None:
        _draw_colours(axes, mosaic, palette, 1 / picture_width)
    figure.text(_MARGIN / full_width, 1 - 0.12 / full_height, title, va="top", size=10, color=INK)
    return figure


def _draw_colours(axes: Axes, mosaic: _Mosaic, palette: NDArray[np.float64], inch: float) -> None:
    """The colour that a cluster has in the other pictures, as a bar between name and images."""
    for top, bottom, colour in zip(mosaic.tops, mosaic.bottoms, palette, strict=False):
        axes.add_patch(
            Rectangle(
                (-0.09 * inch, top - 0.5),
                0.05 * inch,
                bottom - top,
                transform=axes.get_yaxis_transform(),
                color=colour,
                linewidth=0,
                clip_on=False,
            )
        )


def _shrunk(images: NDArray[np.float32], pixels: int) -> NDArray[np.float32]:
    """Images no larger than they will be drawn, by whole factors: large ones would cost time."""
    factor = images.shape[2] // max(pixels, 1)
    if factor < 2 or images.shape[1] < factor:
        return images
    height, width = images.shape[1] // factor, images.shape[2] // factor
    cut = images[:, : height * factor, : width * factor]
    split = cut.reshape(len(images), height, factor, width, factor, 3)
    small: NDArray[np.float32] = split.mean((2, 4), dtype=np.float32)
    return small


def _compose(blocks: Sequence[NDArray[np.float32]], across: int) -> _Mosaic:
    height, width = blocks[0].shape[1:3]
    gap = max(1, width // 14)
    between = 3 * gap if any(len(block) > across for block in blocks) else gap
    # A cluster without any image keeps its row, so that its emptiness is seen.
    rows = [max(1, -(-len(block) // across)) for block in blocks]
    total = sum(rows) * (height + gap) - gap * len(rows) + between * (len(rows) - 1)
    pixels = np.ones((total, across * (width + gap) - gap, 3), np.float32)
    tops, bottoms, start = [], [], 0
    for block, count in zip(blocks, rows, strict=True):
        for index, image in enumerate(block):
            row, column = divmod(index, across)
            top, left = start + row * (height + gap), column * (width + gap)
            pixels[top : top + height, left : left + width] = image
        tops.append(start)
        bottoms.append(start + count * (height + gap) - gap)
        start = bottoms[-1] + between
    return _Mosaic(pixels, tops, bottoms)
