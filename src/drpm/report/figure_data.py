"""The data of a run's figures, ``arrays.npz`` in its folder.

A clustering of K clusters stores some of these arrays. A point has the shape (H, W) or (C, H, W)
of an image, or (d,) of a table row; a label of -1 is unknown.

- ``samples`` (K, m, *shape): generated points of every cluster;
- ``examples`` (K, m, H, W) or (K, m, C, H, W): real images nearest to what a cluster generates;
- ``partition_points`` (B, *shape), ``partition_clusters`` (B,): points generated from one sampled
  partition, and their clusters;
- ``latent`` (N, 2), ``latent_clusters`` (N,), ``latent_labels`` (N,): a latent space in the plane;
- ``confusion`` (L, K): counts of labels by clusters, with ``label_names`` (L,);
- ``sizes`` (K,): the number of points in each cluster;
- ``column_names`` (d,), and ``num_columns`` where the d columns are a selection.

Any run may store figures of its own as ``KIND__NAME``, drawn by the function of
:mod:`drpm.report.plots` of that kind:

- ``grid__NAME``: images (R, C, H, W) or (R, C, channels, H, W), with ``grid_rows__NAME`` (R,) and
  ``grid_columns__NAME`` (C,);
- ``matrix__NAME``: numbers (R, C), with ``matrix_rows__NAME`` and ``matrix_columns__NAME``;
- ``bars__NAME``: numbers (G, B), groups of bars, with ``bars_groups__NAME`` (G,) and
  ``bars_names__NAME`` (B,);
- ``lines__NAME``: numbers (L, P), lines over epochs, with ``lines_names__NAME`` (L,) and
  ``lines_epochs__NAME`` (P,);
- ``title__NAME`` and ``about__NAME``: a title and a description, one string each.
"""

import io
from collections.abc import Iterable, Mapping
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


class FigureSpec(NamedTuple):
    """A figure that a run describes itself, with names along both dimensions of its values."""

    kind: str
    name: str
    values: NDArray[Any]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: str
    about: str


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The content of an ``arrays.npz``."""
    buffer = io.BytesIO()
    named: Any = arrays  # numpy's signature has an option among the names of arrays
    np.savez_compressed(buffer, **named)
    return buffer.getvalue()


def pack_figures(specs: Iterable[FigureSpec]) -> bytes:
    """The content of an ``arrays.npz`` with figures that a run describes itself."""
    arrays: dict[str, NDArray[Any]] = {}
    for spec in specs:
        arrays[f"{spec.kind}__{spec.name}"] = spec.values
        for part, names in zip(_NAMES[spec.kind], (spec.rows, spec.columns), strict=True):
            if names:
                arrays[f"{part}__{spec.name}"] = np.array(names)
        arrays[f"title__{spec.name}"] = np.array(spec.title)
        arrays[f"about__{spec.name}"] = np.array(spec.about)
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
            # Members that are not arrays come as bytes.
            return {name: np.asarray(archive[name]) for name in archive.files}
    except Exception as error:
        # A damaged archive fails in as many ways as it has layers.
        raise RunError(f"The file {path} cannot be read as an archive of plain arrays.") from error


def figure_specs(arrays: Mapping[str, NDArray[Any]]) -> list[FigureSpec]:
    """The figures that a run describes itself, in the order of its arrays."""
    specs = []
    for key, values in arrays.items():
        kind, _, name = key.partition("__")
        if name and kind in _NAMES:
            rows, columns = (
                tuple(map(str, arrays.get(f"{part}__{name}", np.empty(0)).tolist()))
                for part in _NAMES[kind]
            )
            title = " ".join(str(arrays.get(f"title__{name}", name)).split())
            about = " ".join(str(arrays.get(f"about__{name}", title)).split())
            specs.append(FigureSpec(kind, name, values, rows, columns, title, about))
    return specs
