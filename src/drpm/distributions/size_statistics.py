r"""The normalizer, the mean and the mode of sizes.

:math:`P_0 = [x^n] \prod_k (1 + \omega_k x)^{m_k}` is, up to a factor, the probability that tilted
binomials (:mod:`drpm.distributions.size_tables`) sum to n. A periodic trapezoid rule inverts the
characteristic function of their sum; its error is the mass of the sum one period away, so some
thirty nodes reach float64 precision for any n. With limits on the sizes the binomials are
truncated and have no such closed form, and the tables of their sums are used.

The log-mass of sizes is a sum of concave functions, one of each group, so the best way to place c
elements in some groups takes the c largest of their increments
:math:`\log\omega_j + \log\frac{m_j - s}{s + 1}`, from size s to s + 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from drpm.distributions.size_tables import SoftSizes, half_window, suffix_tables
from drpm.distributions.size_urns import IMPOSSIBLE, Urn, search_tilt, tilt

# The sum's mass beyond 9 deviations + 20 is below 1e-17 of its mass at the mean (Bennett's
# inequality for sums of indicators); 32 nodes reach the point where the characteristic function
# has fallen by e^-40, or the end of the period, whichever comes first.
_NODES = 32
_DEVIATIONS = 9.0
_MARGIN = 20.0
_WIDEST_BRACKET = 2048.0  # twice 45 and the logarithm of any number
_MOST_RANKED = 1 << 23  # increments that are sorted at once


class Mean(NamedTuple):
    """The mean of every group's size, and the normalizer, which comes with it."""

    log_normalizer: Tensor  # (...)
    mean: Tensor  # (..., K)


def _invert(urn: Urn) -> Mean:
    """Integrate the characteristic function of the sum."""
    total, log_weights, capacities = urn.total, urn.log_weights, urn.capacities
    shift = tilt(urn)
    logit = log_weights + shift[..., None]
    # Work with whichever of success and failure is the rarer, so that nothing rounds to one.
    mostly_in = logit.detach() > 0
    rare = torch.sigmoid(torch.where(mostly_in, -logit, logit))
    prob = torch.where(mostly_in, 1 - rare, rare)
    miss = torch.where(mostly_in, rare, 1 - rare)
    spread = rare * (1 - rare)

    with torch.no_grad():
        deviation = (capacities * spread).sum(-1).sqrt()
        half_period = torch.ceil((_DEVIATIONS * deviation + _MARGIN) / 2)
        index = torch.arange(_NODES, dtype=logit.dtype, device=logit.device)
        inside = index <= half_period[..., None]
        period = 2 * half_period[..., None] + 1  # odd: no node at pi, where a fair coin vanishes
        angle = torch.where(inside, 2 * math.pi * index / period, 0.0)
        weight = torch.where(index == 0, 1.0, 2.0) / period * inside
        cosine, sine = torch.cos(angle)[..., None, :], torch.sin(angle)[..., None, :]
        lens = torch.sin(angle / 2).square() * 4

    modulus = 1 - spread[..., None] * lens[..., None, :]
    log_modulus = 0.5 * torch.log1p(-spread[..., None] * lens[..., None, :])
    rare_ = rare[..., None]
    turn = torch.atan2(rare_ * sine, 1 - rare_ + rare_ * cosine)
    turn = torch.where(mostly_in[..., None], -turn, turn)
    surplus = (capacities * mostly_in).sum(-1) - total  # whole, so the large phases cancel exactly
    phase = (capacities[..., None] * turn).sum(-2) + surplus[..., None] * angle
    magnitude = weight * torch.exp((capacities[..., None] * log_modulus).sum(-2))
    log_scale = (
        (capacities * torch.where(mostly_in, log_weights, 0.0)).sum(-1)
        + surplus * shift
        - (capacities * torch.log1p(-rare)).sum(-1)
    )
    real, imag = magnitude * torch.cos(phase), magnitude * torch.sin(phase)
    mass = real.sum(-1)
    # z - p, with z = p e^{i theta} / phi the complex success probability, averaged over nodes.
    scale = (prob * miss)[..., None] / modulus
    real_part, imag_part = scale * (1 - cosine) * (prob - miss)[..., None], scale * sine
    weighted = real[..., None, :] * real_part - imag[..., None, :] * imag_part
    average = weighted.sum(-1) / mass[..., None]
    return Mean(log_scale + mass.log(), capacities * (prob + average))


def _has_tables(urn: Urn) -> bool:
    """Whether limits matter: the only group takes everything."""
    return urn.limits is not None and urn.log_weights.shape[-1] > 1


def log_normalizer(urn: Urn) -> Tensor:
    r""":math:`\log [x^n] \prod_k (1 + \omega_k x)^{m_k}`, in O(K) whatever n.

    With limits every factor only has its terms within them, and the time is O(K n).
    """
    if _has_tables(urn):
        return suffix_tables(urn).log_normalizer()
    return _invert(urn).log_normalizer


