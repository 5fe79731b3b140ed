"""Fisher's multivariate noncentral hypergeometric law against enumeration and scipy."""

from __future__ import annotations

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
from drpm.distributions import size_tables
from tests import oracles
from tests.oracles import FALSE_ALARM, SMALL, Urn, generator, normal, random_urns

DRAWS = 20_000
small = pytest.mark.parametrize(("n", "groups"), SMALL)


def random_capacities(n: int, groups: int, seed: int) -> Tensor:
    """Whole numbers, zeros among them, that can hold n."""
    rng = np.random.default_rng(seed)
    while True:
        capacities = rng.integers(0, n + 2, groups)
        if capacities.sum() >= n:
            return torch.tensor(capacities)


def cases(n: int, groups: int) -> list[Urn]:
    """Random weights at every scale; default capacities, random ones and exactly full ones."""
    found = []
    for seed, scale in enumerate((0.1, 1.0, 10.0, 50.0)):
        weights = scale * normal(groups, seed=100 * n + 10 * groups + seed)
        found += [Urn(weights), Urn(weights, random_capacities(n, groups, seed))]
    return [*found, Urn(weights, torch.tensor(oracles.full_urn(n, groups)))]


def law_of(urn: Urn, n: int, **options: Any) -> drpm.FisherHypergeometric:
    return drpm.FisherHypergeometric(n, urn.weights, **urn.options, **options)


# --- brute force ----------------------------------------------------------------------------


@small
def test_masses_moments_and_mode_equal_enumeration(n: int, groups: int) -> None:
    limited = random_urns(n, groups, 32, seed=10 * n + groups)
    close = {"rtol": 1e-11, "atol": 1e-9}
    for urn in [*cases(n, groups), *(limited[index] for index in range(0, 32, 3))]:
        law, exact = law_of(urn, n), urn.listed(n)
        support = law.enumerate_support()
        assert torch.equal(support, exact.values.double())
        assert law.support.check(support).all()
        log_prob = law.log_prob(support)
        assert abs(log_prob.exp().sum() - 1) < 1e-10
        torch.testing.assert_close(log_prob, exact.log_mass, **close)
        torch.testing.assert_close(law.mean, exact.mean(), **close)
        torch.testing.assert_close(law.variance, exact.variance(), **close)
        torch.testing.assert_close(law.entropy(), exact.entropy(), **close)
        assert law.support.check(law.mode)
        torch.testing.assert_close(law.log_prob(law.mode), exact.log_mass.max(), **close)
        conditionals = oracles.fisher_conditionals(exact)
        likely = conditionals > -600  # those of a vanishing history are ratios of nothings
        found = law.conditional_log_probs(support)
        torch.testing.assert_close(found[likely], conditionals[likely], rtol=0, atol=1e-8)
        torch.testing.assert_close(found.sum(-1), log_prob, rtol=1e-9, atol=1e-8)
        survival = torch.from_numpy(oracles.subset_at_rank(exact)).cumsum(0)[:-1]
        torch.testing.assert_close(law.boundary_survival(), survival, **close)
        if urn.minimum is None:
            room = None if urn.capacities is None else urn.capacities.tolist()
            log_p0 = oracles.fisher_log_normalizer(n, urn.weights, room)
            torch.testing.assert_close(law.log_normalizer, log_p0, rtol=1e-12, atol=1e-9)


@small
def test_kl_equals_enumeration(n: int, groups: int) -> None:
    """With the same capacities and limits, with others, and without; infinite where q cannot
    produce what p can."""
    first, second = (random_urns(n, groups, 32, seed=seed) for seed in (1, 2))
    for index in range(0, 32, 3):
        p, q = first[index], second[index]
        for ours, theirs in (
            (p, p._replace(weights=q.weights)),
            (p, p._replace(minimum=0 * p.minimum)),
            (p, p._replace(maximum=q.maximum + p.maximum, weights=q.weights)),
            (p, q),
            (Urn(p.weights, p.capacities), Urn(q.weights, p.capacities)),
            (Urn(p.weights, p.capacities), Urn(q.weights, q.capacities)),
            (Urn(p.weights), Urn(q.weights)),
        ):
            exact = ours.listed(n)
            masses = oracles.look_up(exact.values, theirs.listed(n))
            expected = exact.kl(oracles.Enumeration(exact.values, masses))
            found = kl_divergence(law_of(ours, n), law_of(theirs, n))
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-8)
            assert abs(kl_divergence(law_of(ours, n), law_of(ours, n))) < 1e-9


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
    weights, wide = scale * normal(groups, seed=9), torch.full((groups,), n)
    narrow = torch.arange(groups) * 3 * n // groups**2 + n // groups + 1
    limited = random_urns(n, groups, 32, seed=n)
    for urn in (
        Urn(weights, wide, 0 * wide, wide),
        Urn(weights, narrow, 0 * wide, wide),
        *(limited[index] for index in range(0, 32, 3)),
    ):
        law, high = law_of(urn, n), torch.minimum(urn.maximum, urn.capacities).tolist()
        room = (urn.capacities.tolist(), urn.minimum.tolist(), high)
        best = torch.tensor(oracles.fisher_mode(n, urn.weights.tolist(), *room)).double()
        assert law.support.check(law.mode)
        if urn.weights is weights:  # which needs no limits
            law = drpm.FisherHypergeometric(n, weights, urn.capacities)
            assert law.support.check(law.mode)
        found = law.log_prob(law.mode)
        torch.testing.assert_close(found, law.log_prob(best), rtol=1e-9, atol=1e-8)


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
    weights = normal(3, seed=4)
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


