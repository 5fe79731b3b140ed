"""Figures of a run: their data, ``arrays.npz`` in its folder, and functions to draw them.

Runs store figures with :func:`pack_figures`: the values in an array ``KIND__NAME``, the names along
its two dimensions, ``title__NAME`` and ``about__NAME``.

A clustering stores other arrays: ``samples`` (K, m, *shape) of each cluster, ``partition_points``
of one sampled partition, ``latent`` (N, 2) points in the plane, ``confusion`` (L, K), ``sizes``
(K,), and ``choice`` (4, C) of numbers of clusters and three criteria. The page also uses
``examples`` (M, *shape), the first of these points as images or rows, and for tables
``column_means`` (K, D) of the clusters and ``column_deviations`` (D,) of the data.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drpm.training.errors import RunError
from drpm.training.runs import ARRAYS

# For each kind, the keys of the names along its first and second dimension.
_NAMES: Final = {
    "grid": ("grid_rows", "grid_columns"),
    "matrix": ("matrix_rows", "matrix_columns"),
    "bars": ("bars_groups", "bars_names"),
    "lines": ("lines_names", "lines_epochs"),
}

Arrays = Mapping[str, NDArray[Any]]

NARROW: Final = 5.0  # inches, of figures in documents, readable on phones

# The first ten are color-blind safe (https://arxiv.org/abs/2107.02270).
COLORS: Final = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300"),
    *("#b9ac70", "#717581", "#92dadd", "#1f486d", "#805507", "#5f1001", "#4a5251"),
    *("#42175b", "#55362d", "#743200", "#5d5638", "#393b41", "#496d6f"),
)

_FEW: Final = 6  # up to this many clusters, images are in strips
_CELL: Final = 0.55  # inches, of a matrix
_CHARACTER: Final = 0.078  # inches, the width of a character
_MAX_NAMES: Final = 20  # of a legend
_MARKERS: Final = "osD^vPX*<>"
_STYLE: Final[Any] = {
    **dict.fromkeys(("text.color", "xtick.labelcolor", "ytick.labelcolor"), "#333333"),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), "#8a8a8a"),
    **dict.fromkeys(("font.size", "axes.titlesize", "figure.titlesize"), 9.5),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "text.parse_math": False,
}


class FigureSpec(NamedTuple):
    """A figure: the kind, which selects the drawing function, its values and their names."""

    kind: str
    name: str
    values: Any
    rows: Sequence[str]
    columns: Sequence[str]
    title: str
    about: str = ""
    width: float = 9.0  # inches, without the names of the rows


def pack_arrays(arrays: Mapping[str, Any]) -> bytes:
    """The content of an ``arrays.npz``."""
    buffer = BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def pack_figures(specs: Iterable[FigureSpec]) -> bytes:
    """The content of an ``arrays.npz`` with figures."""
    arrays: dict[str, NDArray[Any]] = {}
    for kind, name, values, rows, columns, title, about, _ in specs:
        names = dict(zip(_NAMES[kind], (rows, columns), strict=True))
        parts = {kind: values, **names, "title": title, "about": about}
        arrays |= {f"{part}__{name}": np.array(x) for part, x in parts.items() if len(x)}
    return pack_arrays(arrays)


def image_bytes(images: Any) -> NDArray[np.uint8]:
    """Images (..., C, H, W) with values in [0, 1] as bytes, without a single channel."""
    pixels: NDArray[np.uint8] = (255 * images.clamp(0, 1)).round().byte().cpu().numpy()
    return pixels.squeeze(-3) if pixels.shape[-3] == 1 else pixels


def read_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a run's folder, without pickle; empty if there is no file."""
    path = folder / ARRAYS
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except FileNotFoundError:
        return {}
    except Exception as error:
        # A damaged archive fails in as many ways as it has layers.
        raise RunError(f"The file {path} cannot be read as an archive of plain arrays.") from error


def figure_specs(arrays: Arrays) -> list[FigureSpec]:
    """The figures of a run, in the order of the page."""
    specs = [*map(_in_strips, _cluster_specs(arrays))]
    for key, values in arrays.items():
        kind, _, name = key.partition("__")
        if name and kind in _NAMES:
            rows, columns = (names_of(arrays, f"{part}__{name}") for part in _NAMES[kind])
            title, about = (str(arrays.get(f"{x}__{name}", "")) for x in ("title", "about"))
            specs.append(FigureSpec(kind, name, values, rows, columns, title, about))
    return specs


