"""Refusals of layers, in one sentence each."""

from typing import Any

import numpy as np
from torch import Tensor

from drpm.distributions.validation import describe, require_number


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
    require_number(name, given, positive=True)
    return float(given)
