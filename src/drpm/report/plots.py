"""Plotting functions of the figures: images, matrices, points, bars and lines.

The functions take names along the first and the second dimension of their values, or none, and a
title. :func:`grid`, :func:`matrix`, :func:`bars` and :func:`lines` draw the kinds of
:mod:`drpm.report.figure_data`.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from drpm.report.numbers import format_distinct

INK: Final = "#333333"
GREY: Final = "#8a8a8a"
FAINT: Final = "#e4e4e4"
WIDTH: Final = 9.0  # inches, the widest figure
RESOLUTION: Final = 150
MAX_COLORS: Final = 20  # more cannot be told apart

_CELL: Final = 0.46  # inches, of a matrix
_MAX_POINTS: Final = 10_000  # more points only cover each other
LEGEND: Final[dict[str, Any]] = {"fontsize": 8, "frameon": False, "labelcolor": INK}
_STRONG_FIRST: Final = (*range(0, 20, 2), *range(1, 20, 2))  # of tab20's pairs of shades


def colors(count: int) -> NDArray[np.float64]:
    """One color (red, green, blue) for each of some groups."""
    if count <= MAX_COLORS:
        chosen = colormaps["tab20"](_STRONG_FIRST[:count])
    else:
        chosen = colormaps["turbo"](np.linspace(0.05, 0.95, count))
    return np.asarray(chosen, dtype=np.float64).reshape(count, 4)[:, :3]


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure, in inches; wider if the title needs it."""
    title = clip(title, 100)
    width = max(width, 0.085 * len(title) + 0.2)
    figure = Figure(figsize=(width, height), layout="constrained")
    # Attached to the file writer directly: no window system and no global state are involved.
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, x=0.09 / width, ha="left", size=10, color=INK)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG file, the same bytes for the same figure."""
    content = BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes; the page has them in its text.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(content, format="png", dpi=RESOLUTION, metadata={"Software": None})
    return content.getvalue()


def clip(text: str, longest: int = 20) -> str:
    """A text in one line, shortened, with its dollar signs escaped."""
    text = " ".join(text.split())
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return text.replace("$", r"\$")


def text_width(texts: Iterable[str], size: float = 8) -> float:
    """Inches that the longest of some texts needs."""
    return 0.0085 * size * max(map(len, texts), default=0)


def _name_columns(axes: Axes, places: Any, names: Sequence[str], room: float) -> None:
    """Writes names at the x axis, turned where they are wider than their room in inches."""
    turn = 90 if text_width(names) > 0.95 * room else 0
    axes.set_xticks(places, names, size=min(8.0, 60 * room), rotation=turn)


def _name_height(names: Sequence[str], room: float) -> float:
    """The height of names at the x axis in inches."""
    if not names:
        return 0.0
    return text_width(names) if text_width(names) > 0.95 * room else 0.15


def strip_frame(axes: Axes, *keep: str, grid: str = "") -> None:
    """Removes the frame except for the sides to keep, and draws grid lines of an axis."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in keep)
        spine.set_color(GREY)
    axes.tick_params(labelsize=8, color=GREY, labelcolor=INK, length=2)
    if grid:
        axes.grid(axis=grid, color=FAINT, linewidth=0.6)  # type: ignore[arg-type]
        axes.set_axisbelow(True)