def names_of(arrays: Arrays, key: str, count: int = 0) -> tuple[str, ...]:
    """Names stored by a run, without control characters; by default numbers."""
    names = map(str, arrays.get(key, range(count)))
    return tuple("".join(filter(str.isprintable, name)) for name in names)


def _in_strips(spec: FigureSpec) -> FigureSpec:
    """Split few rows of images into strips of 16, to be readable on phones."""
    if spec.kind != "grid" or len(spec.rows) > _FEW:
        return spec
    strips = [np.split(row, range(16, len(row), 16)) for row in spec.values]
    pairs = zip(spec.rows, strips, strict=True)
    names = [x for name, some in pairs for x in (name, *[""] * (len(some) - 1))]
    return spec._replace(values=[x for some in strips for x in some], rows=names)


def _cluster_specs(arrays: Arrays) -> Iterator[FigureSpec]:
    """The figures of a clustering."""
    if "choice" in arrays:
        clusters, *figures = arrays["choice"]
        named = zip(names_of(arrays, "choice_names"), figures, strict=True)
        panels = {name: [Series("", clusters, figure)] for name, figure in named}
        title = f"Choice of {arrays['choice_taken']} clusters"
        yield FigureSpec("curves", "choice", panels, (), (), title)
    points = arrays.get("samples", np.empty(0))
    clusters = [f"cluster {index}" for index in range(len(points))]
    if points.ndim > 3:
        title = "Generated images of each cluster"
        if len(clusters) > _FEW:
            title = "Generated images, one row for each cluster"
        yield FigureSpec("grid", "samples", points, clusters, (), title)
        points, members = arrays["partition_points"], arrays["partition_clusters"]
        own = [points[members == index] for index in range(len(clusters))]
        names = [f"{name} ({len(each)})" for name, each in zip(clusters, own, strict=True)]
        title = f"A sampled partition of {len(points):,} points (with sizes)"
        yield FigureSpec("grid", "partition", [each[:32] for each in own], names, (), title)
    elif points.ndim == 3:
        columns, title = names_of(arrays, "column_names", points.shape[2]), "Mean generated rows"
        if "num_columns" in arrays:
            title += f" ({len(columns)} of {arrays['num_columns']:,} columns)"
        yield FigureSpec("profiles", "samples", points.mean(1), clusters, columns, title)
    if "sizes" in arrays:
        sizes, counts = arrays["sizes"], arrays.get("confusion")
        order = np.arange(len(sizes))
        if counts is not None:
            # Sort clusters by their most common label.
            order = np.argsort(counts.argmax(0), kind="stable")
            shares = counts[:, order] / np.maximum(counts.sum(1, keepdims=True), 1)
            labels = names_of(arrays, "label_names")
            title = "Fraction of each class (row) in each cluster (column)"
            yield FigureSpec("matrix", "confusion", shares, labels, [*map(str, order)], title)
        title = f"Cluster sizes, {sizes.sum():,} points in total"
        yield FigureSpec("bars", "sizes", sizes[order, None], [*map(str, order)], (), title)


class Series(NamedTuple):
    """Means and deviations over seeds at positions ``x``, all of shape (P,)."""

    name: str
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64] | float = 0.0


def png(figure: Figure) -> bytes:
    """The figure as a PNG file, reproducible to the byte."""
    content = BytesIO()
    with warnings.catch_warnings():
        # Characters missing from the font are drawn as boxes; they are also in the page's text.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(content, dpi=150, bbox_inches="tight", metadata={"Software": None})
    return content.getvalue()


def draw(spec: FigureSpec) -> Figure:
    """Draw a figure."""
    with rc_context(_STYLE):
        figure: Figure = globals()[f"_draw_{spec.kind}"](spec)
    return figure


def draw_stored(run: str, name: str, results: Path, images: int | None = None) -> Figure:
    """Draw a narrow figure of a run in a folder of results, with at most ``images`` per row."""
    (spec,) = (x for x in figure_specs(read_arrays(results / run)) if x.name == name)
    values = spec.values if images is None else [row[:images] for row in spec.values]
    columns = spec.columns if len(spec.columns) <= _MAX_NAMES else ()
    width = NARROW - _CHARACTER * max(map(len, spec.rows), default=0)
    return draw(spec._replace(values=values, columns=columns, width=width))


