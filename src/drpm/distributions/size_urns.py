r"""Urns: groups with weights, capacities and limits; their normalizer, mean and mode.

:math:`P_0 = [x^n] \prod_k (1 + \omega_k x)^{m_k}` is, up to a factor, the probability that tilted
binomials (:mod:`drpm.distributions.size_tables`) sum to n. A periodic trapezoid rule inverts the
characteristic function of their sum; its error is the mass of the sum one period away, so about
thirty nodes give float64 precision for any n.

The log-mass of sizes is a sum of concave functions of each group's size, so the best c elements for
some groups are the c largest increments :math:`\log\omega_j + \log\frac{m_j - s}{s + 1}` from size
s to s + 1.
"""

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions.validation import can_check_values, describe, require_broadcast

# The logarithm of zero, finite for subtraction and division, exact in every float type.
IMPOSSIBLE = -(2.0**100)
_STIRLING_FROM = 32.0
_FEW_MASSES = 1 << 14  # up to here, truncated binomials are tilted at several points at once

# The sum's mass beyond 9 deviations + 20 is below 1e-17 of its mass at the mean (Bennett's
# inequality); 32 nodes suffice for the characteristic function to fall by e^-40, or cover the
# period.
_NODES = 32
_DEVIATIONS = 9.0
_MARGIN = 20.0
_WIDEST_BRACKET = 2048.0  # twice 45 and the logarithm of any number
_MOST_RANKED = 1 << 23  # increments that are sorted at once

# Half-width of a window of totals in units of the largest deviation, sqrt(n)/2, plus a margin for
# the heavier tails of small n. The mass outside is below 1e-19.
_WINDOW_DEVIATIONS = 9.5
_WINDOW_MARGIN = 24


class Limits(NamedTuple):
    """The smallest and the largest size of every group in the support."""

    low: Tensor  # (..., K) float64
    high: Tensor  # (..., K) float64


class Urn(NamedTuple):
    """Groups that share some elements: the parameters of the distribution of their sizes."""

    total: Tensor  # the number of elements, () or of the batch shape
    largest: int  # an upper bound on the totals
    log_weights: Tensor  # (..., K) float64
    capacities: Tensor  # (..., K) float64
    limits: Limits | None = None
    unbounded: bool = False  # every capacity is the total

    def from_group(self, group: int, total: Tensor) -> "Urn":
        """The urn of a group and all later ones, with their total."""
        shape = self.log_weights.shape
        parts = [self.log_weights, self.capacities, *(self.limits or ())]
        weights, capacities, *limits = (x.expand(shape)[..., group:] for x in parts)
        return Urn(total, self.largest, weights, capacities, Limits(*limits) if limits else None)


class SoftSizes(NamedTuple):
    """Sizes as integers and as distributions over 0..n."""

    hard: Tensor  # (..., K)
    probs: Tensor  # (..., K - 1, n + 1) of all sizes except the last


class Mean(NamedTuple):
    """The mean of every group's size, and the normalizer."""

    log_normalizer: Tensor  # (...)
    mean: Tensor  # (..., K)


def half_window(total: int) -> int:
    """The largest distance of a sum of sizes from its mean: about 5 sqrt(n), at most n."""
    return min(total, math.ceil(_WINDOW_DEVIATIONS * math.sqrt(total) / 2) + _WINDOW_MARGIN)


def window_width(total: int) -> int:
    """The number of totals in a table: all for small n, about 10 sqrt(n) for large n."""
    return min(total + 1, 2 * half_window(total) + 1)


# --- arguments -------------------------------------------------------------------------------


def resolve_capacities(total: int, log_weights: Tensor, capacities: Any, *, check: bool) -> Tensor:
    """The (batch, K) float64 capacities of a size law, checked."""
    groups, device = log_weights.shape[-1], log_weights.device
    if capacities is None:
        return torch.full(log_weights.shape, float(total), dtype=torch.float64, device=device)
    _require_groups("capacities", capacities, groups, "a tensor of integers", scalar=False)
    batch = require_broadcast(
        "log_weights and capacities", log_weights.shape[:-1], capacities.shape[:-1]
    )
    full: Tensor = capacities.to(device=device, dtype=torch.float64)
    if check and can_check_values(full):
        _require_whole("capacities", full)
        if bool((full.sum(-1) < total).any()):
            raise ValueError(
                f"capacities must sum to at least total_count = {total}, "
                f"but got a sum of {int(full.sum(-1).min())}."
            )
    return full.expand(*batch, groups)


