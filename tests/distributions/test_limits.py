"""Sizes and partitions within a minimum and a maximum, against enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributions import kl_divergence

import drpm
from tests import oracles
from tests.conformance import Multinomial
from tests.distributions.test_sizes import law_of
from tests.oracles import FALSE_ALARM, generator, random_urns

CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-9}


# --- arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["minimum", "capacities"])
def test_kl_to_limits_that_were_changed_in_place(name: str) -> None:
    """Laws keep their own limits, so the second one excludes what the first one allows."""
    limits, change = (
        (torch.full((3,), 3), -1) if name == "capacities" else (torch.zeros(3).int(), 1)
    )
    first = drpm.FisherHypergeometric(5, torch.zeros(3), **{name: limits})
    limits += change
    second = drpm.FisherHypergeometric(5, torch.zeros(3), **{name: limits})
    assert kl_divergence(first, second) == torch.inf


def test_kl_from_forced_sizes_to_limits_that_allow_them() -> None:
    """Capacities alone leave p one outcome, which q allows."""
    p = drpm.FisherHypergeometric(5, torch.zeros(3), torch.tensor([2, 2, 1]))
    q = drpm.FisherHypergeometric(5, torch.zeros(3), minimum=1)
    torch.testing.assert_close(kl_divergence(p, q), -q.log_prob(torch.tensor([2.0, 2, 1])))
    assert kl_divergence(q, p) == torch.inf


def test_limits_may_be_numbers_or_tensors() -> None:
    weights = oracles.normal(4, 3)
    whole = torch.tensor([1, 1, 1])
    means = [
        drpm.FisherHypergeometric(7, weights, minimum=least, maximum=most).mean
        for least, most in ((1, 4), (whole, 4.0), (whole.float(), torch.tensor(4)))
    ]
    assert torch.equal(means[0], means[1])
    assert torch.equal(means[0], means[2])
    batched = drpm.FisherHypergeometric(7, weights[0], minimum=torch.stack([whole * 0, whole]))
    assert batched.batch_shape == (2,)
    torch.testing.assert_close(
        batched.mean[1], drpm.FisherHypergeometric(7, weights[0], minimum=1).mean
    )
    with pytest.raises(NotImplementedError, match="same capacities and limits"):
        batched.enumerate_support()


# --- samples --------------------------------------------------------------------------------


# 10,000 laws: eight shapes with 625 each, with capacities and without.
@pytest.mark.parametrize("room", ["capacities", "any"])
@pytest.mark.parametrize(
    ("n", "groups"), [(1, 2), (5, 2), (6, 5), (12, 3), (20, 10), (50, 4), (150, 2), (300, 3)]
)
def test_hard_sizes_meet_the_limits(n: int, groups: int, room: str) -> None:
    urns = random_urns(n, groups, 625, seed=n)
    if room == "any":
        urns = urns._replace(capacities=None)
    law = law_of(urns, n)
    weights = urns.weights.requires_grad_()
    relaxed = drpm.RelaxedFisherHypergeometric(0.3, n, weights, **urns.options)
    high = torch.minimum(urns.maximum, law.capacities)
    soft_law = relaxed.draw(torch.Size(), noise=False)
    for sizes in (law.sample((2,)), law.mode, relaxed.rsample((2,)), soft_law.hard):
        assert (sizes.detach().round() >= urns.minimum).all()
        assert (sizes.detach().round() <= high).all()
        assert (sizes.detach().double().round().sum(-1) == n).all()
    torch.testing.assert_close(soft_law.hard, law.mode)
    (grad,) = torch.autograd.grad(soft_law.soft.square().sum(), urns.weights)
    assert torch.isfinite(grad).all()
    log_probs = law.log_prob(law.mode)
    assert torch.isfinite(log_probs).all()
    torch.testing.assert_close(law.mean.sum(-1), torch.full((625,), float(n)).double())


@pytest.mark.parametrize("scale", [1.0, 20.0, 200.0])
@pytest.mark.parametrize(("n", "groups", "maximum"), [(9, 4, 3), (200, 4, 60), (1000, 10, 110)])
def test_without_capacities_as_with_as_many_as_elements(
    n: int, groups: int, maximum: int, scale: float
) -> None:
    weights = scale * oracles.normal(50, groups, seed=n)
    open_law = drpm.FisherHypergeometric(n, weights, maximum=maximum)
    law = drpm.FisherHypergeometric(n, weights, torch.full((groups,), n), maximum=maximum)
    assert open_law.support.check(open_law.mode).all()
    sizes = law.sample((3,), generator=generator())
    for name in ("mode", "mean", "log_normalizer"):
        torch.testing.assert_close(getattr(open_law, name), getattr(law, name))
    torch.testing.assert_close(open_law.log_prob(sizes), law.log_prob(sizes))
    torch.testing.assert_close(open_law.entropy(), law.entropy())


def test_all_sizes_forced() -> None:
    """By capacities, a minimum, a maximum or both limits, whatever the weights."""
    sizes = torch.tensor([[3, 0, 9], [0, 12, 0], [4, 4, 4]])
    weights = 200 * oracles.normal(3, 3)
    for limits in (
        {"capacities": sizes},
        {"minimum": sizes},
        {"maximum": sizes},
        {"minimum": sizes, "maximum": sizes},
    ):
        law = drpm.FisherHypergeometric(12, weights, **limits)
        for found in (law.mean, law.mode, law.sample()):
            torch.testing.assert_close(found, sizes.double())
        close: dict[str, Any] = {"rtol": 0, "atol": 1e-9}
        torch.testing.assert_close(law.log_prob(sizes), torch.zeros(3).double(), **close)
        torch.testing.assert_close(law.entropy(), torch.zeros(3).double(), **close)
        torch.testing.assert_close(law.variance, torch.zeros(3, 3).double(), **close)
        relaxed = drpm.RelaxedFisherHypergeometric(5.0, 12, weights, hard=False, **limits)
        torch.testing.assert_close(relaxed.rsample(), sizes.double())
        torch.testing.assert_close(relaxed.mode, sizes.double())


# --- many elements --------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 200.0])
@pytest.mark.parametrize(("n", "groups"), [(5_000, 10), (5_000, 100)])
def test_the_normalizer_of_many_elements(n: int, groups: int, scale: float) -> None:
    share = n // groups
    weights = scale * oracles.normal(groups, seed=groups).clamp(-1, 1)
    for minimum, maximum, room in (
        ([share - 5] * groups, [share + 9] * groups, n),
        ([share // 2] * groups, [share + share // 10] * groups, 3 * share),
        ([share] * groups, [2 * share] * groups, n),
        ([0] * groups, [share + 1] * groups, n),
    ):
        law = drpm.FisherHypergeometric(
            n,
            weights,
            torch.full((groups,), room),
            minimum=torch.tensor(minimum),
            maximum=torch.tensor(maximum),
        )
        exact = oracles.truncated_log_normalizer(
            n, weights.tolist(), [room] * groups, minimum, maximum
        )
        # 1e-15 of up to a million is rounding
        assert abs(law.log_normalizer.item() - exact) < 1e-9 + 1e-15 * abs(exact)
        # Inversion and tables agree.
        averages = [(probs * sizes).sum(-1) for sizes, probs in law._marginals()]
        torch.testing.assert_close(law.mean, torch.stack(averages), rtol=0, atol=1e-8)
        for sizes in (law.mode, law.sample((20,), generator=generator())):
            assert law.support.check(sizes).all()


def test_one_sided_limits_with_slowly_falling_masses() -> None:
    """A minimum far above the mean leaves nearly geometric masses, whose tails are heaviest."""
    n, groups = 2_000, 4
    for minimum, maximum in (([550, 0, 0, 0], [n] * 4), ([0] * 4, [n, 480, 480, 480])):
        for weights in (torch.zeros(groups), torch.tensor([-0.3, 0.1, 0.2, 0.0])):
            law = drpm.FisherHypergeometric(
                n, weights.double(), minimum=torch.tensor(minimum), maximum=torch.tensor(maximum)
            )
            exact = oracles.truncated_log_normalizer(
                n, weights.double().tolist(), [n] * groups, minimum, maximum
            )
            assert abs(law.log_normalizer.item() - exact) < 1e-9


# --- soft sizes -----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "groups"), [(6, 2), (7, 3), (8, 4)])
def test_soft_mode_equals_enumeration(n: int, groups: int) -> None:
    """The logits of a size are the log-mass of the best sizes that continue the mode with it."""
    urns = random_urns(n, groups, 32, seed=groups)
    for index in range(32):
        urn = urns[index]
        exact, temperature = urn.listed(n), torch.tensor(0.7).double()
        found = law_of(urn, n).relax(None, temperature)
        assert torch.equal(found.hard.long(), exact.values[exact.log_mass.argmax()])
        for k in range(groups - 1):
            same = (exact.values[:, :k] == found.hard[:k]).all(-1)
            best = torch.full((n + 1,), -torch.inf, dtype=torch.float64)
            best.scatter_reduce_(0, exact.values[same, k], exact.log_mass[same], "amax")
            expected = torch.softmax(best / temperature, -1)
            torch.testing.assert_close(found.probs[k], expected, rtol=1e-9, atol=1e-9)


# --- partitions -----------------------------------------------------------------------------


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize(("n", "groups"), [(4, 2), (5, 3), (5, 4)])
def test_partitions_equal_enumeration(n: int, groups: int, by_rows: bool) -> None:
    scores = oracles.normal(groups, n, seed=n) if by_rows else oracles.normal(n, seed=n)
    make = drpm.AffinityPartition if by_rows else drpm.RandomPartition
    urns = random_urns(n, groups, 16, seed=groups)
    for index in range(0, 16, 3):
        urn = urns[index]._replace(weights=oracles.normal(groups, seed=index))
        law = make(scores, urn.weights, **urn.options)
        oracle = oracles.partition_by_rows if by_rows else oracles.partition
        exact = oracle(scores, urn.listed(n))
        possible = exact.log_mass > -torch.inf
        assert torch.equal(law.support.check(exact.values), possible)
        found = law.log_prob(exact.values[possible])
        torch.testing.assert_close(found, exact.log_mass[possible], rtol=1e-9, atol=1e-9)
        if not by_rows:
            torch.testing.assert_close(law.marginals(), exact.mean(), rtol=0, atol=1e-9)
            best = law.log_prob(law.mode)
            torch.testing.assert_close(best, exact.log_mass.max(), rtol=1e-9, atol=1e-9)
        samples = law.sample((2_000,), generator=generator(index))
        counts = oracles.count_values(samples, exact.values)
        assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM / 6


def test_divergence_of_partitions() -> None:
    scores, weights = oracles.normal(5), oracles.normal(3, seed=1)
    p = drpm.RandomPartition(scores, weights, minimum=1)
    q = drpm.RandomPartition(scores, -weights, minimum=1)
    torch.testing.assert_close(drpm.partition_kl(p, q), kl_divergence(p.sizes, q.sizes))
    assert drpm.partition_kl(drpm.RandomPartition(scores, weights), p) == torch.inf


def test_an_enumerated_law_has_a_minimum() -> None:
    law = Multinomial(6, oracles.normal(3))
    law.minimum = 1
    exact = oracles.truncated(oracles.multinomial(6, law.log_weights), [1] * 3, [6] * 3)
    assert torch.equal(law.enumerate_support(), exact.values.double())
    torch.testing.assert_close(law.mean, exact.mean(), **CLOSE)
    with pytest.raises(ValueError, match=r"value must.*the minimum"):
        law.log_prob(torch.tensor([0.0, 3.0, 3.0]).double())


def test_second_derivatives_inside_torch_func_are_refused() -> None:
    """Those of plain autograd are right: they equal the covariance."""
    log_weights = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)

    def log_normalizer(log_weights: torch.Tensor) -> torch.Tensor:
        return drpm.FisherHypergeometric(7, log_weights, minimum=1).log_normalizer

    with pytest.raises(NotImplementedError, match="Sizes have no second derivatives inside"):
        torch.func.jacrev(torch.func.grad(log_normalizer))(log_weights)
    law = drpm.FisherHypergeometric(7, log_weights, minimum=1)
    sizes = law.enumerate_support()
    probs = law.log_prob(sizes).exp()[:, None]
    centered = sizes - law.mean
    covariance = (probs * centered).mT @ centered
    hessian = torch.autograd.functional.hessian(log_normalizer, log_weights)
    torch.testing.assert_close(hessian, covariance)
