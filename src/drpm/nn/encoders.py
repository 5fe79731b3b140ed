"""Parts of encoders: fully connected layers, and the Gaussians that encoders return."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn


def dense_layers(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers from each width to the next, each followed by a ReLU."""
    return nn.Sequential(
        *(layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU()))
    )


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


def symmetric_divergence(p: Posterior, q: Posterior) -> Tensor:
    """The mean of both KL divergences for every dimension, (..., l).

    Example:
        >>> p = Posterior(torch.tensor([1.0]), torch.tensor([0.0]))
        >>> symmetric_divergence(p, Posterior(torch.tensor([3.0]), torch.tensor([0.0])))
        tensor([2.])
    """
    gap = (p.mean - q.mean).square()
    # As two non-negative terms: the usual form cancels for small divergences, which breaks the
    # gradient of their logarithm.
    apart = torch.sinh(0.5 * (p.log_variance - q.log_variance)).square()
    return apart + 0.25 * gap * ((-p.log_variance).exp() + (-q.log_variance).exp())


def standard_divergence(p: Posterior) -> Tensor:
    """KL from a standard Gaussian for every dimension, (..., l)."""
    return 0.5 * (p.mean.square() + p.log_variance.exp() - 1 - p.log_variance)
