"""The tilt of an urn's binomials, at which they give out the total: on average, or at their modes.

What they give out grows with the tilt, so that a search on a grid finds it, whatever the weights.
"""

import math

import torch
from torch import Tensor

from drpm.distributions.urn_pair import LISTED_UP_TO, mode_of_pair

_WIDEST_BRACKET = 2048.0  # twice 45 and the logarithm of any number


def _refine(
    lower: Tensor, upper: Tensor, below: "_Predicate", digits: int
) -> tuple[Tensor, Tensor]:
    """Shrink [lower, upper] by 2^digits around the point where a monotone predicate turns false."""
    # Many points at once: few large operations instead of many small ones, unless K is large.
    bits = 8 if below.log_weights.shape[-1] <= 64 else 4
    fractions = torch.linspace(0, 1, 2**bits + 1, dtype=lower.dtype, device=lower.device)
    for _ in range(math.ceil(digits / bits)):
        grid = lower[..., None] + (upper - lower)[..., None] * fractions
        cell = (below(grid).sum(-1, keepdim=True) - 1).clamp(0, 2**bits - 1)
        # The very points that were tested, so that the predicate holds at `lower` to the last bit.
        lower, upper = grid.gather(-1, torch.cat([cell, cell + 1], -1)).unbind(-1)
    return lower, upper


class _Predicate:
    """Whether a count that grows with the tilt is still at most ``total``, on a grid of tilts."""

    def __init__(self, total: Tensor, log_weights: Tensor, capacities: Tensor, whole: bool) -> None:
        self.total, self.log_weights = total[..., None], log_weights[..., None, :]
        self.capacities, self.whole = capacities[..., None, :], whole

    def __call__(self, grid: Tensor) -> Tensor:
        chance = torch.sigmoid(self.log_weights + grid[..., None])
        if self.whole:  # the modes of the binomials, whole numbers
            count = torch.minimum(((self.capacities + 1) * chance).floor(), self.capacities)
        else:  # their means
            count = self.capacities * chance
        return count.sum(-1) <= self.total


def _bracket(total: Tensor, log_weights: Tensor, capacities: Tensor) -> tuple[Tensor, Tensor]:
    """Tilts that give out too little and too much, however far apart the weights are.

    Filled in descending order of their weights, some group is the one in which the total is
    reached. Far below its own threshold all groups before it are too few; far above, enough.
    """
    margin = torch.log1p(capacities.sum(-1)) + 45
    shape = torch.broadcast_shapes(total.shape, margin.shape)
    ranked, order = log_weights.sort(dim=-1, descending=True)
    order, room = torch.broadcast_tensors(order, capacities)
    filled = room.gather(-1, order).cumsum(-1).expand(*shape, -1)
    last = (filled < total[..., None]).sum(-1, keepdim=True).clamp_max(order.shape[-1] - 1)
    threshold = -ranked.expand(*shape, -1).gather(-1, last).squeeze(-1)
    return threshold - margin, threshold + margin


@torch.no_grad()
def tilt(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Tensor:
    r"""The t at which :math:`\sum_k m_k \sigma(\log\omega_k + t)` equals ``total``, nearly.

    Any t gives exact results; one within a deviation of the mean gives well-conditioned ones.
    """
    lower, upper = _bracket(total, log_weights, capacities)
    below = _Predicate(total, log_weights, capacities, whole=False)
    lower, upper = _refine(lower, upper, below, digits=16)
    return (lower + upper) / 2


@torch.no_grad()
def mode(total: int, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """The most likely sizes.

    The log-mass is a sum of concave functions of one size each, so the best sizes take the n
    largest of all increments; a common threshold on the increments is a tilt of the binomials.
    """
    if log_weights.shape[-1] == 2 and total <= LISTED_UP_TO:
        return mode_of_pair(total, log_weights, capacities)
    n = torch.full((), float(total), dtype=log_weights.dtype, device=log_weights.device)
    # One group's increments, from size s on, lie at least log((s + 2) / (s + 1)) apart. In a
    # shorter interval of tilts there is at most one of each group.
    digits = math.ceil(math.log2(_WIDEST_BRACKET * (total + 2)))
    below = _Predicate(n, log_weights, capacities, whole=True)
    lower, _ = _refine(*_bracket(n, log_weights, capacities), below, digits)
    chance = torch.sigmoid(log_weights + lower[..., None])
    sizes = torch.minimum(((capacities + 1) * chance).floor(), capacities)
    # What is missing goes, one each, to the groups whose next increment is the largest; what is
    # too much (a group on the threshold, by rounding) leaves those whose last was the smallest.
    missing = (n - sizes.sum(-1))[..., None]
    gained = torch.log((capacities - sizes) / (sizes + 1)) + log_weights
    lost = torch.log((capacities - sizes + 1) / sizes) + log_weights
    return sizes + (_rank(-gained) < missing).double() - (_rank(lost) < -missing).double()


def _rank(values: Tensor) -> Tensor:
    return torch.argsort(values, dim=-1, stable=True).argsort(-1)
