"""Fisher's multivariate noncentral hypergeometric law against enumeration and scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import kl_divergence

import drpm
from drpm.distributions import urn_pair, urn_tables
from tests import oracles
from tests.oracles import FALSE_ALARM, generator

DRAWS = 20_000
SCALES = [0.1, 1.0, 10.0, 50.0]
SMALL = list(itertools.product(range(1, 7), range(1, 5)))
small = pytest.mark.parametrize(("n", "groups"), SMALL)


def random_weights(groups: int, scale: float, seed: int) -> Tensor:
    return scale * oracles.normal(groups, seed=seed)


def random_capacities(n: int, groups: int, seed: int) -> Tensor:
    """Whole numbers, zeros among them, that can hold n."""
    rng = np.random.default_rng(seed)
    while True:
        capacities = rng.integers(0, n + 2, groups)
        if capacities.sum() >= n:
            return torch.tensor(capacities)


def cases(n: int, groups: int) -> list[tuple[Tensor, Tensor | None]]:
    """Random weights at every scale; default capacities, random ones and exactly full ones."""
    found: list[tuple[Tensor, Tensor | None]] = []
    for seed, scale in enumerate(SCALES):
        weights = random_weights(groups, scale, 100 * n + 10 * groups + seed)
        found.append((weights, None))
        found.append((weights, random_capacities(n, groups, seed)))
    full = torch.bincount(torch.arange(n) % groups, minlength=groups)
    found.append((weights, full))
    return found


def oracle(n: int, weights: Tensor, capacities: Tensor | None) -> oracles.Enumeration:
    return oracles.fisher(n, weights, None if capacities is None else capacities.tolist())


# --- brute force ----------------------------------------------------------------------------


@small
def test_masses_moments_and_mode_equal_enumeration(n: int, groups: int) -> None:
    for weights, capacities in cases(n, groups):
        law = drpm.FisherHypergeometric(n, weights, capacities)
        exact = oracle(n, weights, capacities)
        support = law.enumerate_support()
        assert torch.equal(support, exact.values.double())
        log_prob = law.log_prob(support)
        assert abs(log_prob.exp().sum() - 1) < 1e-10
        close = {"rtol": 0, "atol": 1e-9}
        torch.testing.assert_close(log_prob, exact.log_mass, **close)
        torch.testing.assert_close(law.mean, exact.mean(), **close)
        torch.testing.assert_close(law.variance, exact.variance(), **close)
        torch.testing.assert_close(law.entropy(), exact.entropy(), **close)
        torch.testing.assert_close(
            law.log_normalizer,
            oracles.fisher_log_normalizer(
                n, weights, None if capacities is None else capacities.tolist()
            ),
            rtol=1e-12,
            atol=1e-9,
        )
        assert law.support.check(law.mode)
        torch.testing.assert_close(law.log_prob(law.mode), exact.log_mass.max(), **close)


@small
def test_conditionals_equal_enumeration(n: int, groups: int) -> None:
    for weights, capacities in cases(n, groups):
        law = drpm.FisherHypergeometric(n, weights, capacities)
        exact = oracles.fisher_conditionals(oracle(n, weights, capacities))
        found = law.conditional_log_probs(law.enumerate_support())
        likely = exact > -600  # the conditionals of a vanishing history are ratios of nothings
        torch.testing.assert_close(found[likely], exact[likely], rtol=0, atol=1e-8)
        torch.testing.assert_close(
            found.sum(-1), law.log_prob(law.enumerate_support()), rtol=1e-9, atol=1e-8
        )


@small
def test_single_precision_parameters(n: int, groups: int) -> None:
    for weights, capacities in cases(n, groups):
        single = weights.float()
        law = drpm.FisherHypergeometric(n, single, capacities)
        exact = oracle(n, single.double(), capacities)
        allowed = 1e-4 * exact.log_mass.abs().clamp(min=1)
        error = (law.log_prob(law.enumerate_support()).double() - exact.log_mass).abs()
        assert (error <= allowed).all()
        assert (law.mean.double() - exact.mean()).abs().max() < 1e-4
        assert (law.variance.double() - exact.variance()).abs().max() < 1e-4
        assert abs(law.entropy().double() - exact.entropy()) < 1e-4
        best = law.log_prob(law.mode).double()
        assert best >= exact.log_mass.max() - 1e-4 * max(1, abs(float(exact.log_mass.max())))


@small
def test_kl_equals_enumeration(n: int, groups: int) -> None:
    for index, (weights, capacities) in enumerate(cases(n, groups)):
        other = random_weights(groups, SCALES[index % len(SCALES)], 7000 + index)
        p = drpm.FisherHypergeometric(n, weights, capacities)
        q = drpm.FisherHypergeometric(n, other, capacities)
        exact = oracle(n, weights, capacities).kl(oracle(n, other, capacities))
        torch.testing.assert_close(kl_divergence(p, q), exact, rtol=1e-11, atol=1e-9)
        assert abs(kl_divergence(p, p)) < 1e-9


@small
def test_kl_between_different_capacities(n: int, groups: int) -> None:
    """Values over the wider support; infinite where q cannot produce what p can."""
    for seed in range(6):
        first = random_capacities(n, groups, seed)
        second = random_capacities(n, groups, seed + 50)
        wp, wq = random_weights(groups, 2.0, seed), random_weights(groups, 2.0, seed + 1)
        p = drpm.FisherHypergeometric(n, wp, first)
        q = drpm.FisherHypergeometric(n, wq, second)
        listed = oracle(n, wp, first)
        exact = listed.kl(oracles.fisher_on(listed.values, wq, second.tolist()))
        found = kl_divergence(p, q)
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)
        wide = drpm.FisherHypergeometric(n, wq, first + second)
        assert kl_divergence(p, wide) < math.inf


def test_kl_is_infinite_where_the_support_is_not_contained() -> None:
    narrow = drpm.FisherHypergeometric(3, torch.zeros(2), torch.tensor([1, 3]))
    wide = drpm.FisherHypergeometric(3, torch.zeros(2))
    assert kl_divergence(wide, narrow) == math.inf
    assert kl_divergence(narrow, wide) < math.inf


@small
def test_kl_in_single_precision(n: int, groups: int) -> None:
    for index, (weights, capacities) in enumerate(cases(n, groups)):
        other = random_weights(groups, SCALES[index % len(SCALES)], 7000 + index).float()
        p = drpm.FisherHypergeometric(n, weights.float(), capacities)
        q = drpm.FisherHypergeometric(n, other, capacities)
        exact = oracle(n, weights.float().double(), capacities).kl(
            oracle(n, other.double(), capacities)
        )
        found = kl_divergence(p, q)
        assert found.dtype == torch.float32
        assert abs(found.double() - exact) <= 1e-4 * max(1.0, float(exact))


def test_kl_of_different_totals_or_groups() -> None:
    """Different totals share no value; different numbers of groups do not compare at all."""
    p = drpm.FisherHypergeometric(3, torch.zeros(2))
    assert kl_divergence(p, drpm.FisherHypergeometric(4, torch.zeros(2))) == math.inf
    with pytest.raises(ValueError, match=r"group|K|log_weights|event"):
        kl_divergence(p, drpm.FisherHypergeometric(3, torch.zeros(3)))


# --- scipy ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m1", "m2", "n", "log_odds"),
    [(10, 12, 8, 0.3), (50, 40, 60, -1.2), (5, 5, 9, 4.0), (300, 500, 400, 0.0), (7, 1, 3, 2.0)],
)
def test_two_groups_equal_scipy(m1: int, m2: int, n: int, log_odds: float) -> None:
    law = drpm.FisherHypergeometric(
        n, torch.tensor([log_odds, 0.0], dtype=torch.float64), torch.tensor([m1, m2])
    )
    reference = scipy.stats.nchypergeom_fisher(m1 + m2, m1, n, math.exp(log_odds))
    support = law.enumerate_support()
    pmf = reference.pmf(support[:, 0].numpy())
    np.testing.assert_allclose(law.log_prob(support).exp().numpy(), pmf, rtol=0, atol=1e-10)
    np.testing.assert_allclose(law.mean[0].item(), reference.mean(), rtol=1e-8)
    np.testing.assert_allclose(law.variance[0].item(), reference.var(), rtol=1e-7)
    torch.testing.assert_close(law.variance[0], law.variance[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("capacities", "n"), [([3, 4, 5], 6), ([10, 0, 20, 5], 12), ([2, 2, 2], 6), ([100, 80], 90)]
)
def test_equal_weights_equal_scipy(capacities: list[int], n: int) -> None:
    for level in (0.0, -37.0):  # a common factor of all weights changes nothing
        weights = torch.full((len(capacities),), level, dtype=torch.float64)
        law = drpm.FisherHypergeometric(n, weights, torch.tensor(capacities))
        reference = scipy.stats.multivariate_hypergeom(capacities, n)
        support = law.enumerate_support()
        np.testing.assert_allclose(
            law.log_prob(support).exp().numpy(),
            reference.pmf(support.numpy().astype(int)),
            rtol=0,
            atol=1e-10,
        )
        np.testing.assert_allclose(law.mean.numpy(), reference.mean(), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(law.variance.numpy(), reference.var(), rtol=1e-9, atol=1e-10)


# --- large and extreme ----------------------------------------------------------------------


def test_ten_thousand_elements_in_ten_groups() -> None:
    n, groups = 10_000, 10
    law = drpm.FisherHypergeometric(n, torch.zeros(groups, dtype=torch.float64))
    value = law.sample((3,), generator=generator())
    capacity = math.lgamma(n + 1)
    for sizes, found in zip(value, law.log_prob(value), strict=True):
        exact = sum(
            capacity - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in sizes.tolist()
        ) - (math.lgamma(groups * n + 1) - math.lgamma(n + 1) - math.lgamma((groups - 1) * n + 1))
        assert abs(found.item() - exact) < 1e-7  # lgamma(1e5) itself carries 1e-10
    torch.testing.assert_close(law.mean, torch.full_like(law.mean, n / groups))
    p, m = 1 / groups, groups * n
    exact_variance = n * p * (1 - p) * (m - n) / (m - 1)
    torch.testing.assert_close(law.variance, torch.full_like(law.mean, exact_variance))
    assert torch.equal(law.mode, torch.full_like(law.mode, n / groups))


@pytest.mark.parametrize(("n", "groups"), [(10_000, 10), (1_000, 1_000)])
@pytest.mark.parametrize("scale", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_large_laws_are_finite_and_consistent(
    n: int, groups: int, scale: float, dtype: torch.dtype
) -> None:
    weights = random_weights(groups, scale, 1).to(dtype).requires_grad_()
    law = drpm.FisherHypergeometric(n, weights)
    accuracy = 1e-9 if dtype == torch.float64 else 1e-5
    assert abs(law.mean.double().sum() / n - 1) < accuracy
    assert (law.mean >= 0).all()
    assert (law.mean <= n).all()
    assert (law.variance >= 0).all()
    sizes = law.sample((4,), generator=generator())
    assert law.support.check(sizes).all()
    log_prob = law.log_prob(sizes)
    assert torch.isfinite(log_prob).all()
    assert (log_prob <= 0).all()
    assert (law.log_prob(law.mode) >= log_prob - accuracy * n).all()
    (grad,) = torch.autograd.grad(log_prob.sum(), weights)
    # exponential family: the score is the sizes minus their mean
    expected = (sizes - law.mean).sum(0).detach()
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-3 if dtype.itemsize < 8 else 1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0, 200.0])
def test_log_normalizer_and_mean_equal_high_precision(scale: float) -> None:
    """Weights that differ by hundreds of orders of magnitude, against big floats."""
    rng = np.random.default_rng(int(scale))
    groups, n = 8, 60
    capacities = rng.integers(0, 40, groups)
    capacities[0] = 40
    weights = scale * rng.standard_normal(groups)
    weights[1] = weights[0]
    log_p0, mean = oracles.fisher_high_precision(n, weights.tolist(), capacities.tolist())
    law = drpm.FisherHypergeometric(n, torch.tensor(weights), torch.tensor(capacities))
    assert abs(law.log_normalizer.item() - log_p0) <= 1e-12 * abs(log_p0) + 1e-9
    np.testing.assert_allclose(law.mean.numpy(), mean, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("total", "groups"), [(800, 2), (60, 3)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_entropy_and_kl_beyond_the_smallest_sizes(total: int, groups: int, scale: float) -> None:
    """Large enough for windows of sizes that carry mass, small enough to list everything."""
    weights, other = random_weights(groups, scale, 3), random_weights(groups, scale, 4)
    p, q = (drpm.FisherHypergeometric(total, w) for w in (weights, other))
    exact_p, exact_q = oracles.fisher(total, weights), oracles.fisher(total, other)
    torch.testing.assert_close(p.entropy(), exact_p.entropy(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(p.mean, exact_p.mean(), rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(p.variance, exact_p.variance(), rtol=1e-8, atol=1e-9)
    exact = exact_p.kl(exact_q)
    torch.testing.assert_close(kl_divergence(p, q), exact, rtol=1e-9, atol=1e-8)
    wide = drpm.FisherHypergeometric(total, other, torch.full((groups,), 2 * total))
    exact = exact_p.kl(oracles.fisher_on(exact_p.values, other, [2 * total] * groups))
    torch.testing.assert_close(kl_divergence(p, wide), exact, rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize(("n", "groups", "scale"), [(500, 20, 1.0), (300, 100, 5.0), (999, 7, 0.0)])
def test_mode_equals_greedy_placement(n: int, groups: int, scale: float) -> None:
    weights = random_weights(groups, scale, 9)
    for capacities in (
        torch.full((groups,), n),
        torch.arange(groups) * 3 * n // groups**2 + n // groups + 1,
    ):
        law = drpm.FisherHypergeometric(n, weights, capacities)
        best = oracles.fisher_mode(n, weights.tolist(), capacities.tolist())
        expected = law.log_prob(torch.tensor(best).double())
        assert law.support.check(law.mode)
        torch.testing.assert_close(law.log_prob(law.mode), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("scale", [0.3, 3.0, 10.0])
@pytest.mark.parametrize(("n", "groups"), [(10, 4), (50, 4), (59, 7), (1_000, 3)])
def test_mode_never_leaves_the_support(n: int, groups: int, scale: float) -> None:
    """Hundreds of laws: thresholds that coincide up to rounding must not add an element."""
    weights = scale * torch.randn(400, groups, dtype=torch.float64, generator=generator(n))
    law = drpm.FisherHypergeometric(n, weights)
    mode = law.mode
    assert law.support.check(mode).all()
    log_prob = law.log_prob(mode)
    for giver, taker in itertools.permutations(range(groups), 2):  # no exchange is better
        move = torch.zeros(groups, dtype=torch.float64)
        move[giver], move[taker] = -1, 1
        possible = law.support.check(mode + move)
        moved = torch.where(possible.unsqueeze(-1), mode + move, mode)
        assert (law.log_prob(moved) <= log_prob + 1e-9).all()


def test_tails_far_from_the_mean() -> None:
    """Sizes of mass below 1e-300 keep their log-probability."""
    n = 1_000
    weights = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64)
    law = drpm.FisherHypergeometric(n, weights)
    sizes = torch.tensor([[n, 0, 0], [0, n, 0], [0, 0, n], [1, n - 1, 0]], dtype=torch.float64)

    def log_choose(m: int, k: int) -> float:
        return math.log(math.comb(m, k))

    exact = [
        sum(log_choose(n, int(k)) for k in row) - log_choose(3 * n, n) for row in sizes.tolist()
    ]
    np.testing.assert_allclose(law.log_prob(sizes).numpy(), exact, rtol=1e-11)
    conditionals = law.conditional_log_probs(sizes)
    np.testing.assert_allclose(conditionals.sum(-1).numpy(), exact, rtol=1e-9)
    assert conditionals[0, 0] == pytest.approx(exact[0], rel=1e-9)
    np.testing.assert_allclose(conditionals[0, 1:].numpy(), 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("n", "spread"), [(1_000, 1e5), (1_000, 1e9), (10_000, 1e5), (100_000, 1_980.0), (10**6, 903.0)]
)
def test_a_negligible_group_changes_nothing(n: int, spread: float) -> None:
    """However far its weight lies below the others, and wherever among them it stands."""
    two = torch.tensor([0.0, 1.0], dtype=torch.float64)
    without = drpm.FisherHypergeometric(n, two)
    draws = 100
    # Two sides, two groups, three places; the variances of the two groups are equal.
    limit = scipy.stats.norm.isf(FALSE_ALARM / 12) * math.sqrt(float(without.variance[0]) / draws)
    for place in range(3):
        weights = torch.cat([two[:place], torch.tensor([-spread]).double(), two[place:]])
        weights.requires_grad_()
        kept = [k for k in range(3) if k != place]
        law = drpm.FisherHypergeometric(n, weights)
        torch.testing.assert_close(law.mean[kept], without.mean, rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(law.variance[kept], without.variance, rtol=1e-9, atol=1e-9)
        assert law.mean[place] < 1e-300
        sizes = without.mode + torch.tensor([[0.0, 0.0], [5.0, -5.0]]).double()
        padded = torch.zeros(2, 3, dtype=torch.float64)
        padded[:, kept] = sizes
        log_prob = law.log_prob(padded)
        expected = without.log_prob(sizes)
        torch.testing.assert_close(log_prob, expected, rtol=0, atol=1e-15 * n * n + 1e-9)
        (grad,) = torch.autograd.grad(log_prob.sum(), weights)
        assert torch.isfinite(grad).all()
        if n > 100_000:
            continue  # the tables of a million elements take seconds and gigabytes
        torch.testing.assert_close(law.entropy(), without.entropy(), rtol=0, atol=1e-8)
        samples = law.sample((draws,), generator=generator(place))
        assert law.support.check(samples).all()
        assert (samples[:, place] == 0).all()
        assert (samples[:, kept].mean(0) - without.mean).abs().max() < limit
        assert samples.unique(dim=0).shape[0] > 10


@pytest.mark.parametrize("capacity", [10**6, 10**9, 10**12, 10**15])
def test_capacities_far_beyond_the_total(capacity: int) -> None:
    """Binomial coefficients of huge numbers against big floats; the law nears a multinomial."""
    weights = random_weights(3, 1.0, 4)
    capacities = [capacity, 3 * capacity, 25]
    law = drpm.FisherHypergeometric(20, weights, torch.tensor(capacities))
    for sizes in ([7, 7, 6], [0, 20, 0], [20, 0, 0], [1, 0, 19], [0, 0, 20]):
        exact = oracles.fisher_log_prob_high_precision(sizes, weights.tolist(), capacities)
        found = law.log_prob(torch.tensor(sizes).double()).item()
        assert found == pytest.approx(exact, abs=1e-9)
    log_p0, mean = oracles.fisher_high_precision(20, weights.tolist(), capacities)
    assert law.log_normalizer.item() == pytest.approx(log_p0, abs=1e-9)
    np.testing.assert_allclose(law.mean.numpy(), mean, rtol=0, atol=1e-9)
    exact = oracles.fisher(20, weights, capacities)
    torch.testing.assert_close(law.entropy(), exact.entropy(), rtol=0, atol=1e-9)
    assert law.log_prob(law.mode).item() == pytest.approx(exact.log_mass.max().item(), abs=1e-9)
    other = drpm.FisherHypergeometric(20, -weights, torch.tensor([2 * capacity, capacity, 20]))
    listed = oracles.fisher_on(exact.values, -weights, [2 * capacity, capacity, 20])
    expected = exact.kl(listed)
    torch.testing.assert_close(kl_divergence(law, other), expected, rtol=0, atol=1e-9)
    samples = law.sample((DRAWS,), generator=generator())
    counts = oracles.count_values(samples, exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


# --- boundaries -----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_full_urn_has_one_outcome(scale: float) -> None:
    capacities = torch.tensor([2, 0, 3, 1])
    weights = random_weights(4, scale, 3).requires_grad_()
    law = drpm.FisherHypergeometric(6, weights, capacities)
    for value in (law.sample(), law.mode, law.mean):
        torch.testing.assert_close(value, capacities.double())
    log_prob = law.log_prob(capacities.double())
    assert abs(log_prob) < 1e-9
    assert law.variance.abs().max() < 1e-9
    assert abs(law.entropy()) < 1e-9
    (grad,) = torch.autograd.grad(log_prob, weights)
    assert grad.abs().max() < 1e-9


def test_one_group_takes_all() -> None:
    law = drpm.FisherHypergeometric(7, torch.tensor([-3.0]))
    assert law.sample().tolist() == law.mode.tolist() == law.mean.tolist() == [7.0]
    assert law.log_prob(torch.tensor([7.0])) == 0
    assert law.variance.abs() < 1e-30
    assert law.entropy() == 0


def test_one_element_is_categorical() -> None:
    weights = random_weights(4, 3.0, 0)
    law = drpm.FisherHypergeometric(1, weights)
    torch.testing.assert_close(law.mean, weights.softmax(0))
    torch.testing.assert_close(law.log_prob(torch.eye(4).double()), weights.log_softmax(0))


def test_group_without_capacity_stays_empty() -> None:
    weights = torch.tensor([0.0, 50.0, 0.5], dtype=torch.float64)  # and has the largest weight
    law = drpm.FisherHypergeometric(6, weights, torch.tensor([6, 0, 4]))
    without = drpm.FisherHypergeometric(6, weights[[0, 2]], torch.tensor([6, 4]))
    assert (law.sample((100,), generator=generator())[:, 1] == 0).all()
    assert law.mean[1] == 0
    assert law.mode[1] == 0
    torch.testing.assert_close(law.mean[[0, 2]], without.mean)
    torch.testing.assert_close(law.entropy(), without.entropy())
    torch.testing.assert_close(law.log_normalizer, without.log_normalizer)


def test_mode_with_ties_and_steps() -> None:
    """Modes at equal weights split as evenly as the total allows, within the capacities."""
    law = drpm.FisherHypergeometric(10, torch.zeros(4))
    assert sorted(law.mode.tolist()) == [2.0, 2.0, 3.0, 3.0]
    law = drpm.FisherHypergeometric(10, torch.zeros(3), torch.tensor([1, 20, 20]))
    assert law.log_prob(law.mode) == law.log_prob(law.enumerate_support()).max()


def test_total_and_capacities_are_exposed() -> None:
    law = drpm.FisherHypergeometric(4, torch.zeros(2, 3), torch.tensor([4, 0, 2]))
    assert law.total_count == 4
    assert law.method == "exact"
    assert law.capacities.shape == (2, 3)
    assert law.capacities.dtype.is_floating_point
    default = drpm.FisherHypergeometric(4, torch.zeros(3))
    assert default.capacities.tolist() == [4.0, 4.0, 4.0]
    floats = drpm.FisherHypergeometric(4, torch.zeros(3), torch.tensor([4.0, 0.0, 2.0]))
    assert torch.equal(
        floats.log_prob(floats.enumerate_support()),
        drpm.FisherHypergeometric(4, torch.zeros(3), torch.tensor([4, 0, 2])).log_prob(
            floats.enumerate_support()
        ),
    )


# --- samples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "capacities", "scale", "method"),
    [
        (6, None, 1.0, "exact"),
        (6, None, 5.0, "exact"),
        (5, [2, 5, 0, 3], 1.0, "exact"),
        (40, [30, 9, 20], 0.3, "exact"),
        (6, None, 1.0, "merged"),
        (6, [2, 5, 0, 3], 1.0, "merged"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_samples_follow_the_law(
    n: int, capacities: list[int] | None, scale: float, method: str, dtype: torch.dtype
) -> None:
    groups = 4 if capacities is None else len(capacities)
    weights = random_weights(groups, scale, n).to(dtype)
    tensor = None if capacities is None else torch.tensor(capacities)
    law = drpm.FisherHypergeometric(n, weights, tensor, method=method)
    oracle_of = oracles.fisher if method == "exact" else oracles.fisher_merged
    exact = oracle_of(n, weights.double(), capacities)
    samples = law.sample((DRAWS,), generator=generator(11))
    counts = oracles.count_values(samples, exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


def test_large_samples_have_the_right_moments() -> None:
    n, draws = 2_000, 4_000
    law = drpm.FisherHypergeometric(n, random_weights(5, 1.0, 0))
    samples = law.sample((draws,), generator=generator())
    error = (samples.mean(0) - law.mean) / (law.variance / draws).sqrt()
    limit = scipy.stats.norm.isf(FALSE_ALARM / 20)  # two sides of five means and five variances
    assert error.abs().max() < limit
    # Sums of this many draws are nearly normal; the excess kurtosis of a size is of order 1 / its
    # variance, so that 1.1 covers what it adds to the error of a variance.
    assert law.variance.min() > 40
    spread = samples.var(0) / law.variance - 1
    assert spread.abs().max() < limit * math.sqrt(2 / draws) * 1.1


# --- gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("capacities", [None, [3, 0, 4, 2], [2, 2, 1, 0]], ids=str)
def test_gradcheck(capacities: list[int] | None) -> None:
    n = 5
    tensor = None if capacities is None else torch.tensor(capacities)
    weights = random_weights(4, 1.0, 5).expand(2, 4).clone()
    weights[1] *= -2
    weights.requires_grad_()
    support = drpm.FisherHypergeometric(n, weights.detach(), tensor).enumerate_support()

    def law(w: Tensor) -> drpm.FisherHypergeometric:
        return drpm.FisherHypergeometric(n, w, tensor)

    assert gradcheck(lambda w: law(w).log_prob(support), (weights,))
    assert gradcheck(lambda w: law(w).conditional_log_probs(support), (weights,))
    assert gradcheck(lambda w: law(w).log_normalizer, (weights,))
    assert gradcheck(lambda w: law(w).mean, (weights,))
    assert gradcheck(lambda w: law(w).variance, (weights,))
    assert gradcheck(lambda w: law(w).entropy(), (weights,))
    other = random_weights(4, 1.0, 6).requires_grad_()
    assert gradcheck(lambda w, v: kl_divergence(law(w), law(v)), (weights, other))


def test_gradcheck_of_kl_between_different_capacities() -> None:
    weights = [random_weights(3, 1.0, seed).requires_grad_() for seed in (0, 1)]
    narrow, wide = torch.tensor([2, 4, 3]), torch.tensor([5, 5, 4])
    assert gradcheck(
        lambda w, v: kl_divergence(
            drpm.FisherHypergeometric(5, w, narrow), drpm.FisherHypergeometric(5, v, wide)
        ),
        tuple(weights),
    )


def test_gradcheck_of_the_merged_log_prob() -> None:
    weights = random_weights(4, 1.0, 5).requires_grad_()
    capacities = torch.tensor([3, 0, 4, 2])
    support = drpm.FisherHypergeometric(5, weights.detach(), capacities).enumerate_support()
    assert gradcheck(
        lambda w: drpm.FisherHypergeometric(5, w, capacities, method="merged").log_prob(support),
        (weights,),
    )


@pytest.mark.parametrize(("n", "groups"), [(50, 3), (300, 20)])
def test_gradient_of_the_log_normalizer_is_the_mean(n: int, groups: int) -> None:
    weights = random_weights(groups, 2.0, 2).requires_grad_()
    law = drpm.FisherHypergeometric(n, weights)
    (grad,) = torch.autograd.grad(law.log_normalizer, weights)
    torch.testing.assert_close(grad, law.mean.detach(), rtol=1e-9, atol=1e-9)
    jacobian = torch.autograd.functional.jacobian(
        lambda w: drpm.FisherHypergeometric(n, w).mean, weights.detach()
    )
    torch.testing.assert_close(jacobian.diagonal(), law.variance.detach(), rtol=1e-7, atol=1e-8)


def test_gradients_are_finite_where_weights_differ_by_hundreds() -> None:
    weights = torch.tensor([300.0, -250.0, 0.0, 299.0], dtype=torch.float64, requires_grad=True)
    law = drpm.FisherHypergeometric(6, weights)
    support = law.enumerate_support()
    exact = oracles.fisher(6, weights.detach())
    torch.testing.assert_close(law.log_prob(support), exact.log_mass, rtol=1e-11, atol=1e-8)
    for output in (law.log_prob(support).sum(), law.mean[0], law.variance[0], law.entropy()):
        (grad,) = torch.autograd.grad(output, weights, retain_graph=True)
        assert torch.isfinite(grad).all()


# --- the merged shortcut --------------------------------------------------------------------


@small
def test_merged_equals_its_own_conditionals(n: int, groups: int) -> None:
    for weights, capacities in cases(n, groups):
        law = drpm.FisherHypergeometric(n, weights, capacities, method="merged")
        exact = oracles.fisher_merged(
            n, weights, None if capacities is None else capacities.tolist()
        )
        log_prob = law.log_prob(law.enumerate_support())
        assert abs(log_prob.exp().sum() - 1) < 1e-10
        torch.testing.assert_close(log_prob, exact.log_mass, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("capacities", [[3, 3, 0], [6, 0, 0], [0, 6, 0], [4, 0, 3]], ids=str)
def test_merged_with_groups_without_room(capacities: list[int]) -> None:
    """In the last places too, where nothing is left to merge."""
    weights = random_weights(3, 1.0, 2).requires_grad_()
    law = drpm.FisherHypergeometric(6, weights, torch.tensor(capacities), method="merged")
    copy = weights.detach().clone().requires_grad_()
    exact = oracles.fisher_merged(6, copy, capacities)
    log_prob = law.log_prob(law.enumerate_support())
    torch.testing.assert_close(log_prob, exact.log_mass, rtol=0, atol=1e-10)
    cotangent = oracles.normal(len(log_prob))
    (found,) = torch.autograd.grad((log_prob * cotangent).sum(), weights)
    if exact.log_mass.requires_grad:
        (expected,) = torch.autograd.grad((exact.log_mass * cotangent).sum(), copy)
    else:
        expected = torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    samples = law.sample((50,), generator=generator())
    assert law.support.check(samples).all()


def test_merged_depends_on_the_order_of_the_groups_and_exact_does_not() -> None:
    weights = torch.tensor([1.5, 0.0, -1.0], dtype=torch.float64)
    sizes = torch.tensor([2.0, 1.0, 2.0], dtype=torch.float64)
    turned = [2, 0, 1]

    def difference(method: str) -> float:
        one = drpm.FisherHypergeometric(5, weights, method=method).log_prob(sizes)
        two = drpm.FisherHypergeometric(5, weights[turned], method=method).log_prob(sizes[turned])
        return abs(float(one - two))

    assert difference("exact") < 1e-12
    assert difference("merged") > 1e-2


@pytest.mark.parametrize("name", ["mean", "variance", "mode", "entropy", "log_normalizer"])
def test_merged_refuses_moments(name: str) -> None:
    law = drpm.FisherHypergeometric(5, torch.zeros(3), method="merged")
    with pytest.raises(NotImplementedError, match="merged"):
        law.entropy() if name == "entropy" else getattr(law, name)


def test_merged_refuses_the_closed_form_kl() -> None:
    exact = drpm.FisherHypergeometric(5, torch.zeros(3))
    merged = drpm.FisherHypergeometric(5, torch.zeros(3), method="merged")
    for pair in ((exact, merged), (merged, exact)):
        with pytest.raises(NotImplementedError, match="method='exact'"):
            kl_divergence(*pair)


def test_variance_is_never_negative() -> None:
    weights = 50 * oracles.normal(300, 4)
    law = drpm.FisherHypergeometric(6, weights)
    assert (law.variance >= 0).all()
    edge = drpm.FisherHypergeometric(8, torch.tensor([0.0, 400.0, -700.0]), torch.tensor([7, 3, 2]))
    assert torch.isfinite(edge.stddev).all()


def test_empty_groups_hold_a_positive_zero() -> None:
    law = drpm.FisherHypergeometric(4, torch.tensor([-50.0, 0.0, -60.0]))
    assert str(law.sample(generator=generator())) == "tensor([0., 4., 0.])"


# --- two groups -----------------------------------------------------------------------------


@pytest.mark.parametrize("capacities", [None, (7, 9), (40, 3)])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_two_groups_are_listed_as_their_tables_have_them(
    capacities: tuple[int, int] | None, scale: float
) -> None:
    """The same soft sizes, with noise and without, and the same gradients."""
    room = None if capacities is None else torch.tensor(capacities)
    weights = (scale * oracles.normal(5, 2, seed=1)).requires_grad_()
    law = drpm.FisherHypergeometric(8, weights, room)
    noise, slopes = oracles.normal(3, 5, 1, 9, seed=2), oracles.normal(3, 5, 1, 9, seed=3)
    temperature = torch.tensor(0.7).double()
    pair = law.soft_tables(maximise=False)
    assert isinstance(pair, urn_pair.Pair)
    modes = law.most_likely_sizes()

    def numbers(tables: urn_pair.Pair | urn_tables.SuffixTables) -> list[Tensor]:
        found: list[Tensor] = []
        for sizes, laws in (
            tables.draw_softly(noise, temperature),
            tables.follow_softly(modes.expand(3, 5, 2), temperature),
        ):
            (slope,) = torch.autograd.grad((laws * slopes).sum(), weights, retain_graph=True)
            found += [sizes, laws, slope]
        return found

    near = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(numbers(pair), numbers(law.suffix_tables()), **near)


def test_what_is_listed_softly() -> None:
    """Two groups, and no more elements than a window of the tables holds."""
    for n, groups, listed in ((8, 2, True), (170, 2, True), (300, 2, False), (8, 3, False)):
        law = drpm.FisherHypergeometric(n, torch.zeros(groups))
        assert isinstance(law.soft_tables(maximise=False), urn_pair.Pair) == listed


def test_between_two_groups_the_first_takes_what_is_tied() -> None:
    modes = drpm.FisherHypergeometric(7, torch.zeros(3, 2)).mode
    assert modes.tolist() == [[4.0, 3.0]] * 3
    assert drpm.FisherHypergeometric(1, torch.zeros(2), torch.tensor([0, 1])).mode.tolist() == [
        0,
        1,
    ]
