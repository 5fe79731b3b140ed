r"""Soft top-k: subsets take shares of the elements with the largest scores.

The shares that a subset of size m takes of elements with weights w maximize
:math:`\sum_i w_i (y_i x_i + H(y_i))`, with H the entropy of a coin, under
:math:`\sum_i w_i y_i = m`:

.. math:: y_i = \sigma(x_i - t)

with the threshold t at which they sum to m. There is one such t, found by a search that narrows an
interval, and two steps of Newton's method, which also carry the derivatives: at the root, a step
has the slope of the implicit function after one, and its curvature after two.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.relaxation.reparameterization import straight_through

# The interval is as long as the range of the scores, and 16^6 cells divide it. From there Newton's
# method doubles the digits at every step. Wider ranges are scaled down to this one, at which the
# scores of a row are all but hard.
_CELLS = 16
_ROUNDS = 6
_STEPS = 2
_WIDEST = 1e7
# Nothing is taken whole or left whole, so that a threshold exists.
_MARGIN = 1e-12
# Where no score is within some 200 of the threshold, sizes have no gradient.
_FLATTEST = 1e-100


def fill_by_rows_softly(sizes: Tensor, scores: Tensor) -> Tensor:
    """Y (..., K, n) if each subset in turn takes soft shares of what is left; columns sum to one.

    Time and memory are linear in n.

    Args:
        sizes: (..., K), which sum to n.
        scores: (..., K, n), by which every subset chooses, divided by the temperature, in float64.
    """
    *rows, last = scores.unbind(-2)
    # In logarithms, small shares keep their gradients. Nothing depends on the scores of the last
    # subset or on its size, but gradients may be requested.
    log_left = 0 * (last + sizes[..., -1:])
    log_shares = []
    for row, size in zip(rows, sizes.unbind(-1), strict=False):
        width = row.detach().amax(-1, keepdim=True) - row.detach().amin(-1, keepdim=True)
        row = row / (width / _WIDEST).clamp_min(1)
        gap = row - _threshold(row, log_left, size)[..., None]
        log_shares.append(log_left + _log_sigmoid(gap))
        log_left = log_left + _log_sigmoid(-gap)
    return torch.stack([*log_shares, log_left], -2).exp()


def _log_sigmoid(x: Tensor) -> Tensor:
    # Torch's own wakes all threads even for a few elements.
    return -F.softplus(-x, threshold=50.0)


def _threshold(scores: Tensor, log_left: Tensor, size: Tensor) -> Tensor:
    """The t at which the shares that are taken sum to the size, (...)."""
    x, left = scores.detach(), log_left.detach().exp()
    total = left.sum(-1)
    share = (size.detach() / total).clamp(_MARGIN, 1 - _MARGIN)
    size = straight_through(share * total, size)
    # Between the thresholds that would do if all scores were the smallest, or the largest.
    lower, step = x.amin(-1) - torch.logit(share), x.amax(-1) - x.amin(-1)
    points = torch.arange(1, _CELLS, dtype=x.dtype, device=x.device)
    for _ in range(_ROUNDS):
        step = step / _CELLS
        grid = lower[..., None] + step[..., None] * points
        taken = (torch.sigmoid(x[..., None, :] - grid[..., None]) * left[..., None, :]).sum(-1)
        lower = lower + step * (taken > size.detach()[..., None]).sum(-1)
    threshold = lower + step / 2
    for _ in range(_STEPS):
        gap = scores - threshold[..., None]
        log_taken = log_left + _log_sigmoid(gap)
        slope = (log_taken + _log_sigmoid(-gap)).exp().sum(-1).clamp_min(_FLATTEST)
        excess = log_taken.exp().sum(-1) - size
        # Where the slope is so small that a step is long, the excess is a rounding error.
        noise = torch.where(excess.abs() > slope, excess, 0.0).detach()
        threshold = threshold + (excess - noise) / slope
    return threshold
