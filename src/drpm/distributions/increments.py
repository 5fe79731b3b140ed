r"""The most likely sizes, and the laws around them, from a sort in place of a chain.

The log-mass of sizes is a sum of concave functions, one of each group, so the best way to give c
elements to some groups takes the c largest of their increments
:math:`\log\omega_j + \log\frac{m_j - s}{s + 1}`, from size s to s + 1. Where every increment stands
among those of groups k..K, for all k at once, says everything that the tables of maxima in
:mod:`drpm.distributions.urn_windows` say, without building them group after group.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions import urn, urn_windows

# Beyond so many ranks, of every increment behind every group, a chain takes less memory and hardly
# longer.
_MOST_RANKS = 1 << 22


def available(total: int, log_weights: Tensor) -> bool:
    """Whether sizes are found in this way: where a compiler fuses it, and all sizes count."""
    whole = urn_windows.window_width(total) == total + 1
    few = log_weights.numel() * log_weights.shape[-1] * total <= _MOST_RANKS
    return torch.compiler.is_compiling() and whole and few


def soft_mode(
    total: int, log_weights: Tensor, capacities: Tensor, temperature: Tensor
) -> urn.SoftSizes:
    """The most likely sizes, as whole numbers and as the laws of soft ones.

    Equal increments are taken from earlier groups first.

    Arguments:
        total: n, the number of elements to give out.
        log_weights: (..., K), float64.
        capacities: (..., K), float64.
        temperature: Of the soft sizes, (...).
    """
    # Only differences matter, and what is common to all weights would cost digits. The largest one,
    # because the first may be that of a group that is left out.
    weights = log_weights - log_weights.detach().amax(-1, keepdim=True)
    gains = _increments(total, weights, capacities)
    size = torch.arange(total + 1, dtype=gains.dtype, device=gains.device)
    with torch.no_grad():
        ranks = _ranks(gains)
        sizes = (ranks[..., 0, :, :] < total).sum(-1).to(gains.dtype)
        before = (total - sizes.cumsum(-1) + sizes)[..., :-1]
        # A group that takes t leaves all but t places to the best increments of later groups.
        places = before[..., None, None].long() - 1 - ranks[..., 1:, :, :]
        group = torch.arange(gains.shape[-2], device=gains.device)
        later = (group[:-1, None] < group)[..., None]
        places = torch.where(later & (places >= 0), places, total).flatten(-2)
        room = torch.minimum(before, capacities[..., :-1])[..., None]
        binomials = urn.log_binomial(capacities[..., :-1, None], size)
    taken = gains.flatten(-2)[..., None, :].expand_as(places)
    others = gains.new_zeros(*places.shape[:-1], total + 1).scatter(-1, places, taken)
    others = F.pad(others[..., :total].flip(-1).cumsum(-1).flip(-1), (0, 1))
    own = binomials + size * weights[..., :-1, None]
    log_mass = torch.where(size <= room, own + others, urn.IMPOSSIBLE)
    laws = torch.softmax(log_mass / temperature[..., None, None], -1)
    return urn.SoftSizes(sizes, laws)


def _increments(total: int, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """(..., K, n): what the log-mass gains by one more element in a group, less and less."""
    size = torch.arange(total, dtype=log_weights.dtype, device=log_weights.device)
    room = capacities[..., None] - size
    gains = log_weights[..., None] + torch.log(room.clamp_min(1) / (size + 1))
    return torch.where(room > 0, gains, urn.IMPOSSIBLE)


def _ranks(gains: Tensor) -> Tensor:
    """(..., K, K, n): for every k, how many increments of groups k..K come before each."""
    groups, total = gains.shape[-2:]
    falls = -gains
    group = torch.arange(groups, device=gains.device)
    earlier = (group[:, None] < group)[..., None]
    # Equal increments of earlier groups come before one, those of later groups do not.
    found = falls[..., None, :, :]
    found = torch.where(earlier, torch.nextafter(found, torch.full_like(found, torch.inf)), found)
    ahead = torch.searchsorted(falls.contiguous(), found.flatten(-2)).unflatten(-1, (groups, total))
    own = (group[:, None] == group)[..., None]
    ahead = torch.where(own, torch.arange(total, device=gains.device), ahead)
    return ahead.flip(-3).cumsum(-3).flip(-3)
