"""Brute force: every structure is listed, every mass is summed directly.

Nothing here knows the library. Whatever a test differentiates is written in plain float64 torch
(loops and ``logsumexp``); the rest is Python, numpy and mpmath. Clarity matters, speed does not.
Beside the laws stands what all tests share: seeded inputs, and comparisons of samples with their
false-alarm rates.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mpmath
import numpy as np
import scipy.stats
import torch
from scipy.special import gammaln
from torch import Tensor


class Enumeration(NamedTuple):
    """All values of a law, stacked along the first dimension, with their log-masses."""

    values: Tensor
    log_mass: Tensor

    @property
    def mass(self) -> Tensor:
        return self.log_mass.exp()

    def expectation(self, statistic: Tensor) -> Tensor:
        """Mean of a statistic given for each value (first dimension)."""
        weights = self.mass.reshape(-1, *[1] * (statistic.dim() - 1))
        return torch.where(weights > 0, weights * statistic, 0.0).sum(0)

    def mean(self) -> Tensor:
        return self.expectation(self.values.double())

    def variance(self) -> Tensor:
        centered = self.values.double() - self.mean()
        return self.expectation(centered**2)

    def entropy(self) -> Tensor:
        return -torch.where(self.mass > 0, self.mass * self.log_mass, 0.0).sum()

    def kl(self, other: Enumeration) -> Tensor:
        """KL(self, other) over the same list of values; infinite where the support demands it."""
        seen = self.log_mass > -math.inf
        if (other.log_mass[seen] == -math.inf).any():
            return torch.tensor(math.inf, dtype=torch.float64)
        return (self.mass[seen] * (self.log_mass[seen] - other.log_mass[seen])).sum()


def kept_bytes(compute: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """A result, and the size of what is kept for its backward pass."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return compute(), sum(kept)