def _one_axes(spec: FigureSpec, width: float, height: float) -> tuple[Figure, Axes]:
    """Axes of a size in inches; :func:`png` adds space for names and title."""
    figure, frameon = Figure(figsize=(width, height)), spec.kind == "bars"
    axes = figure.add_axes((0, 0, 1, 1), title=fill(spec.title, 52), frameon=frameon)
    axes.tick_params(length=2 * frameon, labeltop=not frameon, labelbottom=frameon)
    return figure, axes


def _set_names(axis: Axis, places: NDArray[Any], names: Sequence[str], room: float) -> None:
    """Set tick labels; those of columns are rotated if they are wider than ``room`` in inches."""
    clipped = [name if len(name) <= 20 else f"{name[:19]}…" for name in names]
    is_turned = isinstance(axis, XAxis) and _CHARACTER * max(map(len, names), default=0) > room
    size = min(9.5, max(3.0, 60 * room))
    axis.set_ticks(places[: len(names)], clipped, size=size, rotation=90 if is_turned else 0)


def to_pixels(images: NDArray[Any]) -> NDArray[Any]:
    """Images (N, H, W) or (N, channels, H, W) as (N, H, W, channels) with values in [0, 1]."""
    pixels = images.astype(np.float32) / (255 if images.dtype == np.uint8 else 1)
    low, high = float(pixels.min(initial=0)), float(pixels.max(initial=1))
    pixels = (pixels - low) / (high - low)
    return pixels[..., None] if pixels.ndim == 3 else np.moveaxis(pixels, 1, 3)


def tile(rows: Sequence[NDArray[Any]], gap: int = 0) -> NDArray[Any]:
    """Tile rows of images (C, H, W, channels) to one image; rows may differ in length."""
    across, (height, width, channels) = max(1, *map(len, rows)), rows[0].shape[1:]
    canvas = np.ones((len(rows), height + gap, across, width + gap, channels), np.float32)
    for place, row in zip(canvas, rows, strict=True):
        place[:height, : len(row), :width] = row.transpose(1, 0, 2, 3)
    canvas = canvas.reshape(len(rows) * (height + gap), -1, channels)
    return canvas[: len(canvas) - gap, : canvas.shape[1] - gap]


