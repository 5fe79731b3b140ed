r"""Plackett-Luce by exponential arrival times.

If element i arrives at an exponential time with rate s_i, the order of arrival follows the
Plackett-Luce law. A block S precedes a later set with score sum :math:`\Lambda` with probability

.. math:: \int_0^1 \prod_{i \in S} (1 - u^{s_i / \Lambda}) \, du
          = \int e^{x - e^x} \prod_{i \in S} (1 - e^{-e^{x + a_i}}) \, dx,
          \qquad a_i = \log s_i - \log \Lambda,

where u is the probability that nothing of the later set has arrived yet. The right-hand integrand
is log-concave and analytic in x, so a trapezoid rule over the interval with its mass converges
geometrically: the sum over all |S|! inner orders costs O(|S|).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.relaxation.operators import Operation, apply

# The integrand is truncated where it has fallen by 32 nats (1e-14). Left of its peak it falls at
# least as fast as e^x, right of it as exp(-e^x): the interval has at most some 40 units, and a step
# of 1/3 has an aliasing error of exp(-2 pi (pi / 2) / (1 / 3)) = 1e-13.
_FALL = 32.0
_NODES = 120
_SEARCH_CELLS = 12
_SEARCH_ROUNDS = 3

# Elements are processed in chunks of (elements x nodes) that fit into a core's cache, or fill a
# GPU; memory is linear in n.
_CHUNK_CPU = 1 << 18
_CHUNK_CUDA = 1 << 25


def log_arrived(y: Tensor) -> Tensor:
    """log(1 - exp(-exp(y))), the log-probability that a unit-rate arrival time is less than e^y."""
    # Below -36 the result is y in float64; above 6.5 (a rate of 665) it is 0, and the gradient
    # would overflow.
    rate = torch.exp(y.clamp(-36.0, 6.5))
    return torch.where(y < -36, y, torch.log(-torch.expm1(-rate)))


def _arrived_slope(y: Tensor) -> Tensor:
    """The derivative of :func:`log_arrived`: 1 far to the left, 0 far to the right."""
    rate = torch.exp(y.clamp(-36.0, 6.5))
    return rate / torch.expm1(rate)


class _Integrands(NamedTuple):
    """Blocks of elements, each with the elements after it."""

    edges: Tensor  # (..., n) a_i
    block: Tensor  # (..., n) the index of the block an element belongs to
    members: Tensor  # (..., K, n) one-hot columns, float64

    def sums(self, nodes: Tensor, *, slope: bool) -> Tensor:
        """Sum over a block's elements of their function at the block's nodes, (..., K, Q)."""
        function = _arrived_slope if slope else log_arrived
        out = torch.zeros_like(nodes)
        for part in self._chunks(nodes.shape[-1]):
            out += self.members[..., part] @ function(self._arguments(nodes, part))
        return out

    def slopes(self, nodes: Tensor, weights: Tensor) -> Tensor:
        """Every element's weighted mean slope over its block's nodes, (..., n)."""
        out = torch.empty_like(self.edges)
        for part in self._chunks(nodes.shape[-1]):
            weight = _rows(weights, self.block[..., part])
            slopes = _arrived_slope(self._arguments(nodes, part))
            out[..., part] = (weight * slopes).sum(-1)
        return out

    def differentiable_slopes(self, nodes: Tensor) -> Tensor:
        """:meth:`slopes` with gradients, without chunks: memory is n x Q."""
        arguments = self._arguments(nodes, slice(None))
        log_integrand = nodes - nodes.exp() + self.members @ log_arrived(arguments)
        weights = _rows(torch.softmax(log_integrand, -1), self.block)
        return (weights * _arrived_slope(arguments)).sum(-1)

    def _arguments(self, nodes: Tensor, part: slice) -> Tensor:
        return _rows(nodes, self.block[..., part]) + self.edges[..., part, None]

    def _chunks(self, nodes: int) -> list[slice]:
        n = self.edges.shape[-1]
        batch = max(1, self.edges[..., 0].numel()) if n else 1
        budget = _CHUNK_CUDA if self.edges.is_cuda else _CHUNK_CPU
        size = max(1, budget // (batch * nodes))
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Pick rows of a (..., K, Q) table by a (..., m) index."""
    expanded = index[..., None].expand(*index.shape, table.shape[-1])
    return table.gather(-2, expanded)


