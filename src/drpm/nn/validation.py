"""Refusals of layers, in one sentence each."""

import math
from typing import Any

import torch
from torch import Tensor

from drpm.distributions.validation import describe


def require_features(name: str, value: Any, count: int) -> Tensor:
    """A floating tensor with so many entries in its last dimension."""
    floating = isinstance(value, Tensor) and value.is_floating_point()
    if not floating or value.shape[-1:] != (count,):
        raise ValueError(
            f"{name} must be a floating-point tensor with {count} entries in its last dimension, "
            f"but got {describe(value)}."
        )
    tensor: Tensor = value
    return tensor


def positive_number(name: str, value: Any) -> Tensor:
    """A number above zero, as a tensor."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, but got {describe(value)}.")
    return torch.tensor(float(value))
