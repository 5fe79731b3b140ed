r"""Scalars that change with the training step: temperatures, weights of loss terms.

A schedule is a pure function of the step, so a resumed run needs only its step counter. A tensor
stays on its device, as a CUDA graph requires.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final, overload

import torch
from torch import Tensor

from drpm.training.errors import ConfigError


class Schedule(ABC):
    """A number for every step."""

    @overload
    def value(self, step: int) -> float: ...

    @overload
    def value(self, step: Tensor) -> Tensor: ...

    def value(self, step: int | Tensor) -> float | Tensor:
        """The number at a step.

        Args:
            step: The number of earlier steps, as a number or a tensor of any shape.

        Returns:
            A float for a number. For a tensor a tensor of the same shape and device, and of the
            same dtype if that is floating, else float32.
        """
        if not isinstance(step, Tensor):
            return float(self._at(torch.tensor(step, dtype=torch.float64)))
        dtype = step.dtype if step.is_floating_point() else torch.float32
        # float32 has no integers beyond 2 ** 24.
        return self._at(step.to(torch.float64)).to(dtype)

    @abstractmethod
    def _at(self, step: Tensor) -> Tensor:
        """The values at steps given as a floating-point tensor, in the same dtype."""


@final
@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """The same number at every step.

    Args:
        constant: That number.
    """

    constant: float

    def __post_init__(self) -> None:
        _require_finite("constant", self.constant)

    def _at(self, step: Tensor) -> Tensor:
        return torch.full_like(step, self.constant)


@final
@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """From one number to another along a line, and constant from there on.

    Args:
        start: The number at step 0.
        end: The number from ``steps`` on.
        steps: How many steps it takes.

    Example:
        >>> LinearSchedule(start=1.0, end=0.0, steps=4).value(1)
        0.75
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _require_finite("start", self.start)
        _require_finite("end", self.end)
        _require_steps(self.steps)

    def _at(self, step: Tensor) -> Tensor:
        done = (step / self.steps).clamp(0.0, 1.0)
        # `lerp` gives both ends exactly.
        return torch.lerp(torch.full_like(done, self.start), torch.full_like(done, self.end), done)


@final
@dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    r"""From one positive number to another by a constant factor a step, and constant after that.

    .. math:: \tau_t = \max(\tau_{final},\, \tau_{init} \, e^{-r t}), \qquad
        r = -\frac{\log \tau_{final} - \log \tau_{init}}{steps}

    with the minimum in place of the maximum where the numbers rise.

    Args:
        start: The number :math:`\tau_{init}` at step 0.
        end: The number :math:`\tau_{final}` from ``steps`` on.
        steps: How many steps it takes.

    Example:
        >>> ExponentialSchedule(start=1.0, end=0.25, steps=100).value(50)
        0.5
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _require_positive("start", self.start)
        _require_positive("end", self.end)
        _require_steps(self.steps)

    def _at(self, step: Tensor) -> Tensor:
        return _exponential(step, self.start, self.end, self.steps)


@final
@dataclass(frozen=True)
class WarmUp(Schedule):
    """An :class:`ExponentialSchedule` from a fraction of a number up to that number.

    Args:
        end: The number from ``steps`` on.
        steps: How many steps it takes.
        fraction: The fraction of it at step 0.

    Example:
        >>> WarmUp(end=2.0, steps=100).value(0)
        0.2
    """

    end: float
    steps: int
    fraction: float = 0.1

    def __post_init__(self) -> None:
        _require_positive("end", self.end)
        _require_steps(self.steps)
        _require_positive("fraction", self.fraction)
        if self.fraction > 1:
            raise ConfigError(f"fraction must be at most 1, but got {self.fraction!r}.")

    def _at(self, step: Tensor) -> Tensor:
        return _exponential(step, self.fraction * self.end, self.end, self.steps)


def _exponential(step: Tensor, start: float, end: float, steps: int) -> Tensor:
    rate = -(math.log(end) - math.log(start)) / steps
    value = start * torch.exp(-rate * step)
    return value.clamp(min=end) if end <= start else value.clamp(max=end)


def _require_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, but got {value!r}.")


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} must be positive and finite, but got {value!r}.")


def _require_steps(value: int) -> None:
    if value < 1:
        raise ConfigError(f"steps must be at least 1, but got {value!r}.")
