"""What the relaxed laws share: a temperature, reparameterised draws and no log-mass."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from drpm.distributions.base import Law, Size
from drpm.distributions.validation import require_broadcast, require_temperature


def temperature_tensor(
    temperature: Any, like: Tensor, batch_shape: torch.Size, *, check: bool
) -> Tensor:
    """A temperature in the type and place of a parameter, shape () or the batch's."""
    value = require_temperature(temperature, check=check)
    if isinstance(value, Tensor):
        tensor = value.to(dtype=like.dtype, device=like.device)
    else:  # filled on the device: nothing to copy, nothing to wait for
        tensor = like.new_full((), value)
    if require_broadcast("temperature and the law", tensor.shape, batch_shape) != batch_shape:
        raise ValueError(
            f"temperature must have a shape that broadcasts to the batch shape "
            f"{tuple(batch_shape)}, but got {tuple(tensor.shape)}."
        )
    return tensor


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
