"""Gumbel noise, discrete values with continuous gradients, and custom autograd functions."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

FunctionType = TypeVar("FunctionType", bound=type[torch.autograd.Function])


def gumbel_like(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise with the shape, type and device of a tensor.

    Drawn in float64 and only then cast: float32 has too few distinct uniform numbers for a
    million elements without ties.
    """
    noise = torch.rand(like.shape, dtype=torch.float64, device=like.device, generator=generator)
    return noise.clamp_min_(1e-300).log_().neg_().log_().neg_().to(like.dtype)


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


def maps_leading(function: FunctionType) -> FunctionType:
    """Give a custom function of tensors with any leading dimensions its ``vmap``."""

    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        def leading(value: Any, dim: int | None) -> Any:
            """The mapped dimension first, where a batch is expected."""
            if not isinstance(value, Tensor):
                return value
            whole = (info.batch_size, *value.shape)
            return value.expand(whole) if dim is None else value.movedim(dim, 0)

        out = apply(function, *map(leading, inputs, in_dims))
        return out, (0 if isinstance(out, Tensor) else (0,) * len(out))

    function.vmap = staticmethod(vmap)  # type: ignore[method-assign]
    return function


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor stands for others inside a ``torch.func`` transform."""
    if torch.compiler.is_compiling():
        return False  # a compiler sees through transforms
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def needs_plain(grad: Tensor) -> bool:
    """Whether a backward pass has to be made of plain operations.

    This is the case where its own derivatives are requested, and for ``is_grads_batched``, whose
    tensors no custom function can look into.
    """
    if torch._C._functorch.is_legacy_batchedtensor(grad):
        return True
    return torch.is_grad_enabled() and not is_transformed(grad)


def plain_gradients(
    function: Callable[..., Any], leaves: Sequence[Tensor], grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of a function in some tensors; None in those that require none."""
    again = torch.is_grad_enabled()
    if not again:
        leaves = [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in leaves]
    with torch.enable_grad():
        out = function(*leaves)
    outs = out if isinstance(out, tuple) else (out,)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(outs, wanted, tuple(grads), create_graph=again))
    return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)


def materialize(tensor: Tensor) -> Tensor:
    """The same tensor, whose entries a compiler computes once.

    A compiler that fuses an operation into the next repeats it for every use of its result. Where
    all pairs of n entries are formed, that is n times, noise and logarithms included: ten times
    what a step of clustering costs otherwise.
    """
    value: Tensor = apply(_Materialize, tensor)
    return value


# Torch's compiler does not map custom functions; what it takes as it is, torch.func does.
torch.compiler.allow_in_graph(materialize)


@torch.library.custom_op("drpm::materialize", mutates_args=())
def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone()


@_copy.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor)


@maps_leading
class _Materialize(torch.autograd.Function):
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