# ---------------------------------------------------------------------------------------------
# random inputs


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def parameters(
    n: int, groups: int, scale: float = 1.0, seed: int = 0, weight_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Log-scores of n elements and log-weights of some groups, of one scale by default."""
    noise = normal(n + groups, seed=seed)
    return scale * noise[:n], (scale if weight_scale is None else weight_scale) * noise[n:]


def affinity_parameters(
    n: int, groups: int, scale: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Log-affinities of some groups for n elements, and log-weights of the groups."""
    return scale * normal(groups, n, seed=seed), normal(groups, seed=seed + 1)


def full_urn(n: int, groups: int) -> list[int]:
    """Capacities that sum to n, which leave the sizes no choice."""
    return [len(range(k, n, groups)) for k in range(groups)]


def closed_group(n: int, groups: int) -> list[int]:
    """Capacities without room for a group in the middle, if there is more than one."""
    return [0 if groups > 1 and k == groups // 2 else n for k in range(groups)]


Room = Callable[[int, int], list[int]]  # capacities of some groups that share n elements

# Scale of the scores, scale of the weights, capacities. Weights as far apart as 50 put nearly
# every draw into one group, and leave nothing to fill; so scores of that scale are also paired
# with weights that keep the sizes random.
GRADIENT_CASES: list[tuple[float, float, Room | None]] = [
    (0.5, 0.5, None),
    (2.0, 2.0, None),
    (10.0, 10.0, None),
    (50.0, 50.0, None),
    (50.0, 0.5, None),
    (2.0, 2.0, full_urn),
    (2.0, 2.0, closed_group),
]

SMALL = list(itertools.product(range(1, 7), range(1, 5)))  # elements and groups

# Elements, groups and a case: any two of them meet, but not all three, which would take four times
# as long. At n = 5, K = 3, where more is asked, every case is there.
GRADIENT_GRID = [
    (n, groups, *case)
    for n, groups in SMALL
    for index, case in enumerate(GRADIENT_CASES)
    if (n + groups + index) % 4 == 0 or (n, groups) == (5, 3)
]

# Bernstein's inequality holds for any number of draws: it sets the width of the errors, not the
# false-alarm rate. With 2,000 a gradient that lacks its score-function part can be 4 widths off, as
# a test of the entropy's shows; in the comparison given the draws it is seen whatever the width.
GRADIENT_DRAWS = 2_000


# ---------------------------------------------------------------------------------------------
# sizes


def size_vectors(total: int, capacities: Sequence[int]) -> Tensor:
    """All whole vectors below the capacities that sum to the total, in lexicographic order."""
    ranges = [range(min(total, int(m)) + 1) for m in capacities]
    found = [v for v in itertools.product(*ranges) if sum(v) == total]
    return torch.tensor(found, dtype=torch.int64).reshape(-1, len(capacities))


def _log_choose(m: int, k: int) -> float:
    return math.log(math.comb(int(m), int(k)))


def fisher(total: int, log_weights: Tensor, capacities: Sequence[int] | None = None) -> Enumeration:
    """Fisher's multivariate noncentral hypergeometric, normalized by the sum over the support."""
    capacities = [total] * len(log_weights) if capacities is None else capacities
    values = size_vectors(total, capacities)
    counts = torch.tensor(
        [sum(_log_choose(m, k) for m, k in zip(capacities, v, strict=True)) for v in values],
        dtype=torch.float64,
    )
    unnormalized = counts + values.double() @ log_weights.double()
    return Enumeration(values, unnormalized - torch.logsumexp(unnormalized, 0))


def fisher_on(values: Tensor, log_weights: Tensor, capacities: Sequence[int]) -> Enumeration:
    """The same law on listed values that make up its whole support, or part of it."""
    return Enumeration(
        values, look_up(values, fisher(int(values[0].sum()), log_weights, capacities))
    )


def fisher_log_normalizer(
    total: int, log_weights: Tensor, capacities: Sequence[int] | None = None
) -> Tensor:
    capacities = [total] * len(log_weights) if capacities is None else capacities
    terms = [
        sum(_log_choose(m, k) + k * w for m, k, w in zip(capacities, v, log_weights, strict=True))
        for v in size_vectors(total, capacities).tolist()
    ]
    return torch.logsumexp(torch.stack(terms), 0)


def truncated(law: Enumeration, minimum: Sequence[int], maximum: Sequence[int]) -> Enumeration:
    """A law over sizes, restricted to those between a minimum and a maximum."""
    low, high = torch.tensor(minimum), torch.tensor(maximum)
    inside = ((law.values >= low) & (law.values <= high)).all(-1)
    log_mass = law.log_mass[inside]
    return Enumeration(law.values[inside], log_mass - torch.logsumexp(log_mass, 0))


class Urn(NamedTuple):
    """The log-weights, capacities and limits of a size law, or of a batch of them."""

    weights: Tensor
    capacities: Tensor | None = None
    minimum: Tensor | None = None
    maximum: Tensor | None = None

    def __getitem__(self, index: Any) -> Urn:  # type: ignore[override]
        return Urn(*(x[index] for x in tuple(self)))

    @property
    def options(self) -> dict[str, Tensor]:
        """The arguments of a law beside the total and the weights."""
        given = self._asdict()
        return {name: given[name] for name in self._fields[1:] if given[name] is not None}

    def listed(self, total: int) -> Enumeration:
        lists = {name: tensor.tolist() for name, tensor in self.options.items()}
        whole = fisher(total, self.weights, lists.get("capacities"))
        groups = len(self.weights)
        least, most = lists.get("minimum", [0] * groups), lists.get("maximum", [total] * groups)
        return truncated(whole, least, most)


def random_urns(n: int, groups: int, count: int, seed: int = 0) -> Urn:
    """Limits around sizes that meet them; in a quarter of all cases nothing else does."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(groups, 0.7), count)
    sizes = np.stack([rng.multinomial(n, share) for share in shares])
    low = np.floor(rng.random((count, groups)) * (sizes + 1)).astype(int)
    high = sizes + rng.integers(0, n + 1, (count, groups)) * rng.integers(0, 2, (count, groups))
    low[::8], high[1::8] = sizes[::8], sizes[1::8]
    capacities = sizes + rng.integers(0, n + 2, (count, groups))
    scale = np.array([0.1, 1.0, 10.0, 200.0])[np.arange(count) // 8 % 4, None]
    weights = scale * rng.normal(size=(count, groups))
    return Urn(*map(torch.from_numpy, (weights, capacities, low, high)))


def truncated_log_normalizer(
    total: int,
    log_weights: Sequence[float],
    capacities: Sequence[int],
    minimum: Sequence[int],
    maximum: Sequence[int],
) -> float:
    """log [x^n] of the product of truncated factors: convolutions in log-space, term by term."""
    product = np.zeros(1)  # log-coefficients from x^first on
    first = 0
    for w, m, low, high in zip(log_weights, capacities, minimum, maximum, strict=True):
        sizes = np.arange(low, min(high, m, total) + 1)
        factor = gammaln(m + 1) - gammaln(sizes + 1) - gammaln(m - sizes + 1) + sizes * float(w)
        count = min(len(product) + len(factor) - 1, total - first - low + 1)
        found = np.empty(count)
        for i in range(count):
            start, stop = max(0, i - len(factor) + 1), min(i, len(product) - 1) + 1
            terms = product[start:stop] + factor[i - stop + 1 : i - start + 1][::-1]
            largest = terms.max()
            found[i] = largest + np.log(np.exp(terms - largest).sum())
        product, first = found, first + low
    return float(product[total - first])


def fisher_conditionals(law: Enumeration) -> Tensor:
    """log p(n_k | n_<k) of every size vector, from the joint masses; shape (S, K)."""
    values = law.values
    columns, previous = [], torch.zeros(len(values), dtype=torch.float64)
    for k in range(values.shape[1]):
        same = (values[:, None, : k + 1] == values[None, :, : k + 1]).all(-1)
        masked = torch.where(same, law.log_mass[None, :], -math.inf)
        prefix = torch.logsumexp(masked, 1)
        columns.append(prefix - previous)
        previous = prefix
    return torch.stack(columns, 1)


def fisher_merged(
    total: int, log_weights: Tensor, capacities: Sequence[int] | None = None
) -> Enumeration:
    """The shortcut that merges all later groups into one of mean weight; product of conditionals.

    Group k is drawn from a two-group law against one group of capacity sum_{j>k} m_j and weight
    sum_{j>k} m_j omega_j / sum_{j>k} m_j.
    """
    groups = len(log_weights)
    capacities = [total] * groups if capacities is None else [int(m) for m in capacities]
    values = size_vectors(total, capacities)
    w = log_weights.double()
    log_mass = []
    for v in values.tolist():
        remaining, terms = total, [torch.zeros((), dtype=torch.float64)]
        for k in range(groups - 1):
            rest = sum(capacities[k + 1 :])
            if rest == 0:
                break
            parts = [
                math.log(m) + x for m, x in zip(capacities[k + 1 :], w[k + 1 :], strict=True) if m
            ]
            merged = torch.logsumexp(torch.stack(parts), 0) - math.log(rest)
            pair = fisher(remaining, torch.stack([w[k], merged]), [capacities[k], rest])
            terms.append(pair.log_mass[pair.values[:, 0].tolist().index(v[k])])
            remaining -= v[k]
        log_mass.append(torch.stack(terms).sum())
    return Enumeration(values, torch.stack(log_mass))


def fisher_mode(
    total: int,
    log_weights: Sequence[float],
    capacities: Sequence[int],
    minimum: Sequence[int] | None = None,
    maximum: Sequence[int] | None = None,
) -> list[int]:
    """Place the elements one by one where they add most: best, as each group's gain is concave."""
    sizes = [0] * len(capacities) if minimum is None else list(minimum)
    most = capacities if maximum is None else maximum
    for _ in range(total - sum(sizes)):
        gains = [
            math.log((m - k) / (k + 1)) + w if k < h else -math.inf
            for m, k, w, h in zip(capacities, sizes, log_weights, most, strict=True)
        ]
        sizes[int(np.argmax(gains))] += 1
    return sizes


def multinomial(total: int, logits: Tensor) -> Enumeration:
    """Counts of independent categorical draws."""
    groups = len(logits)
    values = size_vectors(total, [total] * groups)
    log_probs = logits.double() - torch.logsumexp(logits.double(), 0)
    counts = torch.tensor(
        [math.lgamma(total + 1) - sum(math.lgamma(k + 1) for k in v) for v in values.tolist()],
        dtype=torch.float64,
    )
    return Enumeration(values, counts + values.double() @ log_probs)


def fisher_log_prob_high_precision(
    sizes: Sequence[int], log_weights: Sequence[float], capacities: Sequence[int], digits: int = 60
) -> float:
    """The log-mass of one vector of sizes in big floats, however large the capacities are."""
    total = sum(sizes)
    log_p0, _ = fisher_high_precision(total, log_weights, capacities, digits)
    with mpmath.workdps(digits):
        terms = [
            mpmath.log(math.comb(int(m), k)) + k * mpmath.mpf(float(w))
            for m, k, w in zip(capacities, sizes, log_weights, strict=True)
        ]
        return float(mpmath.fsum([*terms, -log_p0]))


def fisher_high_precision(
    total: int, log_weights: Sequence[float], capacities: Sequence[int], digits: int = 60
) -> tuple[float, np.ndarray]:
    """(log P_0, mean) from the product of the polynomials (1 + omega_k x)^{m_k} in big floats."""
    with mpmath.workdps(digits):
        weights = [mpmath.exp(mpmath.mpf(float(w))) for w in log_weights]

        def factor(k: int) -> list:
            m = min(int(capacities[k]), total)
            return [math.comb(int(capacities[k]), j) * weights[k] ** j for j in range(m + 1)]

        def times(a: list, b: list) -> list:
            out = [mpmath.mpf(0)] * min(len(a) + len(b) - 1, total + 1)
            for i, x in enumerate(a):
                for j, y in enumerate(b[: len(out) - i]):
                    out[i + j] += x * y
            return out

        groups = len(weights)
        suffix = [[mpmath.mpf(1)]]
        for k in reversed(range(groups)):
            suffix.append(times(factor(k), suffix[-1]))
        suffix.reverse()
        prefix, means = [mpmath.mpf(1)], []
        for k in range(groups):
            rest = times(prefix, suffix[k + 1])
            mean = mpmath.mpf(0)
            for j, x in enumerate(factor(k)):
                if 0 <= total - j < len(rest):
                    mean += j * x * rest[total - j]
            means.append(mean / suffix[0][total])
            prefix = times(prefix, factor(k))
        return float(mpmath.log(suffix[0][total])), np.array([float(m) for m in means])


# ---------------------------------------------------------------------------------------------
# orders


@functools.lru_cache(maxsize=16)
def permutations(n: int) -> Tensor:
    return torch.tensor(list(itertools.permutations(range(n))), dtype=torch.int64)


def plackett_luce_log_prob(log_scores: Tensor, order: Tensor) -> Tensor:
    """Each element is chosen among the remaining ones with probability proportional to score."""
    drawn = log_scores.double()[order]
    steps = [drawn[..., r] - torch.logsumexp(drawn[..., r:], -1) for r in range(order.shape[-1])]
    return torch.stack(steps, -1).sum(-1)


def plackett_luce(log_scores: Tensor) -> Enumeration:
    orders = permutations(len(log_scores))
    return Enumeration(orders, plackett_luce_log_prob(log_scores, orders))


def subset_permutation_log_prob(log_scores: Tensor, drawn: Sequence[int], taken: Sequence[int]):
    """Chance to draw these elements in this order once the taken ones are gone."""
    gone, total = set(taken), torch.zeros((), dtype=torch.float64)
    for i in drawn:
        left = [j for j in range(len(log_scores)) if j not in gone]
        total = total + log_scores[i] - torch.logsumexp(log_scores[left], 0)
        gone.add(i)
    return total


def leading_set_log_probs(log_scores: Sequence[float], after: float = -math.inf) -> np.ndarray:
    """log P(the first |A| draws are the set A) for each bit mask A, by recursion over the last one.

    ``after`` is the log of the summed scores of further elements, none of them drawn.
    All terms are positive: nothing cancels.
    """
    s = np.asarray(log_scores, dtype=np.float64)
    n = len(s)
    rest = np.empty(1 << n)
    for mask in range(1 << n):
        left = [s[i] for i in range(n) if not mask >> i & 1]
        rest[mask] = np.logaddexp.reduce([*left, after])
    out = np.full(1 << n, -math.inf)
    out[0] = 0.0
    for mask in range(1, 1 << n):
        bits = [i for i in range(n) if mask >> i & 1]
        before = np.array([mask ^ (1 << i) for i in bits])
        out[mask] = np.logaddexp.reduce(out[before] + s[bits] - rest[before])
    return out


def rank_probabilities(log_scores: Sequence[float]) -> np.ndarray:
    """P(element i has rank r), shape (n, n) indexed [r, i], from the leading sets."""
    s = np.asarray(log_scores, dtype=np.float64)
    n = len(s)
    lead = leading_set_log_probs(s)
    out = np.zeros((n, n))
    for mask in range((1 << n) - 1):
        left = [i for i in range(n) if not mask >> i & 1]
        out[n - len(left), left] += np.exp(lead[mask] + s[left] - np.logaddexp.reduce(s[left]))
    return out


# ---------------------------------------------------------------------------------------------
# partitions


@functools.lru_cache(maxsize=32)
def assignments(n: int, groups: int) -> Tensor:
    """All K^n label vectors, in lexicographic order."""
    return torch.tensor(list(itertools.product(range(groups), repeat=n)), dtype=torch.int64)


def to_matrix(labels: Tensor, groups: int) -> Tensor:
    """Labels (..., n) to Y (..., K, n) with one-hot columns, float64."""
    return torch.nn.functional.one_hot(labels, groups).movedim(-1, -2).double()


def partition(log_scores: Tensor, sizes: Enumeration) -> Enumeration:
    """The two-stage law: each Y sums the masses of all orders that fill it, times p(sizes).

    The values are all K^n matrices; those whose sizes are impossible have log-mass -inf.
    """
    n, groups = len(log_scores), sizes.values.shape[1]
    orders = plackett_luce(log_scores)
    log_mass = torch.full((groups**n,), -math.inf, dtype=torch.float64)
    for size, log_p in zip(sizes.values.tolist(), sizes.log_mass, strict=True):
        where, index = _filling_orders(tuple(size))
        masses = torch.logsumexp(orders.log_mass[index], 1) + log_p
        log_mass = log_mass.index_put((where,), masses)
    return Enumeration(to_matrix(assignments(n, groups), groups), log_mass)


@functools.lru_cache(maxsize=1024)
def _filling_orders(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Every Y of these sizes (its place among all), and the orders that fill it, one row each.

    They depend on no parameter, and every case of a test asks for them again.
    """
    n, groups = sum(sizes), len(sizes)
    orders = permutations(n)
    by_rank = torch.repeat_interleave(torch.arange(groups), torch.tensor(sizes))
    labels = torch.empty_like(orders)
    labels.scatter_(1, orders, by_rank.expand_as(labels))
    code = (labels * groups ** torch.arange(n - 1, -1, -1)).sum(1)
    index = torch.argsort(code, stable=True).reshape(-1, math.prod(map(math.factorial, sizes)))
    codes = code[index]
    assert (codes == codes[:, :1]).all()
    return codes[:, 0], index


def fills(log_scores: Tensor, groups: int) -> Tensor:
    """log P(Y | sizes of Y) of every Y, in the order of :func:`assignments`."""
    n = len(log_scores)
    values = size_vectors(n, [n] * groups)
    given = Enumeration(values, torch.zeros(len(values), dtype=torch.float64))
    return partition(log_scores, given).log_mass


def random_partition(
    log_scores: Tensor, log_weights: Tensor, capacities: Sequence[int] | None = None
) -> Enumeration:
    return partition(log_scores, fisher(len(log_scores), log_weights, capacities))


def affinity_fills(log_affinities: Tensor) -> Tensor:
    """log P(Y | sizes of Y) of every Y if subset k chooses by row k; as :func:`assignments`."""
    groups, n = log_affinities.shape

    @functools.cache
    def log_take(k: int, takes: tuple[int, ...], left: tuple[int, ...]) -> Tensor:
        """Row k takes these elements first, in any order: the sum over the one that comes first."""
        if not takes:
            return torch.zeros((), dtype=torch.float64)
        row = log_affinities[k].double()
        terms = [
            row[i]
            - torch.logsumexp(row[list(left)], 0)
            + log_take(k, tuple(j for j in takes if j != i), tuple(j for j in left if j != i))
            for i in takes
        ]
        return torch.logsumexp(torch.stack(terms), 0)

    log_probs = []
    for labels in assignments(n, groups).tolist():
        log_prob, left = torch.zeros((), dtype=torch.float64), tuple(range(n))
        for k in range(groups):
            takes = tuple(i for i in left if labels[i] == k)
            log_prob = log_prob + log_take(k, takes, left)
            left = tuple(i for i in left if labels[i] != k)
        log_probs.append(log_prob)
    return torch.stack(log_probs)


def affinity_partition(
    log_affinities: Tensor, log_weights: Tensor, capacities: Sequence[int] | None = None
) -> Enumeration:
    """Fisher's sizes, and every subset chooses by its own row."""
    return partition_by_rows(
        log_affinities, fisher(log_affinities.shape[1], log_weights, capacities)
    )


def partition_by_rows(log_affinities: Tensor, sizes: Enumeration) -> Enumeration:
    """As :func:`partition`, but every subset chooses by its own row."""
    groups, n = log_affinities.shape
    values = to_matrix(assignments(n, groups), groups)
    log_sizes = look_up(values.sum(-1).long(), sizes)
    return Enumeration(values, log_sizes + affinity_fills(log_affinities))


def look_up(values: Tensor, law: Enumeration) -> Tensor:
    """The log-masses of listed values, -inf where a law does not have them."""
    table = {tuple(v): m for v, m in zip(law.values.tolist(), law.log_mass, strict=True)}
    nothing = torch.tensor(-math.inf, dtype=torch.float64)
    return torch.stack([table.get(tuple(v), nothing) for v in values.tolist()])


def affinity_order_log_prob(log_affinities: Tensor, labels: Tensor, order: Tensor) -> Tensor:
    """Every subset draws its elements in this order, by its own row, from all that are left."""
    left, log_prob = order.tolist(), torch.zeros((), dtype=torch.float64)
    while left:
        row = log_affinities[labels[left[0]]]
        log_prob = log_prob + row[left[0]] - torch.logsumexp(row[left], 0)
        left = left[1:]
    return log_prob


def bounds(
    log_scores: Tensor, labels: Tensor, size_log_prob: Tensor, order: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The lower bound (one compatible order) and the upper bound (n_k! times the likeliest)."""
    n, groups = len(log_scores), int(labels.max()) + 1
    members = [[i for i in range(n) if labels[i] == k] for k in range(groups)]
    if order is None:
        fill = [i for m in members for i in sorted(m, key=lambda i: -float(log_scores[i]))]
        order = torch.tensor(fill)
    best = torch.argsort(log_scores, descending=True)
    count = sum(math.lgamma(len(m) + 1) for m in members)
    lower = size_log_prob + plackett_luce_log_prob(log_scores, order)
    return lower, size_log_prob + plackett_luce_log_prob(log_scores, best) + count


def fill_log_prob_by_subsets(log_scores: Sequence[float], labels: Sequence[int]) -> float:
    """log P(Y | sizes) by the recursion over sets, subset by subset (each of at most ~14).

    The scores are one row for all subsets, or a row for each.
    """
    y, groups = np.asarray(labels), int(np.max(labels)) + 1
    rows = np.broadcast_to(np.asarray(log_scores, dtype=np.float64), (groups, len(y)))
    total = 0.0
    for k, s in enumerate(rows):
        later = np.logaddexp.reduce(s[y > k]) if (y > k).any() else -math.inf
        total += leading_set_log_probs(s[y == k], later)[-1]
    return float(total)


def subset_at_rank(sizes: Enumeration) -> np.ndarray:
    """P(rank r falls into subset k) when the sizes are random; (K, n)."""
    groups, n = sizes.values.shape[1], int(sizes.values[0].sum())
    out = np.zeros((groups, n))
    for size, mass in zip(sizes.values.numpy(), sizes.mass.detach().numpy(), strict=True):
        out[np.repeat(np.arange(groups), size), np.arange(n)] += mass
    return out


def rank_probabilities_by_quadrature(log_scores: Sequence[float], element: int) -> np.ndarray:
    """P(rank of one element = r): Poisson-binomial counts given its arrival time, fine grid."""
    s = np.asarray(log_scores, dtype=np.float64)
    step = 0.2 / math.sqrt(len(s))
    x = np.arange(-s[element] - 45.0, -s[element] + 5.0, step)  # log of the arrival time
    density = np.exp(x + s[element] - np.exp(x + s[element])) * step
    counts = np.zeros((len(x), len(s)))
    counts[:, 0] = 1.0
    for other in np.delete(s, element):
        arrived = -np.expm1(-np.exp(np.minimum(x + other, 7.0)))[:, None]
        counts[:, 1:] = counts[:, 1:] * (1 - arrived) + counts[:, :-1] * arrived
        counts[:, :1] *= 1 - arrived
    return density @ counts


# ---------------------------------------------------------------------------------------------
# relaxed sorting, as in the textbooks: every matrix in full


def neuralsort(scores: Tensor, temperature: float | Tensor) -> Tensor:
    """Row r: softmax_i(((n + 1 - 2 (r + 1)) s_i - sum_j |s_i - s_j|) / tau)."""
    n = scores.shape[-1]
    distance = (scores.unsqueeze(-1) - scores.unsqueeze(-2)).abs().sum(-1)
    factor = n + 1 - 2 * torch.arange(1, n + 1, dtype=scores.dtype, device=scores.device)
    logits = factor.unsqueeze(-1) * scores.unsqueeze(-2) - distance.unsqueeze(-2)
    return torch.softmax(logits / temperature, -1)


def softsort(scores: Tensor, temperature: float | Tensor) -> Tensor:
    """Row r: softmax_i(-|s_(r) - s_i| / tau), with s_(r) the r-th largest score."""
    ranked = torch.sort(scores, dim=-1, descending=True).values
    distance = (ranked.unsqueeze(-1) - scores.unsqueeze(-2)).abs()
    return torch.softmax(-distance / temperature, -1)


# ---------------------------------------------------------------------------------------------
# tests of samples

# The probability that a right program fails a test of samples, at most. A test that compares
# several things divides it among them.
FALSE_ALARM = 1e-4
ERRORS = 5.0  # standard errors a Monte Carlo mean may be off


def assert_mean(
    estimates: Tensor, expected: Tensor, *, rate: float = FALSE_ALARM, slack: float = 1e-9
) -> Tensor:
    """The mean of independent estimates is within five standard errors; returns those errors.

    The errors are estimated from the R estimates along the first dimension, so that the distance
    of a right mean follows Student's t with R - 1 degrees of freedom, nearly: each estimate is
    itself an average of many draws. It exceeds 5 with probability 1.3e-5 for R = 40 and 5.5e-6
    for R = 60; one of C components does with at most C times that, which ``rate`` must cover.
    """
    repeats, components = len(estimates), estimates[0].numel()
    alarm = components * 2 * float(scipy.stats.t.sf(ERRORS, repeats - 1))
    assert alarm <= rate, f"{components} comparisons need more than {repeats} repetitions"
    error = estimates.std(0) / math.sqrt(repeats)
    distance = (estimates.mean(0) - expected).abs()
    assert (distance <= ERRORS * error + slack).all(), (distance / error).max()
    return error


_UNSEEN = 1e-7  # the probability of all events that are too rare to be considered


def _deviation(
    law: Enumeration, statistic: Tensor, draws: int, errors: float
) -> tuple[Tensor, Tensor]:
    """Expectations of (S, C) statistics, and how far the means over independent draws may be off.

    That is some exact standard errors, and an allowance for events too rare to be drawn as often
    as the normal law wants. Bernstein's inequality has both: for N draws that are at most b away
    from mu, |mean - mu| <= e sigma / sqrt(N) + e^2 b / (6 N) but for a probability of
    2 exp(-e^2 / 2). The rarest events are left out of mu, sigma and b.
    """
    mass, order = law.mass.detach().sort()
    seen = (mass.cumsum(0) * draws > _UNSEEN) & (mass > 0)
    mass, values = (mass[seen] / mass[seen].sum())[:, None], statistic.detach()[order][seen]
    mean = (mass * values).sum(0)
    away = (values - mean).abs()
    error = ((mass * away**2).sum(0) / draws).sqrt()
    rounding = 1e-9 * mean.abs().clamp(min=1)
    return mean, errors * error + errors**2 / 6 * away.amax(0) / draws + rounding


def _check(found: Tensor, mean: Tensor, limit: Tensor, rate: float) -> None:
    alarm = found.numel() * 2 * math.exp(-(ERRORS**2) / 2) + _UNSEEN
    assert alarm <= rate, f"{found.numel()} comparisons raise false alarms at a rate of {alarm}"
    assert ((found - mean).abs() <= limit).all(), (found - mean, limit)


def assert_expectation(
    found: Tensor, law: Enumeration, statistic: Tensor, draws: int, *, rate: float = FALSE_ALARM
) -> None:
    """A mean over independent draws is within five standard errors of the listed expectation.

    The false-alarm rate is 7.5e-6, see :func:`_deviation`.
    """
    mean, limit = _deviation(law, statistic[:, None], draws, ERRORS)
    _check(found.detach().reshape(1), mean, limit, rate)


def slopes(values: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """The gradient of each of S listed values in a vector of C numbers, (S, C).

    The vector is far shorter than the list, so derivatives run forward: one pass a number.
    """
    jacobian: Tensor = torch.func.jacfwd(values)(point)
    return jacobian


def without_last(gradients: Sequence[Tensor]) -> Tensor:
    """Slopes in several vectors of logs side by side, less the last one of each.

    A common factor of a vector changes nothing: the last slope is minus the sum of the rest, and
    need not be compared.
    """
    return torch.cat([gradient[..., :-1] for gradient in gradients], -1)


def assert_score_function_gradient(
    found: Tensor,
    counts: np.ndarray,
    law: Enumeration,
    cost: Tensor,
    slopes: Tensor,
    scores: Tensor,
) -> Tensor:
    """A score-function gradient is within five standard errors; returns what is allowed, (C,).

    The estimate is the mean of g_i + (c_i - c_others) l_i, with the slopes g (S, C) of the costs c
    (S,) and the slopes l (S, C) of the log-masses. Given how often each value was drawn (S,) it is
    not random any more and must agree but for rounding: that shows a fault however wide the
    standard errors are, and they are wide where rare draws decide.

    With E[c] for the mean c_others of the others it would be a mean over independent draws. From
    that it moves by (N mean(c - E[c]) mean(l) - mean((c - E[c]) l)) / (N - 1), which is smaller by
    sqrt(N); 7 errors for each of its factors are exceeded with a probability of 5e-11.
    """
    draws = int(counts.sum())
    shares = torch.from_numpy(counts).double() / draws
    advantage = (cost - shares @ cost) * draws / (draws - 1)
    drawn = shares @ (slopes + advantage[:, None] * scores)
    torch.testing.assert_close(found, drawn, rtol=1e-10, atol=1e-10)
    wide = 7.0
    cost_mean, cost_limit = _deviation(law, cost[:, None], draws, wide)
    product = (cost - cost_mean)[:, None] * scores
    score_mean, score_limit = _deviation(law, scores, draws, wide)
    product_mean, product_limit = _deviation(law, product, draws, wide)
    mean, limit = _deviation(law, slopes + product, draws, ERRORS)
    factors = draws * cost_limit * (score_limit + score_mean.abs())
    limit = limit + (factors + product_limit + product_mean.abs()) / (draws - 1)
    _check(found, mean, limit, FALSE_ALARM)
    return limit


def binomial_p_values(counts: np.ndarray, probabilities: np.ndarray, draws: int) -> np.ndarray:
    """Two-sided, exact at any expected count; each is below p with probability p at most."""
    counts, law = np.asarray(counts), scipy.stats.binom(draws, np.clip(probabilities, 0, 1))
    return np.minimum(1, 2 * np.minimum(law.cdf(counts), law.sf(counts - 1)))


def chi_square_p_value(counts: np.ndarray, probabilities: np.ndarray, smallest: float = 5) -> float:
    """Pearson's test; cells with few expected counts are pooled, impossible ones must be empty."""
    counts, expected = np.asarray(counts, float), np.asarray(probabilities, float) * counts.sum()
    assert not counts[expected < 1e-12].any(), "a value of mass zero was drawn"
    order = np.argsort(expected)
    counts, expected = counts[order], expected[order]
    pooled = int(np.searchsorted(expected, smallest))
    while 0 < pooled < len(expected) and expected[:pooled].sum() < smallest:
        pooled += 1
    if pooled:
        counts = np.concatenate([[counts[:pooled].sum()], counts[pooled:]])
        expected = np.concatenate([[expected[:pooled].sum()], expected[pooled:]])
    if len(expected) == 1:
        return 1.0
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(scipy.stats.chi2.sf(statistic, len(expected) - 1))


def count_values(samples: Tensor, values: Tensor) -> np.ndarray:
    """How often each listed value occurs among the samples; an unlisted one is an error."""
    flat = samples.reshape(len(samples), -1).to(torch.int64)
    listed = values.reshape(len(values), -1).to(torch.int64)
    base = int(max(flat.max(), listed.max())) + 1
    weights = [base**j for j in range(flat.shape[1])]
    assert weights[-1] * base < 2**62, "too many cells for a 64-bit code"
    place = torch.tensor(weights)
    table, where = torch.sort((listed * place).sum(1))
    code = (flat * place).sum(1)
    index = torch.searchsorted(table, code).clamp(max=len(table) - 1)
    assert (table[index] == code).all(), "a value outside the support was drawn"
    counts = torch.zeros(len(listed), dtype=torch.int64)
    counts.index_add_(0, where[index], torch.ones_like(code))
    return counts.numpy()