# --- samples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "options", "scale"),
    [
        (6, {}, 1.0),
        (6, {}, 5.0),
        (5, {"capacities": [2, 5, 0, 3]}, 1.0),
        (40, {"capacities": [30, 9, 20]}, 0.3),
        (90, {"capacities": [90, 90]}, 1.0),
        (6, {"minimum": [1, 0, 2, 0], "maximum": [6, 2, 3, 6]}, 0.5),
        (8, {"minimum": [4, 1], "maximum": [6, 8]}, 0.5),
        (150, {"minimum": [40, 50, 40], "maximum": [60, 150, 55]}, 0.5),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_samples_follow_the_law(
    n: int, options: dict[str, list[int]], scale: float, dtype: torch.dtype
) -> None:
    """Those of the relaxed law too."""
    groups = len(next(iter(options.values()), range(4)))
    weights = (scale * normal(groups, seed=n)).to(dtype)
    given = {name: torch.tensor(value) for name, value in options.items()}
    exact = Urn(weights.double(), **given).listed(n)
    law = drpm.FisherHypergeometric(n, weights, **given)
    relaxed = drpm.RelaxedFisherHypergeometric(0.7, n, weights, **given)
    for samples in (
        law.sample((DRAWS,), generator=generator(11)),
        relaxed.rsample((DRAWS,), generator=generator(2)),
    ):
        counts = oracles.count_values(samples.round(), exact.values)
        assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM / 2


@pytest.mark.parametrize("capacities", [None, [2, 5, 0, 3]])
def test_samples_of_the_shortcut_follow_its_law(capacities: list[int] | None) -> None:
    weights = normal(4, seed=6)
    room = None if capacities is None else torch.tensor(capacities)
    law = drpm.FisherHypergeometric(6, weights, room, method="merged")
    exact = oracles.fisher_merged(6, weights, capacities)
    counts = oracles.count_values(law.sample((DRAWS,), generator=generator(11)), exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


def test_large_samples_have_the_right_moments() -> None:
    n, draws = 2_000, 4_000
    law = drpm.FisherHypergeometric(n, normal(5, seed=0))
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
    weights = normal(groups, seed=5).expand(2, groups).clone()
    weights[1] *= -2
    weights.requires_grad_()
    other = normal(groups, seed=6).requires_grad_()

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
    weights = normal(4, seed=5).requires_grad_()
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
    for output in (law.log_prob(support).sum(), law.mean[0], law.variance[0], law.entropy()):
        (grad,) = torch.autograd.grad(output, weights, retain_graph=True)
        assert torch.isfinite(grad).all()


# --- the merged shortcut --------------------------------------------------------------------


@small
def test_merged_equals_its_own_conditionals(n: int, groups: int) -> None:
    for urn in cases(n, groups):
        law = law_of(urn, n, method="merged")
        room = None if urn.capacities is None else urn.capacities.tolist()
        exact = oracles.fisher_merged(n, urn.weights, room)
        log_prob = law.log_prob(law.enumerate_support())
        assert abs(log_prob.exp().sum() - 1) < 1e-10
        torch.testing.assert_close(log_prob, exact.log_mass, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("name", ["mean", "variance", "mode", "entropy", "log_normalizer"])
def test_merged_refuses_moments(name: str) -> None:
    law = drpm.FisherHypergeometric(5, torch.zeros(3), method="merged")
    with pytest.raises(NotImplementedError, match="merged"):
        law.entropy() if name == "entropy" else getattr(law, name)


def test_between_two_groups_the_first_takes_what_is_tied() -> None:
    modes = drpm.FisherHypergeometric(7, torch.zeros(3, 2)).mode
    assert modes.tolist() == [[4.0, 3.0]] * 3
    assert drpm.FisherHypergeometric(1, torch.zeros(2), torch.tensor([0, 1])).mode.tolist() == [
        0,
        1,
    ]


# --- from soft sizes to boundaries, against direct convolution ------------------------------


def size_laws(count: int, n: int, *batch: int) -> Tensor:
    scores = normal(*batch, count, n + 1, seed=count)
    # Sizes so small that their sums mostly stay below n, where mass is cut off.
    return (scores - torch.arange(n + 1)).softmax(-1)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 35])
def test_survival_is_the_upper_tail_of_the_sums(count: int) -> None:
    n = 40
    given = size_laws(count, n, 2)
    found = size_tables.boundary_survival(given)
    for run in range(2):
        total = np.array([1.0])
        for k in range(count):
            total = np.convolve(total, given[run, k].numpy())[: n + 1]
            expected = 1 - total.cumsum()[:n]
            np.testing.assert_allclose(found[run, k].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3, 18])
def test_gradients_of_boundaries(count: int) -> None:
    given = size_laws(count, 4).requires_grad_()
    assert gradcheck(size_tables.boundary_survival, given)
    assert count > 3 or gradgradcheck(size_tables.boundary_survival, given)


def test_gradients_where_some_sizes_are_certain_and_others_are_not() -> None:
    """Values of generating functions then differ by many orders of magnitude."""
    smooth = (-0.5 * ((torch.arange(65) - 30) / 2.5).double().square()).softmax(-1)
    certain = torch.eye(65, dtype=torch.float64)[[3, 7]]
    given = torch.stack([certain[0], smooth, certain[1]]).requires_grad_()
    slopes = normal(3, 64)
    (found,) = torch.autograd.grad((size_tables.boundary_survival(given) * slopes).sum(), given)
    total, loss = torch.eye(65, dtype=torch.float64)[0], torch.zeros((), dtype=torch.float64)
    for k in range(3):
        shifts = torch.stack([torch.nn.functional.pad(total, (i, 0))[:65] for i in range(65)])
        total = given[k] @ shifts
        loss = loss + ((1 - total.cumsum(0)[:64]) * slopes[k]).sum()
    (expected,) = torch.autograd.grad(loss, given)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
