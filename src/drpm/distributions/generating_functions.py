r"""The normalizer and the moments of sizes, from a generating function on the unit circle.

:math:`P_0 = [x^n] \prod_k (1 + \omega_k x)^{m_k}` is, up to a factor, the probability that tilted
binomials (:mod:`drpm.distributions.size_tables`) sum to n. A periodic trapezoid rule inverts the
characteristic function of their sum; its error is the mass of the sum one period away, so some
thirty nodes reach float64 precision for any n.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from drpm.distributions.size_tables import tilt

# The sum's mass beyond 9 deviations + 20 is below 1e-17 of its mass at the mean (Bennett's
# inequality for sums of indicators); 32 nodes reach the point where the characteristic function
# has fallen by e^-40, or the end of the period, whichever comes first.
_NODES = 32
_DEVIATIONS = 9.0
_MARGIN = 20.0


class _Inversion(NamedTuple):
    """The characteristic function of the sum, ready to be integrated."""

    prob: Tensor  # (..., K) success probabilities of the tilted binomials
    miss: Tensor  # (..., K) one minus those, without cancellation
    cosine: Tensor  # (..., Q) of the nodes
    sine: Tensor  # (..., Q)
    modulus: Tensor  # (..., K, Q) |phi_k|^2
    real: Tensor  # (..., Q) quadrature weight times the function's real part
    imag: Tensor  # (..., Q)
    log_scale: Tensor  # (...) what the tilt and the binomials' normalizers contribute to log P_0

    def mass(self) -> Tensor:
        """The probability that the sum equals the total."""
        return self.real.sum(-1)

    def log_normalizer(self) -> Tensor:
        return self.log_scale + self.mass().log()

    def average(self, real: Tensor, imag: Tensor) -> Tensor:
        """Conditional expectation of a (..., K, Q) complex quantity."""
        weighted = self.real[..., None, :] * real - self.imag[..., None, :] * imag
        return weighted.sum(-1) / self.mass()[..., None]


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
        cosine, sine = torch.cos(angle), torch.sin(angle)
        lens = torch.sin(angle / 2).square() * 4

    modulus = 1 - spread[..., None] * lens[..., None, :]
    log_modulus = 0.5 * torch.log1p(-spread[..., None] * lens[..., None, :])
    rare_, cos_, sin_ = rare[..., None], cosine[..., None, :], sine[..., None, :]
    turn = torch.atan2(rare_ * sin_, 1 - rare_ + rare_ * cos_)
    turn = torch.where(mostly_in[..., None], -turn, turn)
    surplus = (capacities * mostly_in).sum(-1) - total  # whole, so the large phases cancel exactly
    phase = (capacities[..., None] * turn).sum(-2) + surplus[..., None] * angle
    magnitude = weight * torch.exp((capacities[..., None] * log_modulus).sum(-2))
    log_scale = (
        (capacities * torch.where(mostly_in, log_weights, 0.0)).sum(-1)
        + surplus * shift
        - (capacities * torch.log1p(-rare)).sum(-1)
    )
    return _Inversion(
        prob,
        miss,
        cosine,
        sine,
        modulus,
        magnitude * torch.cos(phase),
        magnitude * torch.sin(phase),
        log_scale,
    )


def log_normalizer(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Tensor:
    r""":math:`\log [x^n] \prod_k (1 + \omega_k x)^{m_k}`, in O(K) whatever n."""
    return _invert(total, log_weights, capacities).log_normalizer()


class Mean(NamedTuple):
    log_normalizer: Tensor
    mean: Tensor


def mean(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Mean:
    """The exact mean of every group's size, and the normalizer, which comes with it."""
    inversion = _invert(total, log_weights, capacities)
    deviation = _deviation(inversion)
    mean = capacities * (inversion.prob + inversion.average(*deviation))
    return Mean(inversion.log_normalizer(), mean)


def _deviation(inversion: _Inversion) -> tuple[Tensor, Tensor]:
    """d = z - p, real and imaginary, with z = p e^{i theta} / phi the complex success probability.

    It is small where p is near 0 or 1, which keeps the variance free of cancellation.
    """
    prob, miss = inversion.prob[..., None], inversion.miss[..., None]
    scale = prob * miss / inversion.modulus
    real = -scale * (1 - inversion.cosine[..., None, :]) * (miss - prob)
    return real, scale * inversion.sine[..., None, :]


def variance(total: Tensor, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """The exact variance of every group's size."""
    inversion = _invert(total, log_weights, capacities)
    prob, miss = inversion.prob[..., None], inversion.miss[..., None]
    cosine, sine = inversion.cosine[..., None, :], inversion.sine[..., None, :]
    d_real, d_imag = _deviation(inversion)
    mean_d = inversion.average(d_real, d_imag)
    mean_d2 = inversion.average(d_real.square() - d_imag.square(), 2 * d_real * d_imag)
    # z (1 - z) = p q (p + q c + i q s) (q + p c - i p s) / |phi|^4
    a_real, a_imag = prob + miss * cosine, miss * sine
    b_real, b_imag = miss + prob * cosine, -prob * sine
    scale = prob * miss / inversion.modulus.square()
    mean_z1z = inversion.average(
        scale * (a_real * b_real - a_imag * b_imag),
        scale * (a_real * b_imag + a_imag * b_real),
    )
    found = capacities.square() * (mean_d2 - mean_d.square()) + capacities * mean_z1z
    # Where it is nearly nothing, rounding may leave less; the gradient does not mind.
    return found + (found.clamp_min(0) - found).detach()
