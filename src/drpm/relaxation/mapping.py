"""Letting ``torch.func.vmap`` through functions that take any leading dimensions already."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Call a custom function; torch leaves its ``apply`` without types.

    At every call torch asks for the signature of ``forward``, and inspecting a function takes
    longer than many a kernel: it is inspected once.
    """
    if torch.compiler.is_compiling():
        return function.apply(*inputs)
    forward = function.forward
    if not hasattr(forward, "__signature__"):
        forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    try:
        return function.apply(*inputs)
    except NotImplementedError as error:
        # Torch says "You must implement the jvp function for custom autograd.Function to use it
        # with forward mode AD." A `jvp` of ours that said better would keep the compiler from
        # following the function.
        if "jvp function" not in str(error):
            raise
        raise NotImplementedError(
            f"The operation {function.__name__} has no forward-mode derivatives (torch.func.jvp, "
            "torch.autograd.forward_ad); use reverse mode, such as torch.func.vjp or backward()."
        ) from None


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor stands for others inside a ``torch.func`` transform."""
    if torch.compiler.is_compiling():
        return False  # a compiler sees through transforms
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def needs_plain(grad: Tensor) -> bool:
    """Whether a backward pass has to be made of plain operations.

    So it is where its own derivatives are asked for, and for ``is_grads_batched``, whose tensors
    no custom function can look into.
    """
    if torch._C._functorch.is_legacy_batchedtensor(grad):
        return True
    return torch.is_grad_enabled() and not is_transformed(grad)


def plain_gradients(
    function: Callable[..., Any], leaves: Sequence[Tensor], grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients in some tensors of a function of them; None in those that ask for none."""
    again = torch.is_grad_enabled()
    if not again:
        leaves = [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in leaves]
    with torch.enable_grad():
        out = function(*leaves)
    outs = out if isinstance(out, tuple) else (out,)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(outs, wanted, tuple(grads), create_graph=again))
    return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)


def to_leading(info: Any, in_dims: Sequence[int | None], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Move the mapped dimension of every input to the front, where a batch is expected."""
    return [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(inputs, in_dims, strict=True)
    ]
