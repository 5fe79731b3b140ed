"""Discrete forwards, continuous backwards."""

from torch import Tensor


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard``, to the last bit, with the gradient of ``soft``."""
    return hard + (soft - soft.detach())