def resolve_limits(
    total: int, capacities: Tensor, minimum: Any, maximum: Any, *, check: bool
) -> Limits | None:
    """The limits of sizes within capacities (batch, K), checked; None if there are none."""
    if minimum is None and maximum is None:
        return None
    least = _limit("minimum", 0 if minimum is None else minimum, capacities)
    most = _limit("maximum", total if maximum is None else maximum, capacities)
    require_broadcast(
        "the parameters, minimum and maximum",
        *(x.shape[:-1] for x in (capacities, least, most)),
    )
    low, room = torch.broadcast_tensors(least, torch.minimum(capacities, most))
    if check and can_check_values(room - low):
        _check_limits(total, least, most, low, room)
    return attained(total, low, room)


def attained(total: int, low: Tensor, high: Tensor) -> Limits:
    """Tighten limits (..., K) by those of the other groups."""
    most_left = total - (low.sum(-1, keepdim=True) - low)
    least_left = total - (high.sum(-1, keepdim=True) - high)
    return Limits(torch.maximum(low, least_left), torch.minimum(high, most_left))


def _limit(name: str, value: Any, like: Tensor) -> Tensor:
    groups = like.shape[-1]
    if isinstance(value, Integral | float) and type(value) is not bool:
        return like.new_full((groups,), float(value))
    _require_groups(name, value, groups, "a whole number or a tensor of them", scalar=True)
    limit: Tensor = value.to(like).expand(*value.shape[:-1], groups)
    return limit


def _require_groups(name: str, value: Any, groups: int, expected: str, *, scalar: bool) -> None:
    if not isinstance(value, Tensor) or value.dtype == torch.bool:
        raise ValueError(f"{name} must be {expected}, but got {describe(value)}.")
    if value.shape[-1:] != (groups,) and not (scalar and value.dim() == 0):
        raise ValueError(
            f"{name} must have one entry per group ({groups}) in its last dimension, "
            f"but got {describe(value)}."
        )


def _require_whole(name: str, value: Tensor) -> None:
    bad = value[~(torch.isfinite(value) & (value >= 0) & (value == value.round()))]
    if bad.numel():
        raise ValueError(f"{name} must be integers of at least 0, but got {bad[0].item()}.")


def _check_limits(total: int, least: Tensor, most: Tensor, low: Tensor, room: Tensor) -> None:
    _require_whole("minimum", least)
    _require_whole("maximum", most)
    if bool((low > room).any()):
        group = (low > room).nonzero()[0].unbind()
        raise ValueError(
            "minimum must be at most the maximum and the capacity of every group, "
            f"but got {int(low[group])} and a group of at most {int(room[group])}."
        )
    if bool((low.sum(-1) > total).any()):
        raise ValueError(
            f"minimum must sum to at most total_count = {total} over the groups, "
            f"but got a sum of {int(low.sum(-1).max())}."
        )
    if bool((room.sum(-1) < total).any()):
        raise ValueError(
            f"maximum must leave room for total_count = {total} elements within the capacities, "
            f"but got room for {int(room.sum(-1).min())}."
        )


# --- binomials -------------------------------------------------------------------------------


def log_binomial(capacities: Tensor, sizes: Tensor) -> Tensor:
    """log C(m, n); 0 outside 0 <= n <= m, where the caller masks it."""
    inside = (sizes >= 0) & (sizes <= capacities)
    n = torch.where(inside, sizes, 0.0)
    rest = capacities - n + 1
    # For m much larger than n, log (m! / (m - n)!) cancels as a difference of log-factorials, but
    # not as a difference of Stirling's series.
    few = torch.lgamma(capacities + 1) - torch.lgamma(rest)
    wide = rest.clamp_min(_STIRLING_FROM)
    many = n * torch.log(wide + n) + (wide - 0.5) * torch.log1p(n / wide) - n
    many = many + _stirling_tail(wide + n) - _stirling_tail(wide)
    return torch.where(rest < _STIRLING_FROM, few, many) - torch.lgamma(n + 1)


def _stirling_tail(x: Tensor) -> Tensor:
    """The error of Stirling's formula for log Gamma(x), to 1e-16 for x >= 32."""
    inverse = 1 / x
    square = inverse * inverse
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


