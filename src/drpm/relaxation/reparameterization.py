"""Gumbel noise, and discrete values with continuous gradients."""

from typing import Any

import torch
from torch import Tensor

from drpm.relaxation.mapping import apply, maps_leading


def gumbel_like(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise with the shape, type and device of a tensor.

    Drawn in float64 and only then cast: float32 has too few distinct uniform numbers for a
    million elements without ties.
    """
    noise = torch.rand(like.shape, dtype=torch.float64, device=like.device, generator=generator)
    return noise.clamp_min_(1e-300).log_().neg_().log_().neg_().to(like.dtype)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard``, to the last bit, with the gradient of ``soft``."""
    if torch.compiler.is_compiling():
        return _compiled(*torch.broadcast_tensors(hard, soft))
    return hard + (soft - soft.detach())


def _compiled(hard: Tensor, soft: Tensor) -> Tensor:
    """In this form a compiler leaves out what is soft where only its gradient is needed."""
    value: Tensor = apply(_StraightThrough, hard, soft)
    return value


# Torch's compiler does not map custom functions; what it takes as it is, torch.func does.
torch.compiler.allow_in_graph(_compiled)


@maps_leading
class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(hard: Tensor, soft: Tensor) -> Tensor:
        return hard.to(soft.dtype, copy=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad
