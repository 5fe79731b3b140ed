r"""Laws of running sums from the values of their generating functions on a circle.

The generating function of a sum of independent sizes is the product of those of its terms, and
that of its upper tails is :math:`(1 - G(x)) / (1 - x)`. Products of complex numbers are sums of
their logarithms and angles, so all of this is a few operations on real numbers, which compilers
fuse, unlike Fourier transforms and whatever else is complex.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Nodes on the circle for each element. With p nodes on a radius r, what lies p further counts too,
# r^p times, and rounding errors count up to r^-n times: so many keep both below 1e-13.
_NODES = 8
_ROUNDING = 37.0  # minus the logarithm of a rounding error
# Added to values of functions, so that a zero among them leaves the others' gradients alone.
_NEARLY_ZERO = 1e-30


class _Circle(NamedTuple):
    """Matrices from coefficients to values on a circle and back, real parts beside imaginary."""

    values: Tensor  # (n + 1, 2 Q)
    tails: Tensor  # (2 Q, n)


def _circle(n: int, like: Tensor) -> _Circle:
    period = _NODES * (n + 1) + 1  # odd: no node at -1, where the function of a fair coin is zero
    fall = _ROUNDING / (period + n)
    power = torch.arange(n + 1, device=like.device)[:, None]
    node = torch.arange((period + 1) // 2, device=like.device)  # the others are their conjugates
    angle = (power * node % period).to(like.dtype) * (2 * math.pi / period)
    scale = torch.exp(power.to(like.dtype) * -fall)
    real, imag = scale * torch.cos(angle), scale * torch.sin(angle)
    # 1 / (1 - x) at the nodes, as often as they stand for others too.
    weight = torch.where(node == 0, 1.0, 2.0).to(like.dtype) / period
    weight = weight / ((1 - real[1]).square() + imag[1].square())
    over_real, over_imag = weight * (1 - real[1]), weight * imag[1]
    # Times x^-r, whose real and imaginary part are those of x^r by its squared length.
    back_real, back_imag = real[:-1] / scale[:-1].square(), imag[:-1] / scale[:-1].square()
    tails_real = back_real * over_real + back_imag * over_imag
    tails_imag = back_imag * over_real - back_real * over_imag
    return _Circle(torch.cat([real, imag], -1), torch.cat([tails_real, tails_imag], -1).mT)


def survival(laws: Tensor) -> Tensor:
    """(..., j, n): the chance that the sum of the first k sizes exceeds r, up to rounding.

    Arguments:
        laws: (..., j, n + 1), the laws of independent sizes over 0..n.
    """
    circle = _circle(laws.shape[-1] - 1, laws)
    real, imag = (laws @ circle.values).chunk(2, -1)
    real = real + _NEARLY_ZERO
    length = (0.5 * (real.square() + imag.square()).log()).cumsum(-2).exp()
    angle = torch.atan2(imag, real).cumsum(-2)
    return 1 - torch.cat([length * angle.cos(), length * angle.sin()], -1) @ circle.tails