def look_up(log_binomials: Tensor, sizes: Tensor) -> Tensor:
    """Entries (..., K, S) of a table of the sizes 0..n; IMPOSSIBLE at other sizes."""
    padded = F.pad(log_binomials, (1, 1), value=IMPOSSIBLE).expand(*sizes.shape[:-1], -1)
    return padded.gather(-1, (sizes.long() + 1).clamp(0, padded.shape[-1] - 1))


# --- tilts -----------------------------------------------------------------------------------


def search_tilt(
    urn: Urn, sizes: Callable[[Tensor], Tensor], *, digits: int, cells: int = 256
) -> tuple[Tensor, Tensor]:
    """The lower end and the width of an interval of tilts at which sizes reach the total.

    ``sizes`` maps the logits (..., C, K) of C tilts to sizes, monotonically. The interval is
    ``2^digits`` times shorter than the first one. ``cells`` tilts are evaluated at once, for few
    large operations, unless K is large.
    """
    groups = urn.log_weights.shape[-1]
    if urn.unbounded and urn.limits is None:  # the group of the largest weight has enough capacity
        threshold = -urn.log_weights.amax(-1)
        margin = torch.log1p(groups * urn.total) + 45
    else:
        threshold = _threshold(urn)
        margin = torch.log1p(urn.capacities.sum(-1)) + 45
    lower, width = threshold - margin, 2 * margin
    cells = cells if groups <= 64 else min(cells, 16)
    points = torch.arange(1, cells, dtype=lower.dtype, device=lower.device)
    for _ in range(math.ceil(digits / math.log2(cells))):
        width = width / cells
        tilts = lower[..., None] + width[..., None] * points
        found = sizes(tilts[..., None] + urn.log_weights[..., None, :])
        lower = lower + width * (found.sum(-1) <= urn.total[..., None]).sum(-1)
    return lower, width


def _threshold(urn: Urn) -> Tensor:
    """A tilt near which the total is reached, for any weights.

    It is the threshold of the group in which the total is reached if groups are filled in
    descending order of their weights.
    """
    total, room = urn.total, urn.capacities
    if urn.limits is not None:
        total, room = total - urn.limits.low.sum(-1), urn.limits.high - urn.limits.low
    ranked, order = urn.log_weights.sort(dim=-1, descending=True)
    order, room = torch.broadcast_tensors(order, room)
    filled = room.gather(-1, order).cumsum(-1)
    last = (filled < total[..., None]).sum(-1, keepdim=True).clamp_max(order.shape[-1] - 1)
    return -ranked.expand(*last.shape[:-1], -1).gather(-1, last).squeeze(-1)


@torch.no_grad()
def tilt(urn: Urn) -> Tensor:
    r"""The t at which :math:`\sum_k m_k \sigma(\log\omega_k + t)` is about the total.

    Results are exact for any t, and well-conditioned within a deviation of the mean.
    """
    room = urn.capacities[..., None, :]
    lower, width = search_tilt(urn, lambda logits: room * torch.sigmoid(logits), digits=16)
    return lower + width / 2


class Truncated(NamedTuple):
    """Truncated and tilted binomials."""

    shift: Tensor  # (...) the tilt
    means: Tensor  # (..., K)
    log_binomials: Tensor  # (..., K, n + 1) of the sizes 0..n; IMPOSSIBLE outside the limits


@torch.no_grad()
def truncate(urn: Urn, limits: Limits) -> Truncated:
    """Truncate the binomials, and tilt them so that their means sum to about the total."""
    weights = urn.log_weights
    sizes = torch.arange(urn.largest + 1, dtype=weights.dtype, device=weights.device)
    possible = (sizes >= limits.low[..., None]) & (sizes <= limits.high[..., None])
    table = torch.where(possible, log_binomial(urn.capacities[..., None], sizes), IMPOSSIBLE)

    def means(logits: Tensor, table: Tensor) -> Tensor:
        return torch.softmax(table + sizes * logits[..., None], -1) @ sizes

    cells = 16 if table.numel() <= _FEW_MASSES else 2
    tables = table[..., None, :, :]
    lower, width = search_tilt(urn, lambda x: means(x, tables), digits=16, cells=cells)
    shift = lower + width / 2
    return Truncated(shift, means(weights + shift[..., None], table), table)


# --- the normalizer and the mean -------------------------------------------------------------


