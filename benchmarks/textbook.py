"""The method as a textbook would write it: dense, in log space, gradients by autograd alone.

It is the yardstick of the benchmark. Nothing here is clever: the size tables hold every size and
are filled by full log-convolutions, the soft permutation is an n x n matrix, and the integrals of
the log-probability keep the factor of every element at every node.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

QUADRATURE_NODES = 400
# The integrand is cut off where it has fallen by this many nats below its peak.
QUADRATURE_DROP = 45.0


class RelaxedChoice(NamedTuple):
    """A one-hot choice and its relaxation, in the last dimension."""

    hard: Tensor
    soft: Tensor


def sample(log_scores: Tensor, log_weights: Tensor) -> Tensor:
    """One partition, as the product of an assignment of ranks and a permutation matrix."""
    num_elements = log_scores.shape[-1]
    terms, tables = size_tables(num_elements, log_weights)
    remaining = torch.tensor(num_elements, device=log_scores.device)
    choices = []
    for group in range(len(terms)):
        logits = _size_logits(terms[group], tables[group + 1], remaining)
        size = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
        choices.append(_one_hot(size, logits))
        remaining = remaining - size
    order = (log_scores + _gumbel_like(log_scores)).argsort(descending=True)
    permutation = _one_hot(order, log_scores)
    return rank_assignment(torch.stack(choices).to(log_scores.dtype)) @ permutation


def rsample(temperature: float, log_scores: Tensor, log_weights: Tensor) -> Tensor:
    """One partition with one-hot columns; gradients are those of its relaxation."""
    sizes = relaxed_sizes(temperature, log_scores.shape[-1], log_weights)
    permutation = neural_sort(temperature, log_scores + _gumbel_like(log_scores))
    soft = rank_assignment(sizes.soft.to(log_scores.dtype)) @ permutation.soft
    hard = rank_assignment(sizes.hard.to(log_scores.dtype)) @ permutation.hard
    return hard + (soft - soft.detach())


def log_prob(log_scores: Tensor, log_weights: Tensor, partition: Tensor) -> Tensor:
    """The exact log-mass of a partition."""
    sizes_part = size_log_prob(log_weights, partition.sum(-1).long())
    return sizes_part + assignment_log_prob(log_scores, partition)


def size_tables(total_count: int, log_weights: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The log-terms log C(n, j) + j log omega_k, and for each group k the table over r of the
    log-coefficients of x^r in the product of (1 + omega_j x)^n over groups j >= k."""
    sizes = torch.arange(total_count + 1, device=log_weights.device)
    log_factorials = torch.lgamma(sizes.double() + 1)
    log_binomials = log_factorials[-1] - log_factorials - log_factorials.flip(-1)
    terms = log_binomials + sizes * log_weights.double().unsqueeze(-1)
    # With no group left, the only way is to place nothing.
    tables = [_one_hot(sizes[0], log_binomials).log()]
    for group in reversed(range(len(terms))):
        later = _convolution_matrix(tables[0], -torch.inf)
        tables.insert(0, torch.logsumexp(terms[group] + later, dim=-1))
    return terms, tables


def size_log_prob(log_weights: Tensor, sizes: Tensor) -> Tensor:
    """The log-mass of the subset sizes."""
    terms, tables = size_tables(int(sizes.sum()), log_weights)
    return terms.gather(-1, sizes.unsqueeze(-1)).sum() - tables[0][-1]


def relaxed_sizes(temperature: float, total_count: int, log_weights: Tensor) -> RelaxedChoice:
    """One Gumbel softmax over all sizes 0..n per group, shape (K, n + 1)."""
    terms, tables = size_tables(total_count, log_weights)
    remaining = torch.tensor(total_count, device=log_weights.device)
    hard, soft = [], []
    for group in range(len(terms)):
        logits = _size_logits(terms[group], tables[group + 1], remaining)
        noisy = logits + _gumbel_like(logits)
        size = noisy.argmax(-1)
        hard.append(_one_hot(size, logits))
        soft.append((noisy / temperature).softmax(-1))
        remaining = remaining - size
    return RelaxedChoice(torch.stack(hard), torch.stack(soft))


def rank_assignment(choices: Tensor) -> Tensor:
    """Which group each rank belongs to, shape (K, n), from one vector over sizes per group.

    The groups fill the ranks one after another: group k ends where it starts plus its size, and
    it owns the ranks between the two.
    """
    start = _one_hot(torch.tensor(0, device=choices.device), choices)
    rows = []
    for choice in choices:
        end = _convolution_matrix(start, 0.0) @ choice
        rows.append(_tail_sums(end) - _tail_sums(start))
        start = end
    return torch.stack(rows)


