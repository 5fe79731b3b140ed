r"""Gumbel noise, discrete values with continuous gradients, and relaxed sorts.

Row r of a relaxed permutation matrix is the (soft) choice of the element at rank r, in descending
order. Scores are already divided by the temperature. Sorts need n x n memory;
:mod:`drpm.relaxation.filling` does not.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SINKHORN_ROUNDS = 20

# Up to here, ranks by counting are faster than a sort in compiled code on a GPU.
_COUNTED_UP_TO = 512


def gumbel_like(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise with the shape, type and device of a tensor.

    Drawn in float64 and then cast: float32 uniform numbers would have ties for a million elements.
    """
    noise = torch.rand(like.shape, dtype=torch.float64, device=like.device, generator=generator)
    return noise.clamp_min_(1e-300).log_().neg_().log_().neg_().to(like.dtype)


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Call a custom function, with a cached signature.

    Torch inspects the signature of ``forward`` at every call, which takes longer than many kernels.
    """
    if torch.compiler.is_compiling():
        return function.apply(*inputs)
    forward = function.forward
    if not hasattr(forward, "__signature__"):
        forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    try:
        return function.apply(*inputs)
    except NotImplementedError as error:
        # Torch: "You must implement the jvp function for custom autograd.Function to use it with
        # forward mode AD." With a `jvp` that raises, the compiler could not trace the function.
        if "jvp function" not in str(error):
            raise
        raise NotImplementedError(
            "This function of a drpm distribution has no forward-mode derivatives (torch.func.jvp, "
            "torch.autograd.forward_ad); use reverse mode, such as torch.func.vjp or backward()."
        ) from None


class Operation(torch.autograd.Function):
    """A custom function of tensors with leading dimensions, which supports ``torch.func.vmap``."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """By default, save nothing for the backward pass."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        def leading(value: Any, dim: int | None) -> Any:
            """Move the mapped dimension to the front."""
            if not isinstance(value, Tensor):
                return value
            whole = (info.batch_size, *value.shape)
            return value.expand(whole) if dim is None else value.movedim(dim, 0)

        out = apply(cls, *map(leading, inputs, in_dims))
        return out, (0 if isinstance(out, Tensor) else (0,) * len(out))


def in_graph(operation: type[Operation]) -> Callable[..., Any]:
    """An operation as a function wrapped with ``allow_in_graph``.

    Torch's compiler does not support vmap over custom functions, but torch.func does.
    """

    def call(*inputs: Any) -> Any:
        return apply(operation, *inputs)

    torch.compiler.allow_in_graph(call)
    return call


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor is wrapped by a ``torch.func`` transform."""
    if torch.compiler.is_compiling():
        return False  # the compiler traces through transforms
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def needs_double_backward(grad: Tensor) -> bool:
    """Whether a backward pass must use plain operations.

    It must for double backward, and for ``is_grads_batched``, which custom functions do not
    support.
    """
    if torch._C._functorch.is_legacy_batchedtensor(grad):
        return True
    return torch.is_grad_enabled() and not is_transformed(grad)


def plain_gradients(
    function: Callable[..., Tensor], leaves: Sequence[Tensor], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of a function in some tensors; None in those that require none."""
    with torch.enable_grad():
        out = function(*leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    again = torch.is_grad_enabled()
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=again))
    return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)


def materialize(tensor: Tensor) -> Tensor:
    """Make a compiler compute a tensor only once.

    Fused operations are repeated for every use of their result: n times for pairs of n entries,
    including noise and logarithms, which makes a step of clustering ten times slower.
    """
    value: Tensor = _materialize(tensor)
    return value


@torch.library.custom_op("drpm::materialize", mutates_args=())
def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone()


_copy.register_fake(torch.empty_like)


class _Materialize(Operation):
    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        value: Tensor = _copy(tensor)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


