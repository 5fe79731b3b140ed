"""Fisher's multivariate noncentral hypergeometric law against enumeration and scipy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import kl_divergence

import drpm
from drpm.distributions import size_statistics, size_tables
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
        conditionals = oracles.fisher_conditionals(exact)
        likely = conditionals > -600  # those of a vanishing history are ratios of nothings
        found = law.conditional_log_probs(support)
        torch.testing.assert_close(found[likely], conditionals[likely], rtol=0, atol=1e-8)
        torch.testing.assert_close(found.sum(-1), log_prob, rtol=1e-9, atol=1e-8)


@small
def test_kl_equals_enumeration(n: int, groups: int) -> None:
    """Values over the wider support; infinite where q cannot produce what p can."""
    for seed, scale in enumerate([2.0, 2.0, *SCALES]):
        first = random_capacities(n, groups, seed)
        second = random_capacities(n, groups, seed + 50)
        wp, wq = (random_weights(groups, scale, seed + other) for other in (0, 1))
        p = drpm.FisherHypergeometric(n, wp, first)
        q = drpm.FisherHypergeometric(n, wq, second)
        listed = oracle(n, wp, first)
        exact = listed.kl(oracles.fisher_on(listed.values, wq, second.tolist()))
        torch.testing.assert_close(kl_divergence(p, q), exact, rtol=1e-9, atol=1e-9)
        assert abs(kl_divergence(p, p)) < 1e-9
        for room in (None, first):
            pair = [drpm.FisherHypergeometric(n, w, room) for w in (wp, wq)]
            exact = oracle(n, wp, room).kl(oracle(n, wq, room))
            torch.testing.assert_close(kl_divergence(*pair), exact, rtol=1e-11, atol=1e-9)
        wide = drpm.FisherHypergeometric(n, wq, first + second)
        assert kl_divergence(p, wide) < math.inf


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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"capacities": torch.tensor([3, 0, 4, 2])},
        {"capacities": torch.tensor([2, 2, 1, 0])},
        {"minimum": torch.tensor([1, 0, 2, 0]), "maximum": torch.tensor([5, 2, 3, 3])},
        {"minimum": torch.tensor([2, 1]), "maximum": torch.tensor([4, 3])},
    ],
)
def test_gradcheck(options: dict[str, Any]) -> None:
    n, groups = 5, len(next(iter(options.values()), range(4)))
    weights = random_weights(groups, 1.0, 5).expand(2, groups).clone()
    weights[1] *= -2
    weights.requires_grad_()
    other = random_weights(groups, 1.0, 6).requires_grad_()

    def law(w: Tensor) -> drpm.FisherHypergeometric:
        return drpm.FisherHypergeometric(n, w, **options)

    def soft(w: Tensor) -> drpm.RelaxedFisherHypergeometric:
        return drpm.RelaxedFisherHypergeometric(0.7, n, w, hard=False, **options)

    support = law(weights.detach()).enumerate_support()
    for function in (
        lambda w: law(w).log_prob(support),
        lambda w: law(w).conditional_log_probs(support),
        lambda w: law(w).variance,
        lambda w: law(w).entropy(),
        lambda w: soft(w).rsample((2,), generator=generator(3)),
        lambda w: soft(w).mode,
    ):
        assert gradcheck(function, (weights,))
    assert gradcheck(lambda w, v: kl_divergence(law(w), law(v)), (weights, other))
    for function in (lambda w: law(w).log_normalizer, lambda w: law(w).mean):
        assert gradcheck(function, (weights,))
        assert gradgradcheck(function, (weights,))


def test_gradcheck_of_the_merged_log_prob() -> None:
    weights = random_weights(4, 1.0, 5).requires_grad_()
    capacities = torch.tensor([3, 0, 4, 2])
    support = drpm.FisherHypergeometric(5, weights.detach(), capacities).enumerate_support()
    assert gradcheck(
        lambda w: drpm.FisherHypergeometric(5, w, capacities, method="merged").log_prob(support),
        (weights,),
    )


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


@pytest.mark.parametrize("name", ["mean", "variance", "mode", "entropy", "log_normalizer"])
def test_merged_refuses_moments(name: str) -> None:
    law = drpm.FisherHypergeometric(5, torch.zeros(3), method="merged")
    with pytest.raises(NotImplementedError, match="merged"):
        law.entropy() if name == "entropy" else getattr(law, name)


# --- two groups -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"capacities": torch.tensor([7, 9])},
        {"capacities": torch.tensor([40, 3])},
        {"minimum": 1, "maximum": torch.tensor([6, 5])},
    ],
)
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_two_groups_are_listed_as_their_tables_have_them(
    options: dict[str, Any], scale: float
) -> None:
    """The same soft sizes, with noise and without, and the same gradients."""
    weights = (scale * oracles.normal(5, 2, seed=1)).requires_grad_()
    law = drpm.FisherHypergeometric(8, weights, **options)
    noise, slopes = oracles.normal(3, 5, 1, 9, seed=2), oracles.normal(5, 1, 9, seed=3)
    temperature = torch.tensor(0.7).double()
    general = size_tables.suffix_tables(law._urn).relax(noise, temperature)
    mode = size_statistics.soft_mode(law._urn, temperature)
    for found, expected in (
        (law.relax(noise, temperature), general),
        (law.relax_mode(temperature), mode),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        grads = [
            torch.autograd.grad((soft.probs * slopes).sum(), weights, retain_graph=True)[0]
            for soft in (found, expected)
        ]
        torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


def test_between_two_groups_the_first_takes_what_is_tied() -> None:
    modes = drpm.FisherHypergeometric(7, torch.zeros(3, 2)).mode
    assert modes.tolist() == [[4.0, 3.0]] * 3
    assert drpm.FisherHypergeometric(1, torch.zeros(2), torch.tensor([0, 1])).mode.tolist() == [
        0,
        1,
    ]