def neural_sort(temperature: float, scores: Tensor) -> RelaxedChoice:
    """The n x n permutation matrix that sorts the scores in descending order, relaxed."""
    num_elements = scores.shape[-1]
    distances = (scores.unsqueeze(-1) - scores).abs().sum(-1)
    ranks = torch.arange(1, num_elements + 1, device=scores.device)
    scaling = (num_elements + 1 - 2 * ranks).to(scores.dtype)
    soft = ((scaling.unsqueeze(-1) * scores - distances) / temperature).softmax(-1)
    return RelaxedChoice(_one_hot(scores.argsort(descending=True), scores), soft)


def assignment_log_prob(log_scores: Tensor, partition: Tensor) -> Tensor:
    """The log-probability of the subsets given their sizes: one integral per subset."""
    log_scores = log_scores.double()
    total = log_scores.new_zeros(())
    for group in range(len(partition)):
        members = log_scores[partition[group] > 0]
        later = log_scores[partition[group + 1 :].sum(0) > 0]
        if len(members) > 0 and len(later) > 0:
            total = total + _log_integral(members - later.logsumexp(-1))
    return total


def _log_integral(log_rates: Tensor) -> Tensor:
    """log of the integral over u in [0, 1] of prod_i (1 - u^{rate_i}), with u = exp(-exp(x))."""

    def log_integrand(x: Tensor) -> Tensor:
        factors = torch.log(-torch.expm1(-torch.exp(x.unsqueeze(-1) + log_rates)))
        return x - x.exp() + factors.sum(-1)

    def slope(x: Tensor) -> Tensor:
        hazards = torch.exp(x + log_rates)
        return 1 - x.exp() + (hazards / torch.expm1(hazards)).sum()

    with torch.no_grad():
        # The integrand is log-concave, so its peak and both limits are found by bisection. No
        # term of the slope's sum exceeds 1, which brackets the peak.
        zero = log_rates.new_zeros(())
        peak = _bisect(slope, zero, torch.log1p(zero + len(log_rates)))
        floor = log_integrand(peak) - QUADRATURE_DROP

        def above_floor(x: Tensor) -> Tensor:
            return log_integrand(x) - floor

        left = _bisect(above_floor, peak, peak - _reach(above_floor, peak, -1.0))
        right = _bisect(above_floor, peak, peak + _reach(above_floor, peak, 1.0))
        unit = torch.linspace(0, 1, QUADRATURE_NODES, dtype=peak.dtype, device=peak.device)
        nodes = left + (right - left) * unit
    return log_integrand(nodes).logsumexp(-1) + (nodes[1] - nodes[0]).log()


def _bisect(function: Callable[[Tensor], Tensor], positive: Tensor, negative: Tensor) -> Tensor:
    """Where the function changes its sign between two points of known signs."""
    for _ in range(30):
        middle = (positive + negative) / 2
        is_positive = function(middle) > 0
        positive = torch.where(is_positive, middle, positive)
        negative = torch.where(is_positive, negative, middle)
    return (positive + negative) / 2


def _reach(function: Callable[[Tensor], Tensor], start: Tensor, direction: float) -> float:
    """A distance from the start, along the direction, at which the function is negative."""
    distance = 1.0
    while function(start + direction * distance) > 0:
        distance *= 2
    return distance


def _convolution_matrix(values: Tensor, padding: float) -> Tensor:
    """The matrix of values[r - j] at row r and column j, with padding above the diagonal."""
    size = len(values)
    padded = torch.cat([values.new_full((size - 1,), padding), values])
    return padded.unfold(0, size, 1).flip(-1)


def _size_logits(terms: Tensor, later_table: Tensor, remaining: Tensor) -> Tensor:
    """Unnormalized log-probabilities of a group's size, given how many elements remain."""
    left = remaining - torch.arange(len(terms), device=terms.device)
    return torch.where(left >= 0, terms + later_table[left.clamp(min=0)], -torch.inf)


def _tail_sums(distribution: Tensor) -> Tensor:
    """For r = 0..n-1, the mass on positions beyond r."""
    return distribution[1:].flip(-1).cumsum(-1).flip(-1)


def _one_hot(index: Tensor, like: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(index, like.shape[-1]).to(like.dtype)


def _gumbel_like(values: Tensor) -> Tensor:
    return -torch.empty_like(values).exponential_().log()
