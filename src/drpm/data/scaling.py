"""From data as their owner has them to the rows that a model sees."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from drpm.data.types import Dataset


def scale_of(data: Dataset) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """What was taken off every number of an input, and what it was then divided by.

    Returns:
        Both flat, in double precision and on the CPU; none where the data were not standardised.
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
    """(n, d) in double precision, on the CPU: rows as a model has learnt them.

    Arguments:
        name: What the errors call the data.
        data: (n, d), or (n, ...) with each of the shape.
        shape: Of an input, which a row is the flattened form of.
        shift: (d,), as :func:`scale_of` gives it; none where data are rows as they come.
        scale: (d,), likewise.
    """
    rows = _numbers(name, data)
    if rows.dim() < 2 or rows.shape[1:].numel() != torch.Size(shape).numel():
        raise ValueError(
            f"{name} must have the shape (n, {', '.join(map(str, shape))}), or rows of as "
            f"many numbers, but got {tuple(rows.shape)}."
        )
    rows = rows.flatten(1)
    return rows if shift is None or scale is None else (rows - shift) / scale


def _numbers(name: str, data: Any) -> Tensor:
    # In double precision, which not every device has: large values may differ by little.
    if isinstance(data, Tensor | np.ndarray) and "complex" in str(data.dtype):
        raise ValueError(f"{name} must be real numbers, but got complex ones.")
    if isinstance(data, Tensor):
        return data.cpu().double()
    try:
        return torch.tensor(np.asarray(data, dtype=np.float64))
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{name} must be numbers, but got something else ({reason}).") from None