def _draw_grid(spec: FigureSpec) -> Figure:
    """Rows of images (C, H, W) or (C, channels, H, W); rows may differ in length."""
    pixels = to_pixels(np.concatenate(list(spec.values)))
    lengths = [len(row) for row in spec.values]
    across, down, (height, width) = max(1, *lengths), len(lengths), pixels.shape[1:3]
    gap = max(1, width // 14)
    canvas = tile(np.split(pixels, np.cumsum(lengths)[:-1]), gap)
    cell = min(1.0, spec.width / across, 12 * width / (height * down))
    figure, axes = _one_axes(spec, cell * across, cell * len(canvas) / (width + gap))
    method = "nearest" if 150 * cell >= width else "antialiased"
    axes.imshow(canvas.repeat(3 // canvas.shape[-1], -1), aspect="auto", interpolation=method)
    middles = (height + gap) * np.arange(down) + (height - 1) / 2
    _set_names(axes.yaxis, middles, spec.rows, cell * height / width)
    middles = (width + gap) * np.arange(across) + (width - 1) / 2
    _set_names(axes.xaxis, middles, spec.columns, cell)
    return figure


def _draw_matrix(spec: FigureSpec, texts: NDArray[Any] | None = None) -> Figure:
    """A heat map of values (R, C), with texts in its cells (the values by default) if they fit."""
    (down, across), values = spec.values.shape, spec.values.astype(np.float64)
    width, height = min(_CELL, spec.width / across), min(_CELL, 8 / down)
    figure, axes = _one_axes(spec, width * across, height * down)
    most = float(np.abs(values).max())
    shades, low = ("RdBu_r", -most) if values.min() < 0 else ("Blues", 0.0)
    picture = axes.imshow(values, shades, aspect="auto", vmin=low, vmax=most)
    _set_names(axes.yaxis, np.arange(down), spec.rows, height)
    _set_names(axes.xaxis, np.arange(across), spec.columns, width)
    if max(down, across) > _MAX_NAMES:
        bar = axes.inset_axes((0, -0.3 / (height * down), 1, 0.15 / (height * down)))
        figure.colorbar(picture, cax=bar, orientation="horizontal")
        return figure
    for (row, column), text in np.ndenumerate(_texts(values) if texts is None else texts):
        color = "white" if abs(values[row, column]) > 0.6 * most else "#333333"
        axes.text(column, row, text, ha="center", va="center", color=color, size=7)
    return figure


def _draw_profiles(spec: FigureSpec) -> Figure:
    """A matrix whose columns have different units; colors are scaled by column."""
    values, spread = spec.values, spec.values.std(0)
    scaled = (values - values.mean(0)) / np.where(spread > 0, spread, 1)
    return _draw_matrix(spec._replace(values=scaled), _texts(values))


def _draw_bars(spec: FigureSpec) -> Figure:
    """A bar for each row of values (G, 1)."""
    (values,) = spec.values.T
    places, width = np.arange(len(values)), min(spec.width, max(4.0, 0.7 * len(values)))
    figure, axes = _one_axes(spec, width, 2.5)
    axes.margins(y=0.1)
    axes.grid(axis="y")
    bars = axes.bar(places, values.astype(np.float64), 0.92 * 0.8, color=COLORS[0])
    if len(values) <= _MAX_NAMES:
        axes.bar_label(bars, _texts(values).tolist(), padding=2)
    _set_names(axes.xaxis, places, spec.rows, width / len(values))
    return figure


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    is_whole = (values == np.round(values)).all()
    cells = values.astype(np.int64 if is_whole else np.float64).ravel().tolist()
    return np.reshape([format_value(value, digits=3) for value in cells], values.shape)


def _draw_lines(spec: FigureSpec) -> Figure:
    """Lines (L, P) over epochs."""
    x, named = np.array(spec.columns, np.float64), zip(spec.rows, spec.values, strict=True)
    series = [Series(name, x, line) for name, line in named]
    return series_panels({"": series}, "epoch", spec.title, width=spec.width, height=3.0)


def _draw_curves(spec: FigureSpec) -> Figure:
    """Panels of series."""
    return series_panels(spec.values, "", spec.title, width=spec.width, height=1.8)


@rc_context(_STYLE)
def series_panels(
    panels: Mapping[str, Sequence[Series]],
    xlabel: str,
    title: str,
    ylabel: str = "",
    *,
    width: float = NARROW,
    height: float = 2.6,
    is_line: bool = True,
) -> Figure:
    """Panels of series: lines, or points side by side, with error bars of one deviation.

    Names have the same style in all panels; the first panel has all names. ``height`` is that of a
    panel.
    """
    columns = min(len(panels), int(width / 3))  # a panel has 3 inches or more
    down = -(-len(panels) // columns)
    figure = Figure(figsize=(width, 0.8 + height * down), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    names = list(dict.fromkeys(series.name for each in panels.values() for series in each))
    for index, (heading, found) in enumerate(panels.items()):
        axes = figure.add_subplot(down, columns, index + 1, title=heading)
        for name, x, mean, deviation in found:
            room = 0.0 if is_line else 0.8 * np.ptp(x) / max(6, len(x)) / len(names)
            number = names.index(name)
            shift, color = room * (number - (len(names) - 1) / 2), COLORS[number % len(COLORS)]
            every = -(-len(x) // 25) if is_line else 1  # distance of marked points
            style = "-" if len(names) == 1 < every else _MARKERS[number % 10] + "-" * is_line
            line: Any = {"fmt": style, "markersize": 3.5, "elinewidth": 0.8, "label": name}
            axes.errorbar(x + shift, mean, deviation, color=color, markevery=every, **line)
        axes.grid()
        is_whole = all(np.array_equal(series.x, np.round(series.x)) for series in found)
        axes.locator_params("x", integer=is_whole)  # of epochs, say
        axes.set(xlabel=xlabel if index + columns >= len(panels) else "", ylabel=ylabel)
    if len(names) > 1:
        some = slice(None, None, -(-len(names) // _MAX_NAMES))
        handles, labels = figure.axes[0].get_legend_handles_labels()
        has_bars = any(np.any(x.deviation) for x in found)
        note = "Error bars: one standard deviation over seeds" if has_bars else ""
        across = max(1, int(width / (0.6 + _CHARACTER * max(map(len, names)))))
        place: Any = {"loc": "outside lower left", "ncols": across, "alignment": "left"}
        figure.legend(handles[some], labels[some], title=note, **place)
    return figure


def format_value(value: Any, digits: int = 4) -> str:
    """Format a value of a table, numbers with ``digits`` significant digits."""
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    if value is None or value != value:
        return "—"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}"
    return f"{value:,}" if type(value) is int else str(value)
