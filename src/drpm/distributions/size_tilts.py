"""Tilts of binomials: their means, or their modes, sum to a total."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions.size_limits import Limits

# A log-probability of zero that survives subtraction and division, the same in every float type.
IMPOSSIBLE = -(2.0**100)
_STIRLING_FROM = 32.0
_FEW_MASSES = 1 << 14  # of truncated binomials, which are tilted at several points at once


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


def binomial_modes(logits: Tensor, capacities: Tensor, limits: Limits | None = None) -> Tensor:
    modes = torch.minimum(((capacities + 1) * torch.sigmoid(logits)).floor(), capacities)
    return modes if limits is None else torch.clamp(modes, limits.low, limits.high)


def search_tilt(
    total: Tensor,
    log_weights: Tensor,
    capacities: Tensor,
    *,
    digits: int,
    modes: bool = False,
    unbounded: bool = False,
    limits: Limits | None = None,
    log_binomials: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Find the tilt at which the means, or the modes, of the binomials sum to the total.

    The sum grows with the tilt. Returns a tilt that gives at most the total, and a distance to one
    that gives more, which is ``2^digits`` times shorter than the first bracket. ``unbounded`` says
    that every capacity is the total. With ``limits`` the binomials are truncated, and their means
    are taken from the table ``log_binomials``.
    """
    groups, ends = log_weights.shape[-1], limits
    if unbounded:  # the group of the largest weight can take everything
        threshold = -log_weights.amax(-1)
        margin = torch.log1p(groups * total) + 45
    else:
        spare, places = total, capacities
        if limits is not None:
            spare, places = total - limits.low.sum(-1), limits.high - limits.low
            ends = Limits(limits.total, limits.low[..., None, :], limits.high[..., None, :])
        threshold = _threshold(spare, log_weights, places)
        margin = torch.log1p(capacities.sum(-1)) + 45
    lower, width = threshold - margin, 2 * margin
    # Many points at once: few large operations instead of many small ones, unless K is large.
    cells = 256 if groups <= 64 else 16
    if log_binomials is not None:
        cells = 16 if log_binomials.numel() <= _FEW_MASSES else 2
    points = torch.arange(1, cells, dtype=lower.dtype, device=lower.device)
    room, weights = capacities[..., None, :], log_weights[..., None, :]
    for _ in range(math.ceil(digits / math.log2(cells))):
        width = width / cells
        logits = (lower[..., None] + width[..., None] * points)[..., None] + weights
        if log_binomials is not None:
            sizes = _truncated_means(log_binomials[..., None, :, :], logits)
        else:
            sizes = binomial_modes(logits, room, ends) if modes else room * torch.sigmoid(logits)
        lower = lower + width * (sizes.sum(-1) <= total[..., None]).sum(-1)
    return lower, width


def _threshold(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """A tilt around which the total is reached, however far apart the weights are.

    Filled in descending order of their weights, some group is the one in which the total is
    reached. Far below its own threshold all groups before it are too few; far above, enough.
    """
    ranked, order = log_weights.sort(dim=-1, descending=True)
    order, room = torch.broadcast_tensors(order, capacities)
    filled = room.gather(-1, order).cumsum(-1)
    last = (filled < total[..., None]).sum(-1, keepdim=True).clamp_max(order.shape[-1] - 1)
    return -ranked.expand(*last.shape[:-1], -1).gather(-1, last).squeeze(-1)


@torch.no_grad()
def tilt(
    total: Tensor, log_weights: Tensor, capacities: Tensor, *, unbounded: bool = False
) -> Tensor:
    r"""The t at which :math:`\sum_k m_k \sigma(\log\omega_k + t)` equals ``total``, nearly.

    Any t gives exact results; one within a deviation of the mean gives well-conditioned ones.
    """
    lower, width = search_tilt(total, log_weights, capacities, digits=16, unbounded=unbounded)
    return lower + width / 2


class Truncated(NamedTuple):
    """Binomials that are truncated to limits, and tilted."""

    shift: Tensor  # (...) the tilt
    means: Tensor  # (..., K)
    log_binomials: Tensor  # (..., K, n + 1) of the sizes 0..n; IMPOSSIBLE outside the limits


@torch.no_grad()
def truncate(total: Tensor, log_weights: Tensor, capacities: Tensor, limits: Limits) -> Truncated:
    """Truncate the binomials, and tilt them until their means sum to ``total``, nearly."""
    sizes = torch.arange(limits.total + 1, dtype=log_weights.dtype, device=log_weights.device)
    possible = (sizes >= limits.low[..., None]) & (sizes <= limits.high[..., None])
    table = torch.where(possible, log_binomial(capacities[..., None], sizes), IMPOSSIBLE)
    lower, width = search_tilt(
        total, log_weights, capacities, digits=16, limits=limits, log_binomials=table
    )
    shift = lower + width / 2
    return Truncated(shift, _truncated_means(table, log_weights + shift[..., None]), table)


def _truncated_means(log_binomials: Tensor, logits: Tensor) -> Tensor:
    """(..., K): the means of truncated binomials with a table (..., K, n + 1)."""
    count = log_binomials.shape[-1]
    sizes = torch.arange(count, dtype=logits.dtype, device=logits.device)
    return torch.softmax(log_binomials + sizes * logits[..., None], -1) @ sizes


def look_up(log_binomials: Tensor, sizes: Tensor) -> Tensor:
    """Entries (..., K, S) of a table of the sizes 0..n; IMPOSSIBLE at other sizes."""
    padded = F.pad(log_binomials, (1, 1), value=IMPOSSIBLE).expand(*sizes.shape[:-1], -1)
    return padded.gather(-1, (sizes.long() + 1).clamp(0, padded.shape[-1] - 1))