_materialize = in_graph(_Materialize)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard``, to the last bit, with the gradient of ``soft``."""
    if torch.compiler.is_compiling():
        value: Tensor = _straight_through(*torch.broadcast_tensors(hard, soft))
        return value
    return hard + (soft - soft.detach())


class _StraightThrough(Operation):
    """Lets a compiler omit soft values if only their gradient is needed."""

    @staticmethod
    def forward(hard: Tensor, soft: Tensor) -> Tensor:
        return hard.to(soft.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


_straight_through = in_graph(_StraightThrough)


# --- sorts -----------------------------------------------------------------------------------


class Sorted(NamedTuple):
    """Scores in descending order, with the permutation and its inverse."""

    scores: Tensor  # (..., n)
    order: Tensor  # (..., n) the element at every rank
    ranks: Tensor  # (..., n) the rank of every element


def sort_descending(scores: Tensor) -> Sorted:
    """Stable sort in descending order."""
    if counted(scores):
        return sort_by_counting(scores)
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    ranks = torch.argsort(order, -1)
    if torch.compiler.is_compiling():
        ranked = permuted(scores, order, ranks)
    return Sorted(ranked, order, ranks)


def order_descending(scores: Tensor) -> Tensor:
    """The element at every rank."""
    if counted(scores):
        return sort_by_counting(materialize(scores)).order
    return torch.argsort(scores, dim=-1, descending=True, stable=True)


def counted(scores: Tensor) -> bool:
    """Whether to sort by counting."""
    on_gpu = scores.is_cuda and torch.compiler.is_compiling()
    return on_gpu and scores.shape[-1] <= _COUNTED_UP_TO


def sort_by_counting(scores: Tensor) -> Sorted:
    """:func:`sort_descending` by n^2 comparisons, which a compiler fuses to one kernel."""
    element = torch.arange(scores.shape[-1], device=scores.device)
    own, other = scores.detach()[..., :, None], scores.detach()[..., None, :]
    earlier = element[None, :] < element[:, None]
    ranks = ((other > own) | ((other == own) & earlier)).sum(-1)
    order = torch.zeros_like(ranks).scatter(-1, ranks, element.expand_as(ranks))
    return Sorted(permuted(scores, order, ranks), order, ranks)


def permuted(values: Tensor, order: Tensor, ranks: Tensor) -> Tensor:
    """Permute values by ``order``, whose inverse is ``ranks``.

    In compiled code the gradient is gathered by the inverse. Torch's own gradient is a scatter into
    zeros, which code compiled for a CPU by torch 2.13 and earlier may read too early: the gradient
    would be silently lost.
    """
    if torch.compiler.is_compiling():
        found: Tensor = _permuted(values, order, ranks)
        return found
    return values.gather(-1, order)


class _Permuted(Operation):
    @staticmethod
    def forward(values: Tensor, order: Tensor, ranks: Tensor) -> Tensor:
        return values.gather(-1, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, ranks = ctx.saved_tensors
        return _permuted(grad, ranks, order), None, None


_permuted = in_graph(_Permuted)


def distance_sums(ranked: Tensor) -> Tensor:
    """Sums of distances to all others, for sorted scores, by one cumulative sum."""
    running = ranked.cumsum(-1)
    return 2 * running + (neural_sort_slope(ranked) - 1) * ranked - running[..., -1:]


def distance_sums_gradient(grad: Tensor) -> Tensor:
    """The gradient of :func:`distance_sums` in the scores."""
    running = grad.cumsum(-1)
    return running[..., -1:] - 2 * running + (neural_sort_slope(grad) + 1) * grad


def neural_sort_slope(like: Tensor) -> Tensor:
    """NeuralSort's factor of the scores at every rank, n - 1 - 2r for ranks from zero."""
    n = like.shape[-1]
    return torch.arange(n - 1, -n, -2, dtype=like.dtype, device=like.device)


def neural_sort_logits(scores: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    r""":math:`(n + 1 - 2r) s_j - \sum_i |s_j - s_i|`, up to a constant per row.

    The terms grow with n and nearly cancel, so they are formed in float64.
    """
    dtype, wide = dtype or scores.dtype, scores.double()
    slope = neural_sort_slope(wide)
    if counted(wide):
        # All distances are one additional kernel; sorting and unsorting are several.
        wide = materialize(wide)
        distance = (wide[..., :, None] - wide[..., None, :]).abs().sum(-1)
        logits = slope[:, None] * wide[..., None, :] - distance[..., None, :]
        return (logits - logits.detach().amax(-1, keepdim=True)).to(dtype)
    ranked, order, ranks = sort_descending(wide)
    sums = distance_sums(ranked)
    distance = permuted(sums, ranks, order)
    peak = (slope * ranked - sums).detach()  # a row's own rank has its largest entry
    logits = torch.addcmul(-distance[..., None, :], slope[:, None], wide[..., None, :])
    return (logits - peak[..., None]).to(dtype)


def neural_sort(scores: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """NeuralSort (Grover et al., 2019): every row a softmax, unimodal."""
    return torch.softmax(neural_sort_logits(scores, dtype), -1)


def soft_sort(scores: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """SoftSort (Prillo and Eisenschlos, 2020): a softmax of distances to the sorted scores."""
    if counted(scores):
        scores = materialize(scores)
    if torch.compiler.is_compiling():  # see `permuted`
        ranked = sort_descending(scores).scores
    else:
        ranked = scores.sort(dim=-1, descending=True, stable=True).values
    distance = (ranked[..., :, None] - scores[..., None, :]).abs()
    return torch.softmax(-distance.to(dtype or scores.dtype), -1)


def sinkhorn_sort(scores: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Doubly stochastic, by Sinkhorn's alternating normalization.

    The logits are NeuralSort's: their column term is the optimal potential of the hard sort, so
    few rounds suffice at low temperatures. Columns are normalized last and sum to one exactly.
    """
    logits = neural_sort_logits(scores, dtype)
    for _ in range(SINKHORN_ROUNDS):
        logits = torch.log_softmax(logits, -1)
        logits = torch.log_softmax(logits, -2)
    return logits.exp()


# Functions of scores and, optionally, the type of the matrix.
SORTS: dict[str, Callable[..., Tensor]] = {
    "neuralsort": neural_sort,
    "softsort": soft_sort,
    "sinkhorn": sinkhorn_sort,
}


def permutation_matrix(order: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix whose row r is one at the element of rank r."""
    elements = torch.arange(order.shape[-1], device=order.device)
    return (order[..., None] == elements).to(dtype)
