"""Checks of arguments, and constraints on parameters and events.

Errors name the argument, what was expected and what was passed.
"""

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from drpm.relaxation.operators import is_transformed


def can_check_values(tensor: Tensor) -> bool:
    """Whether values may be read: not in ``torch.func``, compilation or CUDA graph capture."""
    if torch.compiler.is_compiling():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not is_transformed(tensor)


def describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    return f"{value!r}" if isinstance(value, int | float | str) else f"a {type(value).__name__}"


def require_floating(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise ValueError(f"{name} must be a floating-point tensor, but got {describe(value)}.")
    if value.device.type == "mps":
        raise ValueError(
            f"{name} must be on a device that has float64, such as 'cpu' or 'cuda', "
            f"but got a tensor on {str(value.device)!r}."
        )
    return value


def require_vector(name: str, value: Any, entry: str) -> Tensor:
    """A floating tensor with at least one entry in its last dimension."""
    tensor = require_floating(name, value)
    if tensor.dim() == 0 or tensor.shape[-1] == 0:
        raise ValueError(
            f"{name} must have at least one {entry} in its last dimension, "
            f"but got {describe(value)}."
        )
    return tensor


def require_finite(name: str, value: Tensor) -> None:
    # By the largest magnitude, for one pass and one synchronization.
    if not can_check_values(value) or value.numel() == 0:
        return
    if not math.isfinite(torch.linalg.vector_norm(value.detach(), math.inf).item()):
        bad = value.detach()[~torch.isfinite(value)].flatten()[0].item()
        raise ValueError(f"{name} must be finite everywhere, but got {bad}.")


def require_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, but got {describe(value)}.")
    return int(value)


def require_positive(name: str, value: Any) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, but got {describe(value)}.")


def require_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    # Compare types, because `1 == True`.
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, but got {value!r}.")


def require_broadcast(what: str, *shapes: torch.Size) -> torch.Size:
    largest = max(shapes, key=len)
    if all(shape in (largest, torch.Size()) for shape in shapes):
        return largest  # torch's function takes as long as a small kernel
    try:
        return torch.Size(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        listed = " and ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(
            f"{what} must have leading shapes that broadcast, but got {listed}."
        ) from None


def require_event(
    name: str, value: Any, event_shape: torch.Size, batch_shape: torch.Size
) -> Tensor:
    """A tensor with the event shape and broadcastable leading dimensions."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, but got {describe(value)}.")
    dims = len(event_shape)
    if value.dim() < dims or value.shape[value.dim() - dims :] != event_shape:
        raise ValueError(
            f"{name} must end in the event shape {tuple(event_shape)}, but got {describe(value)}."
        )
    require_broadcast(f"{name} and the law", value.shape[: value.dim() - dims], batch_shape)
    return value


def require_indices(name: str, value: Any, count: int) -> Tensor:
    """A tensor of element indices, at most ``count`` of them in its last dimension."""
    if (
        not isinstance(value, Tensor)
        or value.is_floating_point()
        or value.dtype == torch.bool
        or value.dim() == 0
        or value.shape[-1] > count
    ):
        raise ValueError(
            f"{name} must be an integer tensor of at most {count} element indices in its last "
            f"dimension, but got {describe(value)}."
        )
    if can_check_values(value) and bool(((value < 0) | (value >= count)).any()):
        bad = value[(value < 0) | (value >= count)][0].item()
        raise ValueError(
            f"{name} must contain element indices from 0 to {count - 1}, but got {bad}."
        )
    return value


# --- constraints -----------------------------------------------------------------------------


class _Finite(constraints.Constraint):
    """Finite real numbers; torch's ``real`` accepts infinities."""

    def check(self, value: Tensor) -> Tensor:
        return torch.isfinite(value)


finite_vector = constraints.independent(_Finite(), 1)
finite_matrix = constraints.independent(_Finite(), 2)


class WholeSizes(constraints.Constraint):
    """Integer sizes of at least a minimum that sum to a total and fit their capacities."""

    is_discrete = True
    event_dim = 1

    def __init__(self, total: int, capacities: int | Tensor, minimum: int | Tensor = 0) -> None:
        self.total, self.capacities, self.minimum = total, capacities, minimum
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        whole = (value == value.round()) & (value >= self.minimum) & (value <= self.capacities)
        return whole.all(-1) & (value.double().sum(-1) == self.total)


class NonNegativeSum(constraints.Constraint):
    """Non-negative entries that sum to a total, up to rounding: relaxed sizes and matrices.

    The columns of a soft partition sum to one only if the order is relaxed by Sinkhorn.
    """

    def __init__(self, total: int, event_dim: int) -> None:
        self.total, self.event_dim = total, event_dim
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        slack = self.total * 8 * torch.finfo(value.dtype).eps
        entries = value.flatten(-self.event_dim)
        close = (entries.sum(-1) - self.total).abs() <= slack * self.total
        return close & (entries >= -slack).all(-1)


class _Permutation(constraints.Constraint):
    """Orders: every element from 0 to n - 1 once."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        ranks = torch.arange(value.shape[-1], device=value.device)
        return (value.sort(-1).values == ranks).all(-1)


permutation = _Permutation()


class Assignment(constraints.Constraint):
    """Assignment matrices: one 1 in every column, zeros elsewhere, and row sums that are sizes."""

    is_discrete = True
    event_dim = 2

    def __init__(self, sizes: constraints.Constraint) -> None:
        self.sizes = sizes
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        binary = ((value == 0) | (value == 1)).all(-2)
        one_hot = (binary & (value.sum(-2) == 1)).all(-1)
        possible: Tensor = one_hot & self.sizes.check(value.double().sum(-1))
        return possible