def _place_nodes(integrands: _Integrands) -> tuple[Tensor, Tensor]:
    """Nodes (..., K, Q) for every block's integrand, and their distance."""
    counts = integrands.members.sum(-1)
    kind: Any = {"dtype": counts.dtype, "device": counts.device}
    fractions = torch.linspace(0, 1, _SEARCH_CELLS + 1, **kind)

    def search(lower: Tensor, upper: Tensor, before: Any) -> Tensor:
        """The point where a predicate becomes false, from left to right."""
        for _ in range(_SEARCH_ROUNDS):
            step = (upper - lower) / _SEARCH_CELLS
            grid = lower[..., None] + (upper - lower)[..., None] * fractions
            cell = (before(grid).sum(-1) - 1).clamp(0, _SEARCH_CELLS - 1)
            lower = lower + cell * step
            upper = lower + step
        return (lower + upper) / 2

    def rising(grid: Tensor) -> Tensor:
        return 1 - grid.exp() + integrands.sums(grid, slope=True) > 0

    def log_integrand(grid: Tensor) -> Tensor:
        return grid - grid.exp() + integrands.sums(grid, slope=False)

    # At the peak e^x = 1 + (a sum of slopes between 0 and 1).
    peak = search(torch.zeros_like(counts), torch.log1p(counts), rising)
    floor = log_integrand(peak[..., None]) - _FALL
    left = search(peak - 2 * _FALL, peak, lambda grid: log_integrand(grid) < floor)
    right = search(peak, torch.log1p(counts) + 4.5, lambda grid: log_integrand(grid) > floor)
    step = (right - left) / (_NODES - 1)
    return left[..., None] + step[..., None] * torch.arange(_NODES, **kind), step


