"""The arrays of a finished run: what there is to draw, read without unpickling and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from drpm.report.archive import read_archive
from drpm.training.errors import RunError

ARRAYS: Final = "arrays.npz"

_PAIRS: Final = (("partition_points", "partition_clusters"), ("latent", "latent_clusters"))

# More would not be groups but measurements.
_MAX_GROUPS: Final = 10_000


@dataclass(frozen=True)
class Arrays:
    """What there is to draw of K clusters; whatever is missing is None.

    A point has the shape (H, W) or (C, H, W) with one or three channels, for an image, or (d,),
    for the row of a table. Clusters and labels count from zero; a label of -1 is unknown.

    Arguments:
        samples: (K, m, *shape), m generated points of every cluster.
        examples: (K, m, H, W) or (K, m, C, H, W), real images nearest to what every
            cluster generates, where that is nothing to look at itself.
        partition_points: (B, *shape), points generated from one sampled partition.
        partition_clusters: (B,), the cluster of each of them.
        latent: (N, 2), points of a latent space in the plane.
        latent_clusters: (N,), the cluster of each of them.
        latent_labels: (N,), their labels.
        confusion: (L, K), how many points of each label lie in each cluster.
        label_names: (L,), the names of the labels.
        sizes: (K,), how many points each cluster holds.
        column_names: (d,), the names of a table's columns.
        num_columns: (), how many columns the table has, where the d are chosen from them.
    """

    samples: NDArray[Any] | None = None
    examples: NDArray[Any] | None = None
    partition_points: NDArray[Any] | None = None
    partition_clusters: NDArray[Any] | None = None
    latent: NDArray[Any] | None = None
    latent_clusters: NDArray[Any] | None = None
    latent_labels: NDArray[Any] | None = None
    confusion: NDArray[Any] | None = None
    label_names: NDArray[Any] | None = None
    sizes: NDArray[Any] | None = None
    column_names: NDArray[Any] | None = None
    num_columns: NDArray[Any] | None = None

    @property
    def num_clusters(self) -> int:
        """K, as the arrays that have a place for every cluster say, or else as many as occur."""
        for each in (self.samples, self.examples, self.sizes):
            if each is not None:
                return len(each)
        if self.confusion is not None:
            return int(self.confusion.shape[1])
        members = [each for each in (self.partition_clusters, self.latent_clusters) if _any(each)]
        return max((int(each.max()) + 1 for each in members if each is not None), default=0)

    def label_name(self, index: int) -> str:
        if self.label_names is not None and 0 <= index < len(self.label_names):
            return str(self.label_names[index])
        return str(index) if index >= 0 else "unknown"

    def column_name(self, index: int) -> str:
        return f"column {index + 1}" if self.column_names is None else str(self.column_names[index])


def read_arrays(folder: Path) -> Arrays:
    """The arrays of a run's folder; one without the file has none.

    Raises:
        RunError: Where the file is damaged, or arrays in it do not fit what they are meant to be.
    """
    path = folder / ARRAYS
    known = {field.name for field in fields(Arrays)}
    content = read_archive(path, known.__contains__)
    arrays = Arrays(**content)
    if complaint := _complaint(arrays, content):
        raise RunError(f"In the file {path}, {complaint}.")
    return arrays


def _any(array: NDArray[Any] | None) -> bool:
    return array is not None and array.size > 0


def _complaint(arrays: Arrays, content: Mapping[str, NDArray[Any]]) -> str | None:
    """What is wrong, as the end of a sentence, or None."""
    for name, array in content.items():
        if complaint := _wrong_by_itself(name, array):
            return complaint
    for first, second in _PAIRS:
        if (first in content) != (second in content):
            given, missing = (first, second) if first in content else (second, first)
            return f"{given} comes without {missing}"
        if first in content and len(content[first]) != len(content[second]):
            return (
                f"{second} must have one entry for each of the {len(content[first])} points of "
                f"{first}, but has {len(content[second])}"
            )
    return _wrong_labels(arrays) or _wrong_shapes(arrays) or _wrong_clusters(arrays)


def _wrong_by_itself(name: str, array: NDArray[Any]) -> str | None:
    """Whether an array has the type and number of dimensions that its name promises."""
    shape = "x".join(map(str, array.shape)) or "a single number"

    def must(be: str) -> str:
        return f"{name} must be {be}, but is {shape} of type {array.dtype}"

    if name.endswith("_names"):
        return None if array.ndim == 1 and array.dtype.kind == "U" else must("a list of strings")
    if name.endswith(("_clusters", "_labels")):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            return must("whole numbers (N,)")
        if array.size and array.max() >= _MAX_GROUPS:
            return f"{name} must be below {_MAX_GROUPS:,}, but has {array.max():,}"
        return None
    if name == "num_columns":
        return None if array.ndim == 0 and array.dtype.kind in "iu" else must("one whole number")
    dimensions = {
        "samples": ({3, 4, 5}, "numbers (K, m, *shape), none of them zero"),
        "examples": ({4, 5}, "images (K, m, *shape), none of them zero"),
        "partition_points": ({2, 3, 4}, "numbers (B, *shape)"),
        "latent": ({2}, "numbers (N, 2)"),
        "confusion": ({2}, "counts (L, K)"),
        "sizes": ({1}, "counts (K,)"),
    }
    allowed, description = dimensions[name]
    if array.ndim not in allowed or array.dtype.kind not in "biuf":
        return must(description)
    # Only sets of points may be empty: there is no picture of no clusters.
    if 0 in (array.shape[1:] if name in ("partition_points", "latent") else array.shape):
        return must(description)
    if name == "latent" and array.shape[1] != 2:
        return must(description)
    if not np.isfinite(array).all():
        return f"{name} must be finite, but has entries that are not"
    if name in ("confusion", "sizes") and (array < 0).any():
        return f"{name} must be counts, but has negative entries"
    return None


def _wrong_labels(arrays: Arrays) -> str | None:
    labels, names = arrays.latent_labels, arrays.label_names
    if labels is not None:
        if arrays.latent is None:
            return "latent_labels comes without latent"
        if len(labels) != len(arrays.latent):
            return (
                f"latent_labels must have one entry for each of the {len(arrays.latent)} points "
                f"of latent, but has {len(labels)}"
            )
        if labels.size and labels.min() < -1:
            return f"latent_labels must be at least -1, but has {labels.min()}"
        if names is not None and labels.size and labels.max() >= len(names):
            return f"latent_labels has a {labels.max()}, but label_names has {len(names)} names"
    if arrays.confusion is not None and names is not None and len(names) != len(arrays.confusion):
        return (
            f"label_names must have one name for each of the {len(arrays.confusion)} rows of "
            f"confusion, but has {len(names)}"
        )
    return None


def _wrong_shapes(arrays: Arrays) -> str | None:
    shapes = {}
    if arrays.samples is not None:
        shapes["samples"] = arrays.samples.shape[2:]
    if arrays.partition_points is not None:
        shapes["partition_points"] = arrays.partition_points.shape[1:]
    if len(set(shapes.values())) > 1:
        return (
            "the points of samples and partition_points must have one shape, but have "
            f"{shapes['samples']} and {shapes['partition_points']}"
        )
    # Not of the shape of the others, which are rows where there are examples.
    if arrays.examples is not None:
        shapes["examples"] = arrays.examples.shape[2:]
    for name, shape in shapes.items():
        if len(shape) == 3 and shape[0] not in (1, 3):
            return (
                f"the images of {name} must have one or three channels, and these first, but "
                f"their shape is {shape}"
            )
        names = arrays.column_names
        if len(shape) == 1 and names is not None and len(names) != shape[0]:
            return (
                f"column_names must have one name for each of the {shape[0]} columns, but has "
                f"{len(names)}"
            )
        if len(shape) == 1 and arrays.num_columns is not None and arrays.num_columns < shape[0]:
            return f"num_columns must be at least {shape[0]}, but is {arrays.num_columns}"
    return None


def _wrong_clusters(arrays: Arrays) -> str | None:
    counts = {
        name: len(array)
        for name in ("samples", "examples", "sizes")
        if (array := getattr(arrays, name)) is not None
    }
    if arrays.confusion is not None:
        counts["confusion"] = arrays.confusion.shape[1]
    if len(set(counts.values())) > 1:
        told = " and ".join(f"{count} in {name}" for name, count in counts.items())
        return f"the number of clusters must be the same everywhere, but is {told}"
    for name in ("partition_clusters", "latent_clusters"):
        members: NDArray[Any] | None = getattr(arrays, name)
        if members is None or not members.size:
            continue
        if members.min() < 0 or members.max() >= arrays.num_clusters:
            return (
                f"{name} must be from 0 to {arrays.num_clusters - 1}, but reaches from "
                f"{members.min()} to {members.max()}"
            )
    return None
