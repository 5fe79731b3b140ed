"""What models need from a loaded data set: class labels, a test split, and how rows are scaled."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from drpm.data.types import Dataset, Split

TEST_PART: Final = 0.2
_SEED: Final = 3_000_000


def class_target(data: Dataset) -> str | None:
    """The target with the class of an example: ``label``, or else the first that has classes."""
    return "label" if "label" in data.classes else next(iter(data.classes), None)


def class_labels(data: Dataset, split: Split) -> Tensor | None:
    """The classes of a split, if it has any."""
    name = class_target(data)
    return None if name is None else split.targets.get(name)


def class_names(data: Dataset) -> tuple[str, ...]:
    """The names of the classes of :func:`class_labels`; empty if there are none."""
    name = class_target(data)
    return () if name is None else data.classes[name]


def with_test_part(data: Dataset) -> Dataset:
    """The same data; if it has no test split, always the same fifth becomes one."""
    if data.train is not data.test:
        return data
    whole = data.train
    train, test = (
        Split(whole.inputs[rows], {name: x[rows] for name, x in whole.targets.items()})
        for rows in (part.to(whole.inputs.device) for part in split_rows(len(whole)))
    )
    return replace(data, train=train, test=test)


def split_rows(count: int) -> tuple[Tensor, Tensor]:
    """The row numbers of the training and the test split of :func:`with_test_part`."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SEED))
    tested = max(1, round(TEST_PART * count))
    return order[tested:], order[:tested]


def scale_of(data: Dataset) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """The mean that was subtracted from every number of an input, and its divisor.

    Returns:
        Both flat, in double precision and on the CPU; None if the data is not standardized.
    """
    mean, std = data.preprocessing.get("mean"), data.preprocessing.get("std")
    if mean is None or std is None:
        return None, None
    shape = data.input_shape
    shift, scale = (x.cpu().double().expand(shape).flatten() for x in (mean, std))
    return shift, scale


def scale_shapes(tensors: Mapping[str, Tensor], columns: int) -> dict[str, tuple[int, ...]]:
    """The shapes of ``shift`` and ``scale`` among the tensors of a model that has either."""
    either = "shift" in tensors or "scale" in tensors
    return {"shift": (columns,), "scale": (columns,)} if either else {}


def scaled_rows(
    name: str,
    data: Tensor | ArrayLike,
    shape: tuple[int, ...],
    shift: Tensor | None,
    scale: Tensor | None,
) -> Tensor:
    """Rows (n, d) as a model was trained on them, in double precision on the CPU.

    Args:
        name: The argument that errors name.
        data: (n, d), or (n, ...) with inputs of the shape.
        shape: Of one input.
        shift: (d,) from :func:`scale_of`; None if data is not standardized.
        scale: (d,) likewise.
    """
    rows = _double(name, data)
    if rows.dim() < 2 or rows.shape[1:].numel() != torch.Size(shape).numel():
        raise ValueError(
            f"{name} must have the shape (n, {', '.join(map(str, shape))}), or rows of as "
            f"many numbers, but got {tuple(rows.shape)}."
        )
    rows = rows.flatten(1)
    return rows if shift is None or scale is None else (rows - shift) / scale


def _double(name: str, data: Any) -> Tensor:
    if isinstance(data, Tensor | np.ndarray) and "complex" in str(data.dtype):
        raise ValueError(f"{name} must be real numbers, but got complex ones.")
    if isinstance(data, Tensor):
        return data.cpu().double()
    try:
        return torch.tensor(np.asarray(data, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, but got something else ({error}).") from None
