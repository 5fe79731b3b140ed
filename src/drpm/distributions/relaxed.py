"""What the relaxed laws share: a temperature, reparameterised draws and no log-mass."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from drpm.distributions.base import Law, Size
from drpm.distributions.validation import require_temperature


def temperature_tensor(temperature: Any, like: Tensor, *, check: bool) -> Tensor:
    """A temperature in the place of a parameter, in a type that does not round it to nothing."""
    value = require_temperature(temperature, check=check)
    dtype = torch.promote_types(like.dtype, torch.float32)
    if isinstance(value, Tensor):
        return value.to(dtype=dtype, device=like.device)
    # Filled on the device: nothing to copy, nothing to wait for.
    return torch.full((), value, dtype=dtype, device=like.device)


class RelaxedLaw(Law):
    """A law with gradients through its draws."""

    has_rsample = True
    temperature: Tensor

    @abstractmethod
    def rsample(
        self, sample_shape: Size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw with gradients in all parameters."""

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.rsample(shape, generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            f"{type(self).__name__} has no log_prob: a relaxed value lies between the events that "
            "have a probability; ask the discrete law in its `discrete` attribute about a hard one."
        )

    def _batch_temperature(self, event_dims: int) -> Tensor:
        """The temperature, ready to divide something with that many event dimensions."""
        if self.temperature.dim() == 0:
            return self.temperature
        return self.temperature.reshape(*self.temperature.shape, *(1,) * event_dims)