def grid(
    images: Sequence[NDArray[Any]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    row_colors: NDArray[np.float64] | None = None,
) -> Figure:
    """Images: for each row (C, H, W) or (C, channels, H, W); rows may differ in length."""
    lengths = [len(row) for row in images]
    across, num_rows = max(1, *lengths), len(images)
    pixels = _displayable(np.concatenate(list(images)))
    height, width = pixels.shape[1:3]
    rows, columns = [clip(name) for name in rows], [clip(name) for name in columns]
    beside = 0.3 + text_width(rows)
    cell = min(1.0, (WIDTH - beside) / across, 12 * width / (height * num_rows))
    # Large images are subsampled to about the resolution at which they are drawn.
    step = max(1, int(width / (2 * cell * RESOLUTION)))
    pixels = pixels[:, ::step, ::step]
    height, width = pixels.shape[1:3]
    gap = max(1, width // 14)
    canvas = np.ones((num_rows * (height + gap) - gap, across * (width + gap) - gap, 3), np.float32)
    for row, block in enumerate(np.split(pixels, np.cumsum(lengths)[:-1])):
        for column, image in enumerate(block):
            top, left = row * (height + gap), column * (width + gap)
            canvas[top : top + height, left : left + width] = image
    whole = 0.5 + _name_height(columns, cell) + cell * num_rows * height / width
    figure = new_figure(beside + cell * across, whole, title)
    axes = figure.subplots()
    axes.set_anchor("W")
    is_enlarged = cell * RESOLUTION >= 1.5 * width
    axes.imshow(canvas, interpolation="nearest" if is_enlarged else "antialiased")
    strip_frame(axes)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    middles = (height + gap) * np.arange(len(rows)) + (height - 1) / 2
    axes.set_yticks(middles, rows, size=min(8.0, 60 * cell * height / width))
    middles = (width + gap) * np.arange(len(columns)) + (width - 1) / 2
    _name_columns(axes, middles, columns, cell)
    if row_colors is not None:
        for text, color in zip(axes.get_yticklabels(), row_colors, strict=False):
            text.set(color=tuple(color), weight="bold")
    return figure


def _displayable(images: NDArray[Any]) -> NDArray[np.float32]:
    """Images (N, H, W, 3) in [0, 1] from (N, H, W) or (N, C, H, W) in any range."""
    pixels = images.astype(np.float32) / (255 if images.dtype == np.uint8 else 1)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    low, high = float(pixels.min(initial=0)), float(pixels.max(initial=1))
    if low < -1e-3 or high > 1 + 1e-3:
        pixels = (pixels - low) / (high - low)
    pixels = np.clip(pixels, 0, 1).transpose(0, 2, 3, 1)
    return np.broadcast_to(pixels, (*pixels.shape[:3], 3))


def matrix(
    values: NDArray[Any],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    texts: NDArray[Any] | None = None,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """A heat map of values (R, C), with a color bar where texts do not fit into its cells.

    The cells have the values as their texts by default, and none with an empty array. The color
    map reaches from the smallest to the largest value, or between the given limits.
    """
    num_rows, num_columns = values.shape
    values = values.astype(np.float64)
    if texts is None:
        texts = np.reshape(format_distinct(values.ravel().tolist()), values.shape)
    rows, columns = [clip(name) for name in rows], [clip(name) for name in columns]
    beside, heading = 0.4 + text_width(rows), text_width(columns) / 0.95
    height = min(_CELL, 8 / num_rows)
    needed = text_width(texts.flat, 7.5) + 0.06
    wanted = max(_CELL, needed, heading if heading <= 0.9 else 0)
    width = min(wanted, (WIDTH - beside - 0.6) / num_columns)
    is_written = texts.size > 0 and height >= 0.18 and width >= needed
    if not is_written:
        width = min(width, _CELL)
        height = min(height, max(width, 1 / num_rows, 0.12 if rows else 0))
    whole = max(height * num_rows, 0.6 if is_written else 1) + _name_height(columns, width) + 0.6
    figure = new_figure(beside + width * num_columns + 0.6 * (not is_written), whole, title)
    axes = figure.subplots()
    axes.set_anchor("W")
    low, high = limits or (float(values.min()), float(values.max()))
    if low < 0 < high:
        low, high = -max(-low, high), max(-low, high)
    picture = axes.imshow(
        values,
        cmap="RdBu_r" if low < 0 < high else "Blues",
        vmin=low,
        vmax=high,
        interpolation="nearest",
        aspect=height / width,
    )
    strip_frame(axes)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    room = height * num_rows / max(1, len(rows) - rows.count(""))
    axes.set_yticks(range(len(rows)), rows, size=min(8.0, max(5.0, 60 * room)))
    _name_columns(axes, range(len(columns)), columns, width)
    if is_written:
        for (row, column), text in np.ndenumerate(texts):
            red, green, blue = picture.to_rgba(values[row, column])[:3]
            is_dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.55
            color = "white" if is_dark else INK if values[row, column] else "#b5b5b5"
            axes.text(column, row, str(text), ha="center", va="center", size=7.5, color=color)
    else:
        scale = figure.colorbar(picture, ax=axes, pad=0.02, fraction=0.03, aspect=30)
        scale.ax.tick_params(labelsize=7, color=GREY, labelcolor=INK, length=2)
        scale.outline.set_visible(False)
    return figure


def bars(
    values: NDArray[Any],
    groups: Sequence[str],
    names: Sequence[str],
    title: str,
    group_colors: NDArray[np.float64] | None = None,
) -> Figure:
    """Groups of bars (G, B), with one color for each group where ``group_colors`` are given.

    Bars with the name ``accuracy`` are drawn on an axis up to 1.
    """
    num_groups, num_bars = values.shape
    texts = np.reshape(format_distinct(values.ravel().tolist()), values.shape)
    needed = text_width(texts.flat, 7.5)
    groups, names = [clip(name) for name in groups], [clip(name) for name in names]
    width = max(min(WIDTH, 1.2 + num_groups * (0.3 + num_bars * max(0.25, needed))), 4.2)
    each = (width - 0.5) / num_groups
    figure = new_figure(width, 3.0 + _name_height(groups, each), title)
    axes = figure.subplots()
    share = 0.8 / num_bars
    is_written = needed <= share * each
    for index, color in enumerate(colors(num_bars)):
        places = np.arange(num_groups) + share * (index - (num_bars - 1) / 2)
        shade: Any = color if group_colors is None else group_colors
        heights = values[:, index].astype(np.float64)
        drawn = axes.bar(places, heights, width=0.92 * share, color=shade)
        if is_written:
            axes.bar_label(drawn, texts[:, index].tolist(), size=7.5, color=INK, padding=2)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.tick_params(axis="x", length=0)
    _name_columns(axes, range(len(groups)), groups, each)
    # A single bar must not fill the figure.
    missing = max(0.0, (4 / num_bars - num_groups) / 2)
    axes.set_xlim(-0.55 - missing, num_groups - 0.45 + missing)
    axes.margins(y=0.1)
    if "accuracy" in names:
        axes.set_ylim(0, 1.1)
        axes.set_yticks(np.linspace(0, 1, 6))
    elif is_written:
        axes.set_yticks([])
    strip_frame(axes, "left", grid="y")
    axes.spines["left"].set_visible(bool(len(axes.get_yticks())))
    if len(names) > 1:
        handles: Any = axes.containers
        figure.legend(handles, names, loc="outside lower left", ncols=num_bars, **LEGEND)
    return figure


def lines(values: NDArray[Any], names: Sequence[str], epochs: Sequence[str], title: str) -> Figure:
    """Lines (L, P) over epochs: few in their own colors, many in shades from first to last."""
    count, places = values.shape
    names = [clip(name) for name in names] or [str(index) for index in range(count)]
    figure = new_figure(7.5, 3.4, title)
    axes = figure.subplots()
    x = [float(epoch) for epoch in epochs] or range(1, places + 1)
    is_few = count <= 10
    shades = colors(count) if is_few else colormaps["viridis"](np.linspace(0, 0.93, count))
    marker = "o" if places <= 25 and is_few else None
    for line, shade in zip(values.astype(np.float64), shades, strict=True):
        axes.plot(x, line, color=shade, linewidth=1.2, marker=marker, markersize=2.5)
    strip_frame(axes, "left", "bottom", grid="both")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("epoch", size=8, color=INK)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low >= 0:
        axes.set_ylim(0, 1.08 * high if high > 1 else 1)
    shown = range(count) if is_few else np.linspace(0, count - 1, 6).round().astype(int).tolist()
    handles, labels = [axes.lines[i] for i in shown], [names[i] for i in shown]
    figure.legend(handles, labels, loc="outside right upper", **LEGEND)
    return figure


def scatter(
    points: NDArray[Any],
    panels: Mapping[str, tuple[NDArray[Any], NDArray[np.float64], Sequence[str]]],
    title: str,
) -> Figure:
    """Points (N, 2) in the plane, one panel for each way to group them.

    A panel has the groups (N,) of the points, -1 for none, and the colors and names of the groups.
    """
    # In a random but fixed order, so that no group lies on top because it comes last.
    order = np.random.default_rng(0).permutation(len(points))[:_MAX_POINTS]
    width = WIDTH / 2 if len(panels) > 1 else 6.0
    across, up = np.ptp(points, axis=0).astype(np.float64)
    steepness = float(np.clip(up / across, 0.5, 1.2)) if across > 0 else 1.0
    figure = new_figure(len(panels) * width, 1.35 + (width - 0.3) * steepness, title)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (heading, (groups, shades, names)) in zip(grid, panels.items(), strict=True):
        axes.scatter(
            *points[order].T,
            s=float(np.clip(20_000 / max(len(order), 1), 3, 10)),
            c=np.concatenate((shades, [[0.83] * 3]))[groups[order]],  # -1 takes the last
            linewidths=0,
            alpha=0.85,
        )
        strip_frame(axes, "left", "right", "top", "bottom")
        # The units of an embedding mean nothing; equal distances must look equal.
        axes.set(xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_title(heading, loc="left", size=8.5, color=INK)
        _name_groups(axes, points, groups, names)
        if len(names) <= MAX_COLORS:
            longest = max(map(len, names), default=0)
            axes.legend(
                [Line2D([], [], linestyle="", marker="o", color=tuple(x)) for x in shades],
                [clip(name, 16) for name in names],
                markerscale=0.8,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.01),
                ncols=10 if longest <= 3 else 5 if longest <= 9 else 3,
                handlelength=0.8,
                handletextpad=0.3,
                columnspacing=0.8,
                **LEGEND,
            )
    return figure


def _name_groups(
    axes: Axes, points: NDArray[Any], groups: NDArray[Any], names: Sequence[str]
) -> None:
    """Writes each name in the middle of its group, unless another one is there already."""
    distance = 0.03 * float(np.ptp(points, axis=0).max())
    taken: list[NDArray[Any]] = []
    for index, name in enumerate(names):
        members = points[groups == index]
        if not len(members):
            continue
        # The point nearest to the middle: the middle of a group in pieces may be empty.
        offsets = members - np.median(members, axis=0)
        place = members[np.square(offsets).sum(1).argmin()]
        if all(np.abs(place - other).max() >= distance for other in taken):
            taken.append(place)
            outline = [withStroke(linewidth=2.5, foreground="white")]
            text = axes.text(place[0], place[1], clip(name, 12), ha="center", va="center", size=8)
            text.set(weight="bold", color=INK, path_effects=outline)


def intervals(samples: NDArray[Any], columns: Sequence[str], title: str) -> Figure:
    """Median, middle half and middle nine tenths of samples (K, m, d), a panel per column."""
    num_clusters, num_columns = len(samples), len(columns)
    across = min(num_columns, 4)
    down = -(-num_columns // across)
    height = 0.5 + down * (0.7 + 0.17 * max(num_clusters, 3))
    figure = new_figure(max(1.3 + 1.95 * across, 5.5), height, title)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    shades, places = colors(num_clusters), np.arange(num_clusters)
    for axes in grid.flat[num_columns:]:
        axes.set_visible(False)
    for index, (axes, name) in enumerate(zip(grid.flat, columns, strict=False)):
        values = samples[:, :, index].astype(np.float64)
        low, quarter, median, three, high = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95), 1)
        axes.hlines(places, low, high, color=shades, linewidth=1.2)
        axes.hlines(places, quarter, three, color=shades, linewidth=4)
        axes.scatter(median, places, s=12, color="white", edgecolors=shades, zorder=3)
        strip_frame(axes, "bottom", grid="x")
        axes.locator_params(axis="x", nbins=4)
        axes.set_title(clip(name, 24), loc="left", size=8.5, color=INK)
    grid[0, 0].set_ylim(num_clusters - 0.4, -0.6)
    grid[0, 0].set_yticks(places, [f"cluster {index}" for index in places])
    return figure
