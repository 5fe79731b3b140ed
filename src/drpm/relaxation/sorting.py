r"""Relaxed permutation matrices of a sort in descending order.

Row r of a matrix is the (soft) choice of the element at rank r. All operators take scores already
divided by the temperature, and n x n memory; :mod:`drpm.relaxation.filling` avoids that.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from drpm.relaxation.storing import stored

SINKHORN_ROUNDS = 20

# Up to here it is quicker, in compiled code on a GPU, to count how many are ahead of each.
_COUNTED_UP_TO = 512


class Sorted(NamedTuple):
    """Scores in descending order, and who is where."""

    scores: Tensor  # (..., n)
    order: Tensor  # (..., n) the element at every rank
    ranks: Tensor  # (..., n) the rank of every element


def sort_descending(scores: Tensor) -> Sorted:
    """Sort; equal scores stay in the order of their elements."""
    if counted(scores):
        return sort_by_counting(scores)
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    return Sorted(ranked, order, torch.argsort(order, -1))


def order_descending(scores: Tensor) -> Tensor:
    """The element at every rank."""
    if counted(scores):
        return sort_by_counting(stored(scores)).order
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
    return Sorted(scores.gather(-1, order), order, ranks)


def distance_sums(ranked: Tensor) -> Tensor:
    """Sum of distances to all others, for scores in descending order, from one cumulative sum."""
    n = ranked.shape[-1]
    above = torch.arange(n, dtype=ranked.dtype, device=ranked.device)
    running = ranked.cumsum(-1)
    return 2 * running + (n - 2 - 2 * above) * ranked - running[..., -1:]


def neural_sort_logits(scores: Tensor) -> Tensor:
    r""":math:`(n + 1 - 2r) s_j - \sum_i |s_j - s_i|`, up to a constant per row.

    The terms grow with n and nearly cancel, so they are formed in float64.
    """
    n = scores.shape[-1]
    wide = scores.double()
    if counted(wide):
        wide = stored(wide)
    ranked, _, back = sort_descending(wide)
    distance = distance_sums(ranked)
    slope = n - 1 - 2 * torch.arange(n, dtype=ranked.dtype, device=ranked.device)
    peak = (slope * ranked - distance).detach()  # a row's largest entry is that of its own rank
    column = distance.gather(-1, back)
    logits = torch.addcmul(-column[..., None, :], slope[:, None], wide[..., None, :])
    return (logits - peak[..., None]).to(scores.dtype)


def neural_sort(scores: Tensor) -> Tensor:
    """NeuralSort (Grover et al., 2019): every row a softmax, unimodal."""
    return torch.softmax(neural_sort_logits(scores), -1)


def soft_sort(scores: Tensor) -> Tensor:
    """SoftSort (Prillo and Eisenschlos, 2020): a softmax of distances to the sorted scores."""
    ranked = scores.sort(dim=-1, descending=True, stable=True).values
    return torch.softmax(-(ranked[..., :, None] - scores[..., None, :]).abs(), -1)


def sinkhorn_sort(scores: Tensor) -> Tensor:
    """Doubly stochastic, by Sinkhorn's alternating normalisation.

    The logits are NeuralSort's: their column term is the optimal potential of the hard sort, so
    few rounds suffice at low temperatures. Columns come last, and sum to one exactly.
    """
    logits = neural_sort_logits(scores)
    for _ in range(SINKHORN_ROUNDS):
        logits = torch.log_softmax(logits, -1)
        logits = torch.log_softmax(logits, -2)
    return logits.exp()


SORTS: dict[str, Callable[[Tensor], Tensor]] = {
    "neuralsort": neural_sort,
    "softsort": soft_sort,
    "sinkhorn": sinkhorn_sort,
}


def permutation_matrix(order: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix whose row r is one at the element of rank r."""
    elements = torch.arange(order.shape[-1], device=order.device)
    return (order[..., None] == elements).to(dtype)