class _LogIntegral(Operation):
    """The log of the integral of every block, and its closed-form gradient in the edges."""

    @staticmethod
    def forward(edges: Tensor, block: Tensor, members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        integrands = _Integrands(edges, block, members)
        nodes, step = _place_nodes(integrands)
        log_integrand = nodes - nodes.exp() + integrands.sums(nodes, slope=False)
        value = torch.logsumexp(log_integrand, -1) + step.log()
        return value, nodes, torch.softmax(log_integrand, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        edges, block, members = inputs
        _, nodes, weights = output
        ctx.mark_non_differentiable(nodes, weights)
        # Members are K times as large as the block indices, so they are recomputed.
        ctx.groups = members.shape[-2]
        ctx.save_for_backward(edges, block, nodes, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        edges, block, nodes, weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            members = block[..., None, :] == torch.arange(ctx.groups, device=block.device)[:, None]
            slopes = _Integrands(edges, block, members.to(edges.dtype)).differentiable_slopes(nodes)
        else:
            slopes = _Integrands(edges, block, edges.new_empty(0)).slopes(nodes, weights)
        return grad.gather(-1, block) * slopes, None, None


def block_log_probs(log_scores: Tensor, members: Tensor) -> Tensor:
    """The log-probability that each block precedes all later ones, (..., K).

    Scores are separate for each block, (..., K, n), or shared, (..., 1, n). Members (..., K, n)
    have one-hot columns; blocks may be empty.
    """
    members = members.to(log_scores.dtype)
    batch = torch.broadcast_shapes(log_scores.shape[:-2], members.shape[:-2])
    members = members.expand(*batch, *members.shape[-2:])
    block = members.argmax(-2)
    index = torch.arange(members.shape[-2], device=members.device)[:, None]
    later = block[..., None, :] > index
    # The last block and empty blocks have probability one; a finite placeholder keeps the gradient
    # of logsumexp defined.
    certain = (members.sum(-1) == 0) | ~later.any(-1)
    behind = torch.where(later, log_scores, -torch.inf)
    behind = torch.logsumexp(torch.where(certain[..., None], 0.0, behind), -1)
    own = torch.where(members > 0, log_scores, 0.0).sum(-2)
    edges = torch.where(certain.gather(-1, block), 0.0, own - behind.gather(-1, block))
    value, _, _ = apply(_LogIntegral, edges, block, members)
    return torch.where(certain, 0.0, value)


torch.compiler.allow_in_graph(block_log_probs)  # for torch.func.vmap; see `operators.in_graph`


def sorted_block_log_probs(log_scores: Tensor) -> Tensor:
    """(..., n + 1, n + 1): the log-probability of ranks u..v - 1 of sorted elements as a block.

    Entry (u, v) is for the block against all elements of rank v and later; -inf for u > v. The
    scores (..., n) must be sorted in descending order. Without gradients.
    """
    log_scores = log_scores.detach()
    n = log_scores.shape[-1]
    kind: Any = {"dtype": log_scores.dtype, "device": log_scores.device}
    # One grid for all blocks: the narrowest peak has deviation 0.88 / sqrt(n).
    step = min(0.25, 0.6 / math.sqrt(n))
    nodes = torch.arange(-_FALL - 3, math.log1p(n) + 4.5, step, **kind)
    later = log_scores.flip(-1).logcumsumexp(-1).flip(-1)
    columns = []
    for v in range(n + 1):  # without later elements, or if empty, a block has probability one
        found = log_scores.new_zeros(*log_scores.shape[:-1], v + 1)
        if 0 < v < n:
            edges = log_scores[..., :v] - later[..., v : v + 1]
            inner = log_arrived(nodes + edges[..., None]).flip(-2).cumsum(-2).flip(-2)
            block = torch.logsumexp(inner + nodes - nodes.exp(), -1) + math.log(step)
            found = torch.cat([block, found[..., :1]], -1)
        columns.append(F.pad(found, (0, n - v), value=-torch.inf))
    return torch.stack(columns, -1)


# The number of arrivals is within 8.5 deviations + 16 of its mean with probability 1 - 1e-16
# (Bennett's inequality), and 64 frequencies suffice for its characteristic function to fall by
# e^-40, or cover the period.
_RANK_DEVIATIONS = 8.5
_RANK_MARGIN = 16
_RANK_NODES = 64
_RANK_CHUNK = 1 << 21


def rank_expectations(log_scores: Tensor, values: Tensor) -> Tensor:
    r"""The exact expectations of functions of each element's rank, in :math:`O(n^{1.5})`.

    Given that element i arrives at time t, the number of earlier elements is Poisson-binomial.
    Expectations are computed from the characteristic function without the factor of element i, and
    integrated over the logarithm of the arrival time. Maps the values of K functions at ranks 1..n,
    (..., K, n), to expectations for every element, (..., K, n).
    """
    batch = torch.broadcast_shapes(log_scores.shape[:-1], values.shape[:-2])
    # Normalize the scores, which does not change ranks, to share one time grid.
    log_scores = log_scores - torch.logsumexp(log_scores.detach(), -1, keepdim=True)
    log_scores = log_scores.expand(*batch, log_scores.shape[-1])
    values = values.expand(*batch, *values.shape[-2:])
    means: Tensor = apply(_RankExpectations, log_scores, values)
    return means


class _RankExpectations(Operation):
    """The integral over arrival times, forward and backward in chunks."""

    @staticmethod
    def forward(log_scores: Tensor, values: Tensor) -> Tensor:
        total = torch.zeros_like(values)
        for times, steps in _arrival_chunks(log_scores):
            total += _rank_integral(log_scores, values, times, steps)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return apply(_RankGradients, *ctx.saved_tensors, grad)


class _RankGradients(Operation):
    """The backward pass as a separate function, to support vmap."""

    @staticmethod
    def forward(log_scores: Tensor, values: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        log_scores, values = (x.detach().requires_grad_() for x in (log_scores, values))
        grad_scores, grad_values = torch.zeros_like(log_scores), torch.zeros_like(values)
        for times, steps in _arrival_chunks(log_scores):
            with torch.enable_grad():
                part = _rank_integral(log_scores, values, times, steps)
            some = torch.autograd.grad(part, (log_scores, values), grad)
            grad_scores += some[0]
            grad_values += some[1]
        return grad_scores, grad_values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("marginals have no second derivatives.")


def _rank_integral(log_scores: Tensor, values: Tensor, times: Tensor, steps: Tensor) -> Tensor:
    """The contribution of arrival times (T,) to the expectations."""
    n, groups = log_scores.shape[-1], values.shape[-2]
    log_rate = log_scores[..., None, :] + times[:, None]  # (..., T, n)
    rate = log_rate.clamp_max(50.0).exp()  # avoids overflow
    waiting, arrived = torch.exp(-rate), -torch.expm1(-rate)
    density = (log_rate - rate).exp() * steps[:, None]
    frequencies = _frequencies(arrived.detach(), waiting.detach())
    ranks = frequencies.ranks.clamp(0, n - 1).long()[..., None, :]
    ranks = ranks.expand(*ranks.shape[:-2], groups, ranks.shape[-1])
    nearby = values[..., None, :, :].expand(*ranks.shape[:-1], n).gather(-1, ranks)
    spectrum = nearby.to(frequencies.kernel.dtype) @ frequencies.kernel  # (..., T, K, Q)
    factor = waiting[..., None] + arrived[..., None] * frequencies.turn[..., None, :]
    everyone = torch.exp(torch.log(factor).sum(-2, keepdim=True))  # (..., T, 1, Q)
    # The characteristic function of the others: that of all divided by the element's own.
    mean = (1 / factor) @ (everyone * spectrum).mT  # (..., T, n, K)
    return (mean.real * density[..., None]).sum(-3).mT


def _rank_reach(n: int) -> int:
    """The largest number of ranks in a window of arrivals."""
    return 2 * math.ceil(_RANK_DEVIATIONS * math.sqrt(n) / 2 + _RANK_MARGIN) + 1


def _arrival_chunks(log_scores: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The arrival grid in chunks of bounded size; empty for an empty batch."""
    if log_scores.numel() == 0:
        return
    n = log_scores.shape[-1]
    times, steps = _arrival_grid(log_scores.detach())
    batch = log_scores[..., 0].numel()
    size = max(1, _RANK_CHUNK // (batch * max(n, _rank_reach(n)) * _RANK_NODES))
    yield from zip(times.split(size), steps.split(size), strict=True)


def _arrival_grid(log_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Points in log-time to integrate over every element's arrival, and their weights."""
    # The log-time at which a given rank is reached has a deviation of at least 1.24 / sqrt(n); a
    # step of 0.7 of that has an error of exp(-2 pi^2 / 0.49) = 1e-18.
    step = min(0.25, 0.85 / math.sqrt(log_scores.shape[-1]))
    # Before the first arrivals only the density changes, as e^x: with exponentially growing steps,
    # 40 units of log-time cost as much as 4.
    early = -float(torch.logsumexp(log_scores, -1).max()) - 4
    late = -float(log_scores.min()) + 4.5
    plain = torch.arange(early - 3.7, late, step, dtype=log_scores.dtype, device=log_scores.device)
    runaway = torch.exp(early - plain)
    return plain - runaway, step * (1 + runaway)


class _Frequencies(NamedTuple):
    ranks: Tensor  # (..., T, W) a window around the expected number of arrivals
    kernel: Tensor  # (..., T, W, Q) the transform of a function on that window, weights included
    turn: Tensor  # (..., T, Q) e^{i theta}


def _frequencies(arrived: Tensor, waiting: Tensor) -> _Frequencies:
    """Frequencies that resolve the law of the number of arrivals at every time."""
    kind: Any = {"dtype": arrived.dtype, "device": arrived.device}
    deviation = (arrived * waiting).sum(-1).sqrt()
    half = torch.ceil(_RANK_DEVIATIONS * deviation + _RANK_MARGIN)[..., None]
    period = 2 * half + 1  # odd: no node at pi, where the factor of a fair coin vanishes
    node = torch.arange(_RANK_NODES, **kind)
    angle = torch.where(node <= half, 2 * math.pi * node / period, 0.0)
    weight = torch.where(node <= half, torch.where(node == 0, 1.0, 2.0) / period, 0.0)
    offset = torch.arange(_rank_reach(arrived.shape[-1]), **kind)
    ranks = arrived.sum(-1, keepdim=True).round() - half + offset
    size = torch.where(offset < period, 1.0, 0.0)[..., None] * weight[..., None, :]
    kernel = torch.polar(size, -ranks[..., None] * angle[..., None, :])
    return _Frequencies(ranks, kernel, torch.polar(torch.ones_like(angle), angle))
