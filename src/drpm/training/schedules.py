r"""Scalars that change with the training step: temperatures, weights of loss terms.

A schedule is a pure function of the step, so a resumed run needs only its step counter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from drpm.training.errors import ConfigError

Schedule: TypeAlias = Callable[[Tensor], Tensor]
"""From the number of earlier steps to the value, float64 tensors of any shape on any device."""


@final
@dataclass(frozen=True)
class ExponentialSchedule:
    r"""From one positive number to another by a constant factor a step, and constant after that.

    .. math:: \tau_t = \max(\tau_{final},\, \tau_{init} \, e^{-r t}), \qquad
        r = -\frac{\log \tau_{final} - \log \tau_{init}}{steps}

    with the minimum in place of the maximum where the numbers rise.

    Args:
        start: The number :math:`\tau_{init}` at step 0.
        end: The number :math:`\tau_{final}` from ``steps`` on.
        steps: How many steps it takes.

    Example:
        >>> ExponentialSchedule(start=1.0, end=0.25, steps=100)(torch.tensor(50.0))
        tensor(0.5000)
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        for name in ("start", "end", "steps"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name} must be positive and finite, but got {value!r}.")

    def __call__(self, step: Tensor) -> Tensor:
        rate = -(math.log(self.end) - math.log(self.start)) / self.steps
        value = self.start * torch.exp(-rate * step)
        rises = self.end > self.start
        return value.clamp(max=self.end) if rises else value.clamp(min=self.end)