def mean(urn: Urn) -> Mean:
    """The exact mean of every group's size, and the normalizer."""
    if not _has_tables(urn):
        return _invert(urn)
    tables = suffix_tables(urn)
    return Mean(tables.log_normalizer(), tables.mean())


@torch.no_grad()
def mode(urn: Urn) -> Tensor:
    """The most likely sizes: a common threshold of all increments is a tilt of the binomials."""
    limits, log_weights, capacities = urn.limits, urn.log_weights, urn.capacities

    def modes(logits: Tensor, room: Tensor, *ends: Tensor) -> Tensor:
        found = torch.minimum(((room + 1) * torch.sigmoid(logits)).floor(), room)
        return found.clamp(*ends) if ends else found

    # One group's increments, from size s on, lie at least log((s + 2) / (s + 1)) apart. In a
    # shorter interval of tilts there is at most one of each group.
    digits = math.ceil(math.log2(_WIDEST_BRACKET * (urn.largest + 2)))
    given = (capacities, *(limits or ()))
    wide = [x[..., None, :] for x in given]
    lower, _ = search_tilt(urn, lambda logits: modes(logits, *wide), digits=digits)
    sizes = modes(log_weights + lower[..., None], *given)
    # What is missing goes, one each, to the groups whose next increment is the largest; what is
    # too much (a group on the threshold, by rounding) leaves those whose last was the smallest.
    missing = (urn.total - sizes.sum(-1))[..., None]
    gained = torch.log((capacities - sizes) / (sizes + 1)) + log_weights
    lost = torch.log((capacities - sizes + 1) / sizes) + log_weights
    if limits is not None:
        gained = torch.where(sizes < limits.high, gained, -torch.inf)
        lost = torch.where(sizes > limits.low, lost, torch.inf)
    return sizes + (_rank(-gained) < missing).double() - (_rank(lost) < -missing).double()


def _rank(values: Tensor) -> Tensor:
    return torch.argsort(values, dim=-1, stable=True).argsort(-1)


def soft_mode(urn: Urn, temperature: Tensor) -> SoftSizes:
    r"""The most likely sizes (..., K), K >= 2, with distributions around them.

    The logits of size s of group k are the log-mass of the best sizes that continue those of the
    groups before it with s. All of them are sums of increments between those sizes and the mode.
    """
    sizes, half = mode(urn), half_window(urn.largest)
    offset = torch.arange(-half, half + 1, dtype=sizes.dtype, device=sizes.device)
    gains = _increments(sizes[..., None] + offset[:-1], urn)
    with torch.no_grad():
        order = _later_increments(gains, half)
    later = gains.flatten(-2).gather(-1, order.flatten(-2)).unflatten(-1, order.shape[-2:])
    own = gains[..., :-1, :]
    # One element more in group k is one less in later groups, and the other way round.
    more = (own[..., half:] - later[..., :half].flip(-1)).cumsum(-1)
    fewer = (later[..., half:] - own[..., :half].flip(-1)).cumsum(-1)
    logits = torch.cat([fewer.flip(-1), torch.zeros_like(more[..., :1]), more], -1)
    soft = torch.softmax(logits / temperature[..., None, None], -1)
    size = (sizes[..., :-1, None] + offset).long().clamp(0, urn.largest)
    probs = soft.new_zeros(*soft.shape[:-1], urn.largest + 1)
    return SoftSizes(sizes, probs.scatter_add(-1, size.expand_as(soft), soft))


def _increments(sizes: Tensor, urn: Urn) -> Tensor:
    """What one more element adds to the log-mass, at sizes (..., K, S); they descend along S."""
    room = urn.capacities[..., None] - sizes
    gains = urn.log_weights[..., None] + torch.log(room.clamp_min(1) / (sizes + 1).clamp_min(1))
    more, some = room > 0, sizes >= 0
    if urn.limits is not None:
        more, some = sizes < urn.limits.high[..., None], sizes >= urn.limits.low[..., None]
    return torch.where(some, torch.where(more, gains, IMPOSSIBLE), -IMPOSSIBLE)


def _later_increments(gains: Tensor, half: int) -> Tensor:
    """(..., K - 1, 2 half): which increments of the groups behind every boundary come next.

    In descending order; the first half are those that the mode has taken, the others it has not.
    Of equal increments those of earlier groups come first. ``gains`` is (..., K, 2 half).
    """
    groups, width = gains.shape[-2:]
    group = torch.arange(groups, device=gains.device)
    # Increments of groups before a boundary go to the far ends of its list.
    ends = gains.new_full((width,), -2 * IMPOSSIBLE)
    ends[half:] = 2 * IMPOSSIBLE
    middle = slice((groups - 1) * half, (groups + 1) * half)
    found = []
    for some in group[:-1].split(max(1, _MOST_RANKED // max(1, gains.numel()))):
        behind = (group > some[:, None])[..., None]
        table = torch.where(behind, gains[..., None, :, :], ends).flatten(-2)
        found.append(table.argsort(dim=-1, descending=True, stable=True)[..., middle])
    return torch.cat(found, -2)
