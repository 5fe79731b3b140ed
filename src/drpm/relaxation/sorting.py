r"""Relaxed permutation matrices of a sort in descending order.

Row r of a matrix is the (soft) choice of the element at rank r. All operators take scores already
divided by the temperature, and n x n memory; :mod:`drpm.relaxation.filling` avoids that.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drpm.relaxation.reparameterization import apply, maps_leading, materialize

SINKHORN_ROUNDS = 20

# Up to here it is quicker, in compiled code on a GPU, to count how many are ahead of each.
_COUNTED_UP_TO = 512


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
    before that, so that the gradient is lost without a word.
    """
    if torch.compiler.is_compiling():
        return _permuted(values, order, ranks)
    return values.gather(-1, order)


def _permuted(values: Tensor, order: Tensor, ranks: Tensor) -> Tensor:
    found: Tensor = apply(_Permuted, values, order, ranks)
    return found


# Torch's compiler does not map custom functions; what it takes as it is, torch.func does.
torch.compiler.allow_in_graph(_permuted)


@maps_leading
class _Permuted(torch.autograd.Function):
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
