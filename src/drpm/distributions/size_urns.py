"""Urns: groups with weights, capacities and limits, and the tilts that balance them."""

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions.validation import can_check_values, describe, require_broadcast

# A log-probability of zero that survives subtraction and division, the same in every float type.
IMPOSSIBLE = -(2.0**100)
_STIRLING_FROM = 32.0
_FEW_MASSES = 1 << 14  # of truncated binomials, which are tilted at several points at once


class Limits(NamedTuple):
    """The smallest and the largest size of every group that occur in the support."""

    low: Tensor  # (..., K) float64
    high: Tensor  # (..., K) float64


class Urn(NamedTuple):
    """Groups that share some elements: what the distribution of their sizes depends on."""

    total: Tensor  # the number of elements, () or one for every member of the batch
    largest: int  # no less than any total
    log_weights: Tensor  # (..., K) float64
    capacities: Tensor  # (..., K) float64
    limits: Limits | None = None
    unbounded: bool = False  # every capacity is the total

    def behind(self, group: int, total: Tensor) -> "Urn":
        """The urn of a group and all later ones, with what is left for them."""
        shape = self.log_weights.shape
        parts = [self.log_weights, self.capacities, *(self.limits or ())]
        weights, capacities, *limits = (x.expand(shape)[..., group:] for x in parts)
        return Urn(total, self.largest, weights, capacities, Limits(*limits) if limits else None)


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
    """Limits (..., K) without the sizes that the limits of the other groups rule out."""
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
    # log (m! / (m - n)!) as a difference of two log-factorials loses all digits when m is much
    # larger than n; as a difference of Stirling's series none.
    few = torch.lgamma(capacities + 1) - torch.lgamma(rest)
    wide = rest.clamp_min(_STIRLING_FROM)
    many = n * torch.log(wide + n) + (wide - 0.5) * torch.log1p(n / wide) - n
    many = many + _stirling_tail(wide + n) - _stirling_tail(wide)
    return torch.where(rest < _STIRLING_FROM, few, many) - torch.lgamma(n + 1)


def _stirling_tail(x: Tensor) -> Tensor:
    """What Stirling's formula leaves out of log Gamma(x), to 1e-16 from x = 32 on."""
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
    """Find the tilt at which the sizes of tilted groups sum to the total.

    Returns a tilt that gives at most the total, and a distance to one that gives more, which is
    ``2^digits`` times shorter than the first bracket.

    Args:
        urn: The groups.
        sizes: From the logits (..., C, K) of C tilts to sizes that grow with them, such as the
            means of binomials.
        digits: How far the bracket shrinks.
        cells: The number of tilts that are tried at once: few large operations instead of many
            small ones, unless K is large.
    """
    groups = urn.log_weights.shape[-1]
    if urn.unbounded:  # the group of the largest weight can take everything
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
    """A tilt around which the total is reached, however far apart the weights are.

    Filled in descending order of their weights, some group is the one in which the total is
    reached. Far below its own threshold all groups before it are too few; far above, enough.
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
    r"""The t at which :math:`\sum_k m_k \sigma(\log\omega_k + t)` equals the total, nearly.

    Any t gives exact results; one within a deviation of the mean gives well-conditioned ones.
    """
    room = urn.capacities[..., None, :]
    lower, width = search_tilt(urn, lambda logits: room * torch.sigmoid(logits), digits=16)
    return lower + width / 2


class Truncated(NamedTuple):
    """Binomials that are truncated to limits, and tilted."""

    shift: Tensor  # (...) the tilt
    means: Tensor  # (..., K)
    log_binomials: Tensor  # (..., K, n + 1) of the sizes 0..n; IMPOSSIBLE outside the limits


@torch.no_grad()
def truncate(urn: Urn, limits: Limits) -> Truncated:
    """Truncate the binomials, and tilt them until their means sum to the total, nearly."""
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