def invert(urn: Urn) -> Mean:
    """Integrate the characteristic function of the sum."""
    total, log_weights, capacities = urn.total, urn.log_weights, urn.capacities
    shift = tilt(urn)
    logit = log_weights + shift[..., None]
    # Use the rarer of success and failure, so that no probability rounds to one.
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
    surplus = (capacities * mostly_in).sum(-1) - total  # integer, so large phases cancel exactly
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


# --- the mode ---------------------------------------------------------------------------------


@torch.no_grad()
def mode(urn: Urn) -> Tensor:
    """The most likely sizes, by a common threshold of all increments, which is a tilt."""
    limits, log_weights, capacities = urn.limits, urn.log_weights, urn.capacities

    def modes(logits: Tensor, room: Tensor, *ends: Tensor) -> Tensor:
        found = torch.minimum(((room + 1) * torch.sigmoid(logits)).floor(), room)
        return found.clamp(*ends) if ends else found

    # Increments of a group from size s are at least log((s + 2) / (s + 1)) apart, so a shorter
    # interval of tilts has at most one of each group.
    digits = math.ceil(math.log2(_WIDEST_BRACKET * (urn.largest + 2)))
    given = (capacities, *(limits or ()))
    wide = [x[..., None, :] for x in given]
    lower, _ = search_tilt(urn, lambda logits: modes(logits, *wide), digits=digits)
    sizes = modes(log_weights + lower[..., None], *given)
    # Missing elements go to the groups with the largest next increments, one each; excess elements
    # (by rounding at the threshold) are taken from those with the smallest last increments.
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

    The logit of size s of group k is the log-mass of the best sizes given s and the modes of
    earlier groups: a sum of increments from the mode.
    """
    sizes, half = mode(urn), half_window(urn.largest)
    offset = torch.arange(-half, half + 1, dtype=sizes.dtype, device=sizes.device)
    gains = _increments(sizes[..., None] + offset[:-1], urn)
    with torch.no_grad():
        order = _later_increments(gains, half)
    later = gains.flatten(-2).gather(-1, order.flatten(-2)).unflatten(-1, order.shape[-2:])
    own = gains[..., :-1, :]
    # One more element in group k is one less in later groups, and vice versa.
    more = (own[..., half:] - later[..., :half].flip(-1)).cumsum(-1)
    fewer = (later[..., half:] - own[..., :half].flip(-1)).cumsum(-1)
    logits = torch.cat([fewer.flip(-1), torch.zeros_like(more[..., :1]), more], -1)
    soft = torch.softmax(logits / temperature[..., None, None], -1)
    size = (sizes[..., :-1, None] + offset).long().clamp(0, urn.largest)
    probs = soft.new_zeros(*soft.shape[:-1], urn.largest + 1)
    return SoftSizes(sizes, probs.scatter_add(-1, size.expand_as(soft), soft))


def _increments(sizes: Tensor, urn: Urn) -> Tensor:
    """The increments of the log-mass by one element at sizes (..., K, S), descending along S."""
    room = urn.capacities[..., None] - sizes
    gains = urn.log_weights[..., None] + torch.log(room.clamp_min(1) / (sizes + 1).clamp_min(1))
    more, some = room > 0, sizes >= 0
    if urn.limits is not None:
        more, some = sizes < urn.limits.high[..., None], sizes >= urn.limits.low[..., None]
    return torch.where(some, torch.where(more, gains, IMPOSSIBLE), -IMPOSSIBLE)


def _later_increments(gains: Tensor, half: int) -> Tensor:
    """(..., K - 1, 2 half): the indices of the increments ``gains`` after every boundary.

    In descending order, ties by group; the first half are part of the mode, the others are not.
    """
    groups, width = gains.shape[-2:]
    group = torch.arange(groups, device=gains.device)
    # Move increments of groups before a boundary to the ends of its list.
    ends = gains.new_full((width,), -2 * IMPOSSIBLE)
    ends[half:] = 2 * IMPOSSIBLE
    middle = slice((groups - 1) * half, (groups + 1) * half)
    found = []
    for some in group[:-1].split(max(1, _MOST_RANKED // max(1, gains.numel()))):
        behind = (group > some[:, None])[..., None]
        table = torch.where(behind, gains[..., None, :, :], ends).flatten(-2)
        found.append(table.argsort(dim=-1, descending=True, stable=True)[..., middle])
    return torch.cat(found, -2)
