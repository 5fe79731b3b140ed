"""Independent Gaussians, as encoders return them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Posterior(NamedTuple):
    """Independent Gaussians, (..., l)."""

    mean: Tensor
    log_variance: Tensor

    def sample(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        size = shape + self.mean.shape
        noise = torch.randn(
            size, dtype=self.mean.dtype, device=self.mean.device, generator=generator
        )
        return self.mean + noise * (self.log_variance / 2).exp()


def divergence(p: Posterior, q: Posterior) -> Tensor:
    """KL of p from q for every dimension, (..., l).

    Example:
        >>> p = Posterior(torch.tensor([1.0]), torch.tensor([0.0]))
        >>> divergence(p, Posterior(torch.tensor([3.0]), torch.tensor([0.0])))
        tensor([2.])
    """
    gap = (p.mean - q.mean).square()
    log_ratio = p.log_variance - q.log_variance
    return 0.5 * (log_ratio.exp() + gap * (-q.log_variance).exp() - 1 - log_ratio)


def symmetric_divergence(p: Posterior, q: Posterior) -> Tensor:
    """The mean of both KL divergences for every dimension, (..., l)."""
    return 0.5 * (divergence(p, q) + divergence(q, p))


def standard_divergence(p: Posterior) -> Tensor:
    """KL from a standard Gaussian for every dimension, (..., l)."""
    return 0.5 * (p.mean.square() + p.log_variance.exp() - 1 - p.log_variance)
