r"""The normalizer, the mean and the mode of sizes.

:math:`P_0 = [x^n] \prod_k (1 + \omega_k x)^{m_k}` is, up to a factor, the probability that tilted
binomials (:mod:`drpm.distributions.size_tables`) sum to n. A periodic trapezoid rule inverts the
characteristic function of their sum; its error is the mass of the sum one period away, so some
thirty nodes reach float64 precision for any n. With limits on the sizes the binomials are
truncated, and Fourier transforms of windows of their masses take the place of the closed form.

The log-mass of sizes is a sum of concave functions, one of each group, so the best way to place c
elements in some groups takes the c largest of their increments
:math:`\log\omega_j + \log\frac{m_j - s}{s + 1}`, from size s to s + 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from drpm.distributions.size_limits import Limits
from drpm.distributions.size_tables import SoftSizes, half_window, window_width
from drpm.distributions.size_tilts import (
    IMPOSSIBLE,
    binomial_modes,
    look_up,
    search_tilt,
    tilt,
    truncate,
)

# The sum's mass beyond 9 deviations + 20 is below 1e-17 of its mass at the mean (Bennett's
# inequality for sums of indicators); 32 nodes reach the point where the characteristic function
# has fallen by e^-40, or the end of the period, whichever comes first.
_NODES = 32
_DEVIATIONS = 9.0
_MARGIN = 20.0
# Bennett's inequality for a Poisson variable, whose deviation is at most sqrt(n).
_POISSON_DEVIATIONS = 9.5
_POISSON_MARGIN = 64
_SMALLEST_PROB = 1e-30
_WIDEST_BRACKET = 2048.0  # twice 45 and the logarithm of any number
_MOST_RANKED = 1 << 23  # increments that are sorted at once


class _Inversion(NamedTuple):
    """The characteristic function of the sum, ready to be integrated."""

    prob: Tensor  # (..., K) success probabilities of the tilted binomials
    miss: Tensor  # (..., K) one minus those, without cancellation
    cosine: Tensor  # (..., 1, Q) of the nodes
    sine: Tensor  # (..., 1, Q)
    modulus: Tensor  # (..., K, Q) |phi_k|^2
    real: Tensor  # (..., Q) quadrature weight times the function's real part
    imag: Tensor  # (..., Q)
    log_scale: Tensor  # (...) what the tilt and the binomials' normalizers contribute to log P_0

    def log_normalizer(self) -> Tensor:
        return self.log_scale + self.real.sum(-1).log()


def _invert(total: Tensor, log_weights: Tensor, capacities: Tensor) -> _Inversion:
    shift = tilt(total, log_weights.detach(), capacities)
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
    return _Inversion(prob, miss, cosine, sine, modulus, real, imag, log_scale)


class _Factors(NamedTuple):
    """Windows of truncated, tilted binomials, and the Fourier transforms of their masses.

    The sum of the binomials has the total as its mean and no heavier tails than a Poisson
    variable: one period away from the total less than 1e-17 of its mass is left.
    """

    offsets: Tensor  # (..., K, W) sizes, less the means
    means: Tensor  # (..., K)
    probs: Tensor  # (..., K, W)
    transforms: Tensor  # (..., K, P // 2 + 1)
    period: int
    position: Tensor  # (..., 1, 1) where the total is within a period
    log_scale: Tensor  # (...) what the tilt and the normalizers contribute to log P_0

    def at_total(self, products: Tensor) -> Tensor:
        """(..., J): the entries of the total in inverse transforms of (..., J, P // 2 + 1)."""
        inverse: Tensor = torch.fft.irfft(products, self.period)
        position = self.position.expand(*inverse.shape[:-1], 1)
        return inverse.gather(-1, position).squeeze(-1)

    def prob(self, product: Tensor) -> Tensor:
        """(...): the probability of the total; positive also if the total is impossible."""
        return self.at_total(product[..., None, :]).squeeze(-1).clamp_min(_SMALLEST_PROB)


def _truncated_factors(
    total: Tensor, log_weights: Tensor, capacities: Tensor, limits: Limits
) -> _Factors:
    n = limits.total
    width = window_width(n)
    shift, means, table = truncate(total, log_weights.detach(), capacities, limits)
    with torch.no_grad():
        first = (means.round() - (width - 1) // 2).clamp(0, n + 1 - width)
        sizes = first[..., None] + torch.arange(width, dtype=first.dtype, device=first.device)
        log_binomials = look_up(table, sizes)
        period = 32 * math.ceil((_POISSON_DEVIATIONS * math.sqrt(n) + _POISSON_MARGIN) / 32)
        position = torch.remainder(total - first.sum(-1), period).long().clamp(0, period - 1)
    log_masses = log_binomials + sizes * (log_weights + shift[..., None])[..., None]
    log_scales = log_masses.logsumexp(-1)
    probs = (log_masses - log_scales[..., None]).exp()
    transforms = torch.fft.rfft(probs, period)
    log_scale = log_scales.sum(-1) - total * shift
    offsets = sizes - means[..., None]
    return _Factors(offsets, means, probs, transforms, period, position[..., None, None], log_scale)


def _running_products(factors: Tensor) -> list[Tensor]:
    """The products of the first 0, 1, ..., K of (..., K, Q); their gradients allow for zeros."""
    products = [torch.ones_like(factors[..., 0, :])]
    for factor in factors.unbind(-2):
        products.append(products[-1] * factor)
    return products


def log_normalizer(
    total: Tensor, log_weights: Tensor, capacities: Tensor, limits: Limits | None = None
) -> Tensor:
    r""":math:`\log [x^n] \prod_k (1 + \omega_k x)^{m_k}`, in O(K) whatever n.

    With limits every factor only has its terms within them, and the cost is
    :math:`O(K \sqrt n)`, after a search for the tilt among all K n terms.
    """
    # Not every library transforms an empty batch.
    if limits is not None and total.numel() and log_weights.numel():
        found = _truncated_factors(total, log_weights, capacities, limits)
        return found.log_scale + found.prob(_running_products(found.transforms)[-1]).log()
    return _invert(total, log_weights, capacities).log_normalizer()


class Mean(NamedTuple):
    log_normalizer: Tensor
    mean: Tensor


def mean(
    total: Tensor, log_weights: Tensor, capacities: Tensor, limits: Limits | None = None
) -> Mean:
    """The exact mean of every group's size, and the normalizer, which comes with it."""
    if limits is not None and total.numel() and log_weights.numel():
        return _truncated_mean(_truncated_factors(total, log_weights, capacities, limits))
    found = _invert(total, log_weights, capacities)
    # z - p, with z = p e^{i theta} / phi the complex success probability, averaged over nodes.
    prob, miss = found.prob[..., None], found.miss[..., None]
    scale = prob * miss / found.modulus
    real, imag = scale * (1 - found.cosine) * (prob - miss), scale * found.sine
    weighted = found.real[..., None, :] * real - found.imag[..., None, :] * imag
    average = weighted.sum(-1) / found.real.sum(-1)[..., None]
    return Mean(found.log_normalizer(), capacities * (found.prob + average))


def _truncated_mean(found: _Factors) -> Mean:
    before = _running_products(found.transforms)
    behind = _running_products(found.transforms.flip(-2))
    others = torch.stack([a * b for a, b in zip(before[:-1], behind[-2::-1], strict=True)], -2)
    prob = found.prob(before[-1])
    moments = torch.fft.rfft(found.probs * found.offsets, found.period)
    deviations = found.at_total(moments * others) / prob[..., None]
    return Mean(found.log_scale + prob.log(), found.means + deviations)


@torch.no_grad()
def mode(
    total: int, log_weights: Tensor, capacities: Tensor, limits: Limits | None = None
) -> Tensor:
    """The most likely sizes: a common threshold of all increments is a tilt of the binomials."""
    n = torch.full((), float(total), dtype=log_weights.dtype, device=log_weights.device)
    # One group's increments, from size s on, lie at least log((s + 2) / (s + 1)) apart. In a
    # shorter interval of tilts there is at most one of each group.
    digits = math.ceil(math.log2(_WIDEST_BRACKET * (total + 2)))
    lower, _ = search_tilt(n, log_weights, capacities, digits=digits, modes=True, limits=limits)
    sizes = binomial_modes(log_weights + lower[..., None], capacities, limits)
    # What is missing goes, one each, to the groups whose next increment is the largest; what is
    # too much (a group on the threshold, by rounding) leaves those whose last was the smallest.
    missing = (n - sizes.sum(-1))[..., None]
    gained = torch.log((capacities - sizes) / (sizes + 1)) + log_weights
    lost = torch.log((capacities - sizes + 1) / sizes) + log_weights
    if limits is not None:
        gained = torch.where(sizes < limits.high, gained, -torch.inf)
        lost = torch.where(sizes > limits.low, lost, torch.inf)
    return sizes + (_rank(-gained) < missing).double() - (_rank(lost) < -missing).double()


def _rank(values: Tensor) -> Tensor:
    return torch.argsort(values, dim=-1, stable=True).argsort(-1)


def soft_mode(
    total: int,
    log_weights: Tensor,
    capacities: Tensor,
    temperature: Tensor,
    limits: Limits | None = None,
) -> SoftSizes:
    r"""The most likely sizes (..., K), K >= 2, with distributions around them.

    The logits of size s of group k are the log-mass of the best sizes that continue those of the
    groups before it with s. All of them are sums of increments between those sizes and the mode.
    """
    sizes = mode(total, log_weights.detach(), capacities, limits)
    half = half_window(total)
    offset = torch.arange(-half, half + 1, dtype=sizes.dtype, device=sizes.device)
    gains = _increments(sizes[..., None] + offset[:-1], log_weights, capacities, limits)
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


def _increments(
    sizes: Tensor, log_weights: Tensor, capacities: Tensor, limits: Limits | None
) -> Tensor:
    """What one more element adds to the log-mass, at sizes (..., K, S); they descend along S."""
    room = capacities[..., None] - sizes
    gains = log_weights[..., None] + torch.log(room.clamp_min(1) / (sizes + 1).clamp_min(1))
    more, some = room > 0, sizes >= 0
    if limits is not None:
        more, some = sizes < limits.high[..., None], sizes >= limits.low[..., None]
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
