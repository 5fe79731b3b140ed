r"""An urn: exact sums over its sizes, without ever enumerating them.

Fisher's noncentral hypergeometric law is what remains of independent binomials
:math:`B_k \sim \mathrm{Bin}(m_k, \sigma(\log\omega_k + t))` once their sum is known to be n,
whatever the tilt t. Choose t so that n is the mean of the sum (:mod:`drpm.distributions.urn_tilt`)
and every quantity of the law is a ratio of numbers of ordinary size:

* the normaliser and the moments come from the characteristic function of the sum, in
  :mod:`drpm.distributions.urn_moments`;
* the conditionals come from tables of the suffix sums :math:`B_k + \dots + B_K`, in
  :mod:`drpm.distributions.urn_tables`.

Two groups have so few sizes that these can be listed, in :mod:`drpm.distributions.urn_pair`.

Here is what all of these modules share. They work in float64 on tensors with the groups in the last
dimension, take any leading dimensions, are differentiable in the log-weights and branch on no
value, so that they compile, map and capture.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# A log-probability of zero that survives subtraction and division, the same in every float type.
IMPOSSIBLE = -(2.0**100)
_STIRLING_FROM = 32.0


class SoftSizes(NamedTuple):
    """One way to give the total out, as whole numbers and as laws over 0..n."""

    hard: Tensor  # (..., K)
    laws: Tensor  # (..., K - 1, n + 1) every size but the last


def log_binomial(capacities: Tensor, sizes: Tensor, *, large: bool = True) -> Tensor:
    """log C(m, n); 0 outside 0 <= n <= m, where the caller masks it.

    ``large`` says that m may be much larger than n, which takes more operations.
    """
    inside = (sizes >= 0) & (sizes <= capacities)
    n = torch.where(inside, sizes, 0.0)
    rest = capacities - n + 1
    # log (m! / (m - n)!) as a difference of two log-factorials loses all digits when m is much
    # larger than n; as a difference of Stirling's series none.
    few = torch.lgamma(capacities + 1) - torch.lgamma(rest)
    if not large:
        return few - torch.lgamma(n + 1)
    wide = rest.clamp_min(_STIRLING_FROM)
    many = n * torch.log(wide + n) + (wide - 0.5) * torch.log1p(n / wide) - n
    many = many + _stirling_tail(wide + n) - _stirling_tail(wide)
    return torch.where(rest < _STIRLING_FROM, few, many) - torch.lgamma(n + 1)


def _stirling_tail(x: Tensor) -> Tensor:
    """What Stirling's formula leaves out of log Gamma(x), to 1e-16 from x = 32 on."""
    inverse = 1 / x
    square = inverse * inverse
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


def count(length: int, like: Tensor) -> Tensor:
    """0, 1, ..., so many of them, in the type and on the device of a tensor."""
    return torch.arange(length, dtype=like.dtype, device=like.device)
