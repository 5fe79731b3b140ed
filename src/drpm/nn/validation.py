"""Refusals of layers, in one sentence each."""

import math
from numbers import Real
from typing import Any

import numpy as np
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


def positive_number(name: str, value: Any) -> float:
    """A number above zero, which may come as a tensor of one entry."""
    single = isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1)
    given = value.item() if single else value
    number = isinstance(given, Real) and not isinstance(given, bool)
    if not number or not 0 < given < math.inf:
        raise ValueError(f"{name} must be a positive number, but got {describe(given)}.")
    return float(given)
