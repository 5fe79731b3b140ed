"""Gumbel noise."""

import torch
from torch import Tensor


def gumbel_like(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise in the shape, type and place of a tensor.

    Drawn in float64 and only then cast: float32 has too few distinct uniform numbers for a
    million elements to be told apart.
    """
    noise = torch.rand(like.shape, dtype=torch.float64, device=like.device, generator=generator)
    return noise.clamp_min_(1e-300).log_().neg_().log_().neg_().to(like.dtype)
