"""Telling a compiler to keep a tensor instead of computing its entries wherever they are read."""

from typing import Any

import torch
from torch import Tensor

from drpm.relaxation.mapping import apply, to_leading


def stored(tensor: Tensor) -> Tensor:
    """The same tensor, whose entries a compiler computes once.

    A compiler that fuses an operation into the next repeats it for every use of its result. Where
    all pairs of n entries are formed, that is n times, noise and logarithms included: ten times
    what a step of clustering costs otherwise.
    """
    value: Tensor = apply(_Stored, tensor)
    return value


# Torch's compiler does not map functions of ours; what it takes as it is, torch.func does.
torch.compiler.allow_in_graph(stored)


@torch.library.custom_op("drpm::stored", mutates_args=())
def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone()


@_copy.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor)


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        value: Tensor = _copy(tensor)
        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], tensor: Tensor) -> tuple[Tensor, int]:
        return apply(_Stored, *to_leading(info, in_dims, (tensor,))), 0
