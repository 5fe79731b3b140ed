"""Letting ``torch.func.vmap`` through functions that take any leading dimensions already."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Call a custom function; torch leaves its ``apply`` without types.

    At every call torch asks for the signature of ``forward``, and inspecting a function takes
    longer than many a kernel: it is inspected once.
    """
    forward = function.forward
    if not torch.compiler.is_compiling() and not hasattr(forward, "__signature__"):
        forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    return function.apply(*inputs)


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor stands for others inside a ``torch.func`` transform."""
    if torch.compiler.is_compiling():
        return False  # a compiler sees through transforms
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def to_leading(info: Any, in_dims: Sequence[int | None], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Move the mapped dimension of every input to the front, where a batch is expected."""
    return [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(inputs, in_dims, strict=True)
    ]
