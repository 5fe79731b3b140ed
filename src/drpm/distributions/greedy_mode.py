r"""The most likely sizes, and the soft sizes around them.

The log-mass of sizes is a sum of concave functions, one of each group, so the best way to place c
elements in some groups takes the c largest of their increments
:math:`\log\omega_j + \log\frac{m_j - s}{s + 1}`, from size s to s + 1.
"""

import math

import torch
from torch import Tensor

from drpm.distributions.size_tables import (
    IMPOSSIBLE,
    SoftSizes,
    binomial_modes,
    half_window,
    search_tilt,
)

_WIDEST_BRACKET = 2048.0  # twice 45 and the logarithm of any number
_MOST_RANKS = 1 << 23  # ranks of increments that are held at once


@torch.no_grad()
def mode(total: int, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """The most likely sizes: a common threshold of all increments is a tilt of the binomials."""
    n = torch.full((), float(total), dtype=log_weights.dtype, device=log_weights.device)
    # One group's increments, from size s on, lie at least log((s + 2) / (s + 1)) apart. In a
    # shorter interval of tilts there is at most one of each group.
    digits = math.ceil(math.log2(_WIDEST_BRACKET * (total + 2)))
    lower, _ = search_tilt(n, log_weights, capacities, digits=digits, modes=True)
    sizes = binomial_modes(log_weights + lower[..., None], capacities)
    # What is missing goes, one each, to the groups whose next increment is the largest; what is
    # too much (a group on the threshold, by rounding) leaves those whose last was the smallest.
    missing = (n - sizes.sum(-1))[..., None]
    gained = torch.log((capacities - sizes) / (sizes + 1)) + log_weights
    lost = torch.log((capacities - sizes + 1) / sizes) + log_weights
    return sizes + (_rank(-gained) < missing).double() - (_rank(lost) < -missing).double()


def _rank(values: Tensor) -> Tensor:
    return torch.argsort(values, dim=-1, stable=True).argsort(-1)


def soft_mode(
    total: int, log_weights: Tensor, capacities: Tensor, temperature: Tensor
) -> SoftSizes:
    r"""The most likely sizes (..., K), K >= 2, with distributions around them.

    The logits of size s of group k are the log-mass of the best sizes that continue those of the
    groups before it with s. All of them are sums of increments between those sizes and the mode.
    """
    sizes = mode(total, log_weights.detach(), capacities)
    half = half_window(total)
    offset = torch.arange(-half, half + 1, dtype=sizes.dtype, device=sizes.device)
    gains = _increments(sizes[..., None] + offset[:-1], log_weights, capacities)
    with torch.no_grad():
        order = _later_increments(gains, half)
    later = gains.flatten(-2).gather(-1, order.flatten(-2)).unflatten(-1, order.shape[-2:])
    own = gains[..., :-1, :]
    # One element more in group k is one less in later groups, and the other way round.
    more = (own[..., half:] - later[..., :half].flip(-1)).cumsum(-1)
    fewer = (later[..., half:] - own[..., :half].flip(-1)).cumsum(-1)
    logits = torch.cat([fewer.flip(-1), torch.zeros_like(more[..., :1]), more], -1)
    soft = torch.softmax(logits / temperature[..., None, None], -1)
    size = (sizes[..., :-1, None] + offset).long().clamp(0, total)
    probs = soft.new_zeros(*soft.shape[:-1], total + 1)
    return SoftSizes(sizes, probs.scatter_add(-1, size.expand_as(soft), soft))


def _increments(sizes: Tensor, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """What one more element adds to the log-mass, at sizes (..., K, S); they descend along S."""
    room = capacities[..., None] - sizes
    gains = log_weights[..., None] + torch.log(room.clamp_min(1) / (sizes + 1).clamp_min(1))
    gains = torch.where(room > 0, gains, IMPOSSIBLE)
    return torch.where(sizes >= 0, gains, -IMPOSSIBLE)


def _later_increments(gains: Tensor, half: int) -> Tensor:
    """(..., K - 1, 2 half): which increments of the groups behind every boundary come next.

    In descending order; the first half are those that the mode has taken, the others it has not.
    Of equal increments those of earlier groups come first. ``gains`` is (..., K, 2 half).
    """
    groups, width = gains.shape[-2:]
    falls, count = -gains, groups * width
    batch = falls.shape[:-2]
    group = torch.arange(groups, device=gains.device)
    owner = group.repeat_interleave(width)
    own_rank = torch.arange(width, device=gains.device).repeat(groups)
    flat = falls.flatten(-2)[..., None, :]
    above = torch.nextafter(flat, torch.full_like(flat, torch.inf))
    size = max(1, _MOST_RANKS // max(1, batch.numel() * count))
    behind = torch.zeros((*batch, 1, count), dtype=torch.long, device=gains.device)
    found = []
    for some in group[1:].flip(0).split(size):  # from the last group to the second
        # How many increments of each of these groups come before each of all increments.
        query = torch.where(some[:, None] < owner, above, flat)
        ahead = torch.searchsorted(falls[..., some, :].contiguous(), query.contiguous())
        ahead = torch.where(some[:, None] == owner, own_rank, ahead)
        ranks = behind + ahead.cumsum(-2)
        behind = ranks[..., -1:, :]
        taken = (groups - some[:, None]) * half
        place = ranks - taken + half
        kept = (owner >= some[:, None]) & (place >= 0) & (place < width)
        index = torch.arange(count, device=gains.device).expand_as(place)
        order = torch.zeros((*place.shape[:-1], width + 1), dtype=torch.long, device=gains.device)
        found.append(order.scatter(-1, torch.where(kept, place, width), index)[..., :width])
    return torch.cat(found, -2).flip(-2)
