"""The data of a run's figures, ``arrays.npz`` in its folder.

A run describes its figures with :func:`pack_figures`. Their kinds are functions of
:mod:`drpm.report.plots`: ``grid`` of images (R, C, H, W) or (R, C, channels, H, W), ``matrix`` of
numbers (R, C), groups of ``bars`` (G, B), and ``lines`` (L, P) over epochs. An array is called
``KIND__NAME``; names along its two dimensions, ``title__NAME`` and ``about__NAME`` go with it.

A clustering stores other arrays, from which :func:`figure_specs` makes its figures: ``samples``
(K, m, *shape) of each cluster, ``partition_points`` of one sampled partition,
``latent`` (N, 2) points in the plane, ``confusion`` (L, K) and ``sizes`` (K,).
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drpm.training.errors import RunError
from drpm.training.runs import ARRAYS

# The most that a page has room for.
MAX_BARS: Final = 40
MAX_LINES: Final = 200

# For each kind, the keys of the names along its first and second dimension.
_NAMES: Final = {
    "grid": ("grid_rows", "grid_columns"),
    "matrix": ("matrix_rows", "matrix_columns"),
    "bars": ("bars_groups", "bars_names"),
    "lines": ("lines_names", "lines_epochs"),
}

Arrays = Mapping[str, NDArray[Any]]


class FigureSpec(NamedTuple):
    """A figure: the function that draws it, and names along both dimensions of its values."""

    kind: str
    name: str
    values: Any
    rows: Sequence[str]
    columns: Sequence[str]
    title: str
    about: str = ""


def pack_arrays(arrays: Arrays) -> bytes:
    """The content of an ``arrays.npz``."""
    buffer = io.BytesIO()
    named: Any = arrays  # numpy's signature has an option among the names of arrays
    np.savez_compressed(buffer, **named)
    return buffer.getvalue()


def pack_figures(specs: Iterable[FigureSpec]) -> bytes:
    """The content of an ``arrays.npz`` with figures that a run describes."""
    arrays: dict[str, NDArray[Any]] = {}
    for kind, name, values, rows, columns, title, about in specs:
        names = dict(zip(_NAMES[kind], (rows, columns), strict=True))
        parts = {kind: values, **names, "title": title, "about": about}
        arrays |= {f"{part}__{name}": np.array(x) for part, x in parts.items() if len(x)}
    return pack_arrays(arrays)


def read_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a run's folder; nothing where there is no file.

    Raises:
        RunError: If the file is damaged. Nothing is unpickled.
    """
    path = folder / ARRAYS
    if not path.exists():
        return {}
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:
        # A damaged archive fails in as many ways as it has layers.
        raise RunError(f"The file {path} cannot be read as an archive of plain arrays.") from error


def figure_specs(arrays: Arrays) -> list[FigureSpec]:
    """The figures of a run, in the order of the page."""
    specs = list(_cluster_specs(arrays))
    for key, values in arrays.items():
        kind, _, name = key.partition("__")
        if name and kind in _NAMES:
            rows, columns = (_names(arrays, f"{part}__{name}") for part in _NAMES[kind])
            title, about = str(arrays.get(f"title__{name}", name)), arrays.get(f"about__{name}", "")
            specs.append(FigureSpec(kind, name, values, rows, columns, title, str(about)))
    return specs


def _names(arrays: Arrays, key: str, count: int = 0) -> tuple[str, ...]:
    return tuple(map(str, arrays.get(key, range(count))))


def _cluster_specs(arrays: Arrays) -> Iterator[FigureSpec]:
    """The figures of a clustering."""
    points = arrays.get("samples", np.empty(0))
    clusters = [f"cluster {index}" for index in range(len(points))]
    if points.ndim > 3:
        title = "Generated images, one row for each cluster"
        yield FigureSpec("grid", "samples", points, clusters, (), title)
    elif points.ndim == 3:
        columns, title = _names(arrays, "column_names", points.shape[2]), "Mean generated rows"
        if "num_columns" in arrays:
            title += f" ({len(columns)} of {arrays['num_columns']:,} columns)"
        yield FigureSpec("profiles", "samples", points.mean(1), clusters, columns, title)
    if (points := arrays.get("partition_points", np.empty(0))).ndim > 2:
        members = [points[arrays["partition_clusters"] == i] for i in range(len(arrays["samples"]))]
        names = [f"cluster {index} ({len(own)})" for index, own in enumerate(members)]
        title = f"One sampled partition of {len(points):,} points (sizes in parentheses)"
        yield FigureSpec("grid", "partition", [own[:32] for own in members], names, (), title)
    if "sizes" in arrays:
        points, sizes, order = arrays["latent"], arrays["sizes"], np.arange(len(arrays["sizes"]))
        if (counts := arrays.get("confusion")) is not None:
            # By the label that a cluster has most: its color is often that of the label.
            order = np.argsort(counts.argmax(0), kind="stable")
            labels, title = _names(arrays, "label_names"), f"Latent space, {len(points):,} points"
            grouped = np.column_stack((points, arrays["latent_labels"]))
            yield FigureSpec("scatter", "labels", grouped, labels, (), f"{title} by label")
            shares = counts[:, order] / np.maximum(counts.sum(1, keepdims=True), 1)
            title = "Fraction of each class (row) in each cluster (column)"
            yield FigureSpec("matrix", "confusion", shares, labels, [*map(str, order)], title)
        clusters = [str(index) for index in order]
        title = f"Latent space, {len(points):,} points by cluster"
        grouped = np.column_stack((points, np.argsort(order)[arrays["latent_clusters"]]))
        yield FigureSpec("scatter", "latent", grouped, clusters, (), title)
        title = f"Cluster sizes, {sizes.sum():,} points in total"
        yield FigureSpec("bars", "sizes", sizes[order, None], clusters, (), title)
