r"""Gumbel noise, discrete values with continuous gradients, and relaxed sorts.

Row r of a relaxed permutation matrix is the (soft) choice of the element at rank r, in descending
order. All sorts take scores already divided by the temperature, and n x n memory;
:mod:`drpm.relaxation.filling` avoids that.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SINKHORN_ROUNDS = 20

# Up to here it is quicker, in compiled code on a GPU, to count how many are ahead of each.
_COUNTED_UP_TO = 512


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
            "This function of a drpm distribution has no forward-mode derivatives (torch.func.jvp, "
            "torch.autograd.forward_ad); use reverse mode, such as torch.func.vjp or backward()."
        ) from None


class Operation(torch.autograd.Function):
    """A custom function of tensors with any leading dimensions, over which torch.func maps it."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """By default, nothing is kept for the backward pass."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        def leading(value: Any, dim: int | None) -> Any:
            """The mapped dimension first, where a batch is expected."""
            if not isinstance(value, Tensor):
                return value
            whole = (info.batch_size, *value.shape)
            return value.expand(whole) if dim is None else value.movedim(dim, 0)

        out = apply(cls, *map(leading, inputs, in_dims))
        return out, (0 if isinstance(out, Tensor) else (0,) * len(out))


def in_graph(operation: type[Operation]) -> Callable[..., Any]:
    """An operation as a function that a compiler takes as it is.

    Torch's compiler does not map custom functions; what it takes as it is, torch.func does.
    """

    def call(*inputs: Any) -> Any:
        return apply(operation, *inputs)

    torch.compiler.allow_in_graph(call)
    return call


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
    """The same tensor, whose entries a compiler computes once.

    A compiler that fuses an operation into the next repeats it for every use of its result. Where
    all pairs of n entries are formed, that is n times, noise and logarithms included: ten times
    what a step of clustering costs otherwise.
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
    """In this form a compiler leaves out what is soft where only its gradient is needed."""

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
    """Sort; equal scores stay in the order of their elements."""
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
    """Whether scores are sorted by counting here."""
    on_gpu = scores.is_cuda and torch.compiler.is_compiling()
    return on_gpu and scores.shape[-1] <= _COUNTED_UP_TO


def sort_by_counting(scores: Tensor) -> Sorted:
    """The same from all n^2 comparisons, which a compiler makes one kernel of."""
    element = torch.arange(scores.shape[-1], device=scores.device)
    own, other = scores.detach()[..., :, None], scores.detach()[..., None, :]
    earlier = element[None, :] < element[:, None]
    ranks = ((other > own) | ((other == own) & earlier)).sum(-1)
    order = torch.zeros_like(ranks).scatter(-1, ranks, element.expand_as(ranks))
    return Sorted(permuted(scores, order, ranks), order, ranks)


def permuted(values: Tensor, order: Tensor, ranks: Tensor) -> Tensor:
    """Values in another order, whose inverse is ``ranks``.

    In compiled code the gradient is read through the inverse. Left to torch it is written through
    the order, into zeros; and what torch 2.13 and earlier compile for a CPU may read the zeros
    before that, so that the gradient is silently lost.
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
    """Sum of distances to all others, for scores in descending order, from one cumulative sum."""
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
        # All distances are one kernel more, where a sort and the way back from it are several.
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
    few rounds suffice at low temperatures. Columns come last, and sum to one exactly.
    """
    logits = neural_sort_logits(scores, dtype)
    for _ in range(SINKHORN_ROUNDS):
        logits = torch.log_softmax(logits, -1)
        logits = torch.log_softmax(logits, -2)
    return logits.exp()


# From scores, and the type of the matrix if it is another one than theirs.
SORTS: dict[str, Callable[..., Tensor]] = {
    "neuralsort": neural_sort,
    "softsort": soft_sort,
    "sinkhorn": sinkhorn_sort,
}


def permutation_matrix(order: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix whose row r is one at the element of rank r."""
    elements = torch.arange(order.shape[-1], device=order.device)
    return (order[..., None] == elements).to(dtype)
