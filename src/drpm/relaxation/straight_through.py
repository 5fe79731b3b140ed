"""Discrete forwards, continuous backwards."""

from typing import Any

import torch
from torch import Tensor

from drpm.relaxation.mapping import apply, to_leading


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard``, to the last bit, with the gradient of ``soft``."""
    if torch.compiler.is_compiling():
        return _compiled(*torch.broadcast_tensors(hard, soft))
    return hard + (soft - soft.detach())


def _compiled(hard: Tensor, soft: Tensor) -> Tensor:
    """In this form a compiler leaves out what is soft where only its gradient is needed."""
    value: Tensor = apply(_StraightThrough, hard, soft)
    return value


# Torch's compiler does not map functions of ours; what it takes as it is, torch.func does.
torch.compiler.allow_in_graph(_compiled)


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

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], hard: Tensor, soft: Tensor
    ) -> tuple[Tensor, int]:
        return apply(_StraightThrough, *to_leading(info, in_dims, (hard, soft))), 0
