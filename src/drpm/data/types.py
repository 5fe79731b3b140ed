"""Data sets before and after loading, and the preprocessing that models apply."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from drpm.data.catalogue import DataError as DataError
from drpm.data.catalogue import reason as reason

Device = str | torch.device


@dataclass(frozen=True)
class Split:
    """One split of a data set: whole tensors on one device.

    Args:
        inputs: (N, ...) float32. Images are (N, channels, height, width) with values in [0, 1]
            by default; tables are (N, columns), standardized.
        targets: By name, (N,) int64 for classes and (N, ...) float for numbers.
    """

    inputs: Tensor
    targets: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, target in self.targets.items():
            if len(target) != len(self.inputs):
                raise ValueError(
                    f"The target '{name}' has {len(target)} entries for {len(self.inputs)} inputs."
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: slice | Tensor) -> "Split":
        targets = {name: target[rows] for name, target in self.targets.items()}
        return Split(self.inputs[rows], targets)

    def to(self, device: Device) -> "Split":
        """The same split on another device."""
        targets = {name: target.to(device) for name, target in self.targets.items()}
        return Split(self.inputs.to(device), targets)


@dataclass(frozen=True)
class Dataset:
    """A loaded data set.

    Args:
        name: Its name in the catalogue, or the file it came from.
        train: The training split.
        test: The test split; the same object as ``train`` if the data has no split.
        classes: The class names of each target that has classes.
        columns: The column names of a table.
        preprocessing: Constants applied to the inputs, such as the ``mean`` and ``std`` of each
            column, by :func:`column_scales`.
    """

    name: str
    train: Split
    test: Split
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    preprocessing: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def input_shape(self) -> torch.Size:
        """The shape of one input."""
        return self.train.inputs.shape[1:]

    def to(self, device: Device) -> "Dataset":
        """The same data set on another device."""
        train = self.train.to(device)
        test = train if self.test is self.train else self.test.to(device)
        preprocessing = {name: x.to(device) for name, x in self.preprocessing.items()}
        return replace(self, train=train, test=test, preprocessing=preprocessing)


def class_target(data: Dataset) -> str | None:
    """The class target: ``label``, or else the first target with classes."""
    return "label" if "label" in data.classes else next(iter(data.classes), None)


def class_labels(data: Dataset, split: Split) -> Tensor | None:
    """The classes of a split, if it has any."""
    return split.targets.get(class_target(data) or "")


def class_names(data: Dataset) -> tuple[str, ...]:
    """The names of the classes of :func:`class_labels`; empty if there are none."""
    return data.classes.get(class_target(data) or "", ())


def with_test_part(data: Dataset) -> Dataset:
    """Hold out a fixed fifth if there is no test split."""
    if data.train is not data.test:
        return data
    whole = data.train
    train, test = (whole[rows.to(whole.inputs.device)] for rows in split_rows(len(whole)))
    return replace(data, train=train, test=test)


def split_rows(count: int) -> tuple[Tensor, Tensor]:
    """The row numbers of the training and the test split of :func:`with_test_part`."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3_000_000))
    tested = max(1, round(count / 5))
    return order[tested:], order[:tested]


def column_scales(rows: Tensor) -> Tensor:
    """Per-column scale (d,) for standardization of a table (n, d).

    The fourth root of a third of the fourth central moment. For a normal column it is the standard
    deviation; columns with two groups get more weight, columns with few large values less.
    """
    centered = rows - rows.mean(0)
    deviation = centered.square().mean(0).sqrt()
    return deviation * ((centered / deviation).pow(4).mean(0) / 3) ** 0.25


def scale_of(data: Dataset) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """The shift and scale of flat inputs, float64 on the CPU; None if data is not standardized."""
    mean, std = data.preprocessing.get("mean"), data.preprocessing.get("std")
    if mean is None or std is None:
        return None, None
    shift, scale = (x.cpu().double().expand(data.input_shape).flatten() for x in (mean, std))
    return shift, scale


def scale_shapes(tensors: Mapping[str, Tensor], columns: int) -> dict[str, tuple[int, ...]]:
    """The expected shapes of ``shift`` and ``scale``, if a model has either."""
    either = "shift" in tensors or "scale" in tensors
    return {"shift": (columns,), "scale": (columns,)} if either else {}


def scaled_rows(
    name: str,
    data: Tensor | ArrayLike,
    shape: tuple[int, ...],
    shift: Tensor | None,
    scale: Tensor | None,
) -> Tensor:
    """Flatten and standardize data (n, d) or (n, *shape), in double precision on the CPU."""
    if isinstance(data, Tensor | np.ndarray) and "complex" in str(data.dtype):
        raise ValueError(f"{name} must be real numbers, but got complex ones.")
    if isinstance(data, Tensor):
        rows = data.cpu().double()
    else:
        try:
            rows = torch.tensor(np.asarray(data, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be numbers, but got something else ({error}).") from None
    if rows.dim() < 2 or rows.shape[1:].numel() != torch.Size(shape).numel():
        raise ValueError(
            f"{name} must have shape (n, {', '.join(map(str, shape))}), or rows of as "
            f"many numbers, but got {tuple(rows.shape)}."
        )
    rows = rows.flatten(1)
    return rows if shift is None or scale is None else (rows - shift) / scale


def fingerprint(data: Dataset) -> str:
    """The SHA-256 of all inputs and targets of a data set."""
    splits = [data.train] if data.test is data.train else [data.train, data.test]
    return fingerprint_tensors(
        pair for split in splits for pair in (("", split.inputs), *sorted(split.targets.items()))
    )


def fingerprint_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """The SHA-256 of tensors with their names, types and shapes."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        for rows in tensor.split(4096):  # copied from a GPU at once
            digest.update(rows.detach().contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
