"""The suffix sums of an urn over windows of totals, in plain torch.

Positive convolutions build their tables, from the last group backwards, over the window of totals
that carries mass. :mod:`drpm.distributions.urn_fused` does the same on a GPU and comes back to this
for second derivatives; :mod:`drpm.distributions.urn_tables` chooses between the two.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.distributions.chains import chain, largest_sums
from drpm.distributions.urn import IMPOSSIBLE, count, log_binomial

# Half-width of a window of totals, in units of the largest possible deviation sqrt(n)/2, plus a
# margin for small n where tails are heavier than Gaussian. The mass outside is below 1e-19.
_WINDOW_DEVIATIONS = 9.5
_WINDOW_MARGIN = 24
_TINY = 1e-300


def window_width(total: int) -> int:
    """How many totals a table holds: all of them for small n, about 10 sqrt(n) for large."""
    half = math.ceil(_WINDOW_DEVIATIONS * math.sqrt(total) / 2) + _WINDOW_MARGIN
    return min(total + 1, 2 * half + 1)


def sizes_between(shifts: Tensor, width: int) -> Tensor:
    """(..., 2 W - 1): the sizes that lead from one window to another, so many totals further."""
    return shifts[..., None] + (count(2 * width - 1, shifts) - (width - 1))


def tables_at(
    total: int,
    log_weights: Tensor,
    capacities: Tensor,
    shift: Tensor,
    first: Tensor,
    *,
    maximise: bool,
    large: bool,
) -> tuple[Tensor, Tensor]:
    """The tables for a tilt and windows that are already known.

    They are ``log_steps`` and ``log_suffix`` of ``urn_tables.SuffixTables``.
    """
    width = window_width(total)
    # From the full total, through the windows, to nothing behind the last group.
    before = F.pad(first, (1, 0), value=float(total + 1 - width))
    sizes = sizes_between(before - F.pad(first, (0, 1)), width)
    log_mass = _log_mass(sizes, log_weights + shift[..., None], capacities, large)
    log_steps, last = log_mass[..., :-1, :], log_mass[..., -1, width - 1 :]
    if maximise:
        suffix = [last]
        for steps in log_steps.unbind(-2)[:0:-1]:
            best = largest_sums(steps.flip(-1), suffix[-1])
            suffix.append(best.flip(-1).clamp_min(IMPOSSIBLE))
        log_suffix = torch.stack(suffix[::-1], -2)
    else:
        masses = chain(log_steps.exp()[..., 1:, :].flip(-2), last.exp())
        log_suffix = _safe_log(masses.flip(-2))
    return log_steps, log_suffix


def _log_mass(sizes: Tensor, logit: Tensor, capacities: Tensor, large: bool) -> Tensor:
    """Log-mass of binomials (..., K) at sizes (..., K, W), IMPOSSIBLE outside their support."""
    possible = (sizes >= 0) & (sizes <= capacities[..., None])
    with torch.no_grad():
        binomial = log_binomial(capacities[..., None], sizes, large=large)
    # softplus, which torch itself cuts short beyond 20
    normaliser = -capacities * F.logsigmoid(-logit)
    log_mass = sizes * logit[..., None] - normaliser[..., None] + binomial
    return torch.where(possible, log_mass, IMPOSSIBLE)


def _safe_log(mass: Tensor) -> Tensor:
    return torch.where(mass > _TINY, mass.clamp_min(_TINY).log(), IMPOSSIBLE)


def soft_laws_at(
    first: Tensor,
    log_steps: Tensor,
    log_suffix: Tensor,
    noise: Tensor | None,
    temperature: Tensor,
    sizes: Tensor,
    positions: Tensor,
    total: int,
) -> Tensor:
    """(..., K - 1, n + 1): the law of every soft size, along a path that is already known.

    All boundaries at once, which keeps the graph of the backward pass small.
    """
    width = log_suffix.shape[-1]
    reverse = torch.arange(width - 1, -1, -1, device=first.device)
    index = positions[..., None].long() + reverse
    logits = log_steps.expand(*index.shape[:-1], -1).gather(-1, index) + log_suffix
    if noise is not None:
        logits = logits + noise
    soft = torch.softmax(logits / temperature[..., None, None], -1)
    before = total - F.pad(sizes[..., :-2].cumsum(-1), (1, 0))
    remaining = first[..., None] + count(width, first)
    taken = (before[..., None] - remaining).long().clamp(0, total)
    return soft.new_zeros(*soft.shape[:-1], total + 1).scatter_add(-1, taken, soft)
