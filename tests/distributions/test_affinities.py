"""Partitions by affinities against the sum over all orders, and against closed forms."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import drpm
from tests import oracles
from tests.oracles import (
    FALSE_ALARM,
    GRADIENT_DRAWS,
    assert_expectation,
    assert_score_function_gradient,
    generator,
    normal,
    slopes,
)

DRAWS = 20_000
SMALL = list(itertools.product(range(1, 7), range(1, 5)))
small = pytest.mark.parametrize(("n", "groups"), SMALL)


def parameters(
    n: int, groups: int, scale: float = 1.0, seed: int = 0, weight_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    return scale * normal(groups, n, seed=seed), weight_scale * normal(groups, seed=seed + 1)


def cases(n: int, groups: int) -> list[tuple[Tensor, Tensor, list[int] | None]]:
    """Scales from equal scores to certainty, ties, a full urn, and a group without room."""
    seed = 100 * n + 10 * groups
    affinities, weights = parameters(n, groups, 2.0, seed)
    found: list[tuple[Tensor, Tensor, list[int] | None]] = [
        (scale * affinities, weights, None) for scale in (0.0, 1.0, 20.0)
    ]
    return [
        *found,
        (1e3 * affinities.sign(), weights, None),
        (affinities.round(), 5 * weights, None),
        (affinities, weights, oracles.full_urn(n, groups)),
        (5 * affinities, weights, oracles.closed_group(n, groups)),
    ]


def build(
    affinities: Tensor, weights: Tensor, capacities: list[int] | None = None, **options: bool
) -> drpm.AffinityPartition:
    room = None if capacities is None else torch.tensor(capacities)
    return drpm.AffinityPartition(affinities, weights, room, **options)


# --- brute force ----------------------------------------------------------------------------


@small
def test_masses_and_bounds_equal_enumeration(n: int, groups: int) -> None:
    for affinities, weights, capacities in cases(n, groups):
        law = build(affinities, weights, capacities)
        exact = oracles.affinity_partition(affinities, weights, capacities)
        possible = exact.log_mass > -math.inf
        values, log_mass = exact.values[possible], exact.log_mass[possible]
        log_prob = law.log_prob(values)
        torch.testing.assert_close(log_prob, log_mass, rtol=1e-12, atol=1e-9)
        assert abs(log_prob.exp().sum() - 1) < 1e-10
        lower, upper = law.log_prob_bounds(values)
        slack = 1e-9 + 1e-12 * log_mass.abs()
        assert (lower <= log_mass + slack).all()
        assert (upper >= log_mass - slack).all()
        counts = torch.lgamma(values.sum(-1) + 1).sum(-1)
        torch.testing.assert_close(upper - lower, counts, rtol=1e-9, atol=1e-9)
        if not possible.all():
            quiet = build(affinities, weights, capacities, validate_args=False)
            assert (quiet.log_prob(exact.values[~possible]) == -math.inf).all()
            assert not law.support.check(exact.values[~possible]).any()


def test_bounds_are_those_of_the_listed_orders() -> None:
    """Every compatible order is a lower bound, and the best of them the default."""
    affinities, weights = parameters(5, 3)
    law = build(affinities, weights)
    labels = torch.tensor([1, 0, 2, 1, 1])
    value = oracles.to_matrix(labels, 3)
    log_sizes = law.sizes.log_prob(value.sum(-1))
    orders = [
        torch.tensor([*zero, *one, *two])
        for zero in itertools.permutations([1])
        for one in itertools.permutations([0, 3, 4])
        for two in itertools.permutations([2])
    ]
    expected = torch.stack(
        [oracles.affinity_order_log_prob(affinities, labels, order) for order in orders]
    )
    found = law.log_prob_bounds(value, torch.stack(orders))
    torch.testing.assert_close(found.lower, log_sizes + expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.lower.logsumexp(0), law.log_prob(value), rtol=0, atol=1e-9)
    best = law.log_prob_bounds(value)
    torch.testing.assert_close(best.lower, log_sizes + expected.max(), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.upper, best.upper.expand(6), rtol=0, atol=1e-9)


def test_greedy_takes_the_largest_affinities_of_the_rest() -> None:
    for seed, (n, groups) in enumerate([(1, 1), (1, 4), (7, 1), (9, 3), (30, 6)]):
        affinities, weights = parameters(n, groups, 2.0, seed)
        law = build(affinities, weights)
        left, labels = list(range(n)), torch.empty(n, dtype=torch.int64)
        for k, size in enumerate(law.sizes.mode.long().tolist()):
            ranked = sorted(left, key=lambda i, k=k: -float(affinities[k, i]))
            labels[ranked[:size]] = k
            left = ranked[size:]
        assert torch.equal(law.greedy, oracles.to_matrix(labels, groups))


# --- larger ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "groups", "scale"), [(1, 3, 1.0), (6, 1, 1.0), (40, 5, 10.0)])
def test_equal_rows_are_a_random_partition(n: int, groups: int, scale: float) -> None:
    scores, weights = scale * normal(3, n), normal(3, groups, seed=1)
    law = drpm.RandomPartition(scores, weights)
    ours = drpm.AffinityPartition(scores[:, None].expand(3, groups, n), weights)
    values = law.sample((20,), generator=generator())
    torch.testing.assert_close(ours.log_prob(values), law.log_prob(values), rtol=0, atol=1e-12)
    found, expected = ours.log_prob_bounds(values), law.log_prob_bounds(values)
    torch.testing.assert_close(found.lower, expected.lower, rtol=1e-12, atol=1e-12)
    assert (found.upper <= expected.upper + 1e-9).all()


# --- samples --------------------------------------------------------------------------------


def test_orders_of_the_draws_follow_the_law() -> None:
    """Those within the subsets too, on which the bounds depend."""
    affinities, weights = parameters(4, 2)
    law = build(affinities, weights, [2, 2])
    orders = oracles.permutations(4)
    by_rank = torch.tensor([0, 0, 1, 1]).expand_as(orders)
    labels = torch.empty_like(orders).scatter(1, orders, by_rank)
    pairs = zip(labels, orders, strict=True)
    expected = torch.stack([oracles.affinity_order_log_prob(affinities, *pair) for pair in pairs])
    found = law.order_log_prob(oracles.to_matrix(labels, 2), orders)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    draws = law.draw_parts(torch.Size([DRAWS]), generator=generator())
    counts = oracles.count_values(draws.order, orders)
    assert oracles.chi_square_p_value(counts, expected.exp().numpy()) > FALSE_ALARM


def test_marginals_are_frequencies() -> None:
    affinities, weights = parameters(4, 3)
    exact = oracles.affinity_partition(affinities, weights).mean()
    found = build(affinities, weights).marginals(DRAWS, generator=generator())
    torch.testing.assert_close(found.sum(0), torch.ones(4).double())
    p_values = oracles.binomial_p_values((found * DRAWS).round().numpy(), exact.numpy(), DRAWS)
    assert (p_values > FALSE_ALARM / p_values.size).all()


# --- gradients ------------------------------------------------------------------------------


def free(gradients: Sequence[Tensor]) -> Tensor:
    """The slopes that are not determined by others.

    Those of the last row are zero, and in every other, as in the weights, they sum to zero.
    """
    affinities, weights = gradients
    return torch.cat([affinities[..., :-1, :-1].flatten(-2), weights[..., :-1]], -1)


def listed_slopes(affinities: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes of all log P(Y | sizes) in the affinities, and of all log-masses in both."""
    groups = len(weights)
    of_affinities = slopes(oracles.affinity_fills, affinities)

    def log_mass(w: Tensor) -> Tensor:
        return oracles.affinity_partition(affinities, w).log_mass

    zeros = torch.zeros(len(of_affinities), groups, dtype=torch.float64)
    return of_affinities, slopes(log_mass, weights), zeros


PROBLEMS = [(3, 3, 1.0), (4, 2, 3.0), (5, 2, 30.0), (1, 3, 1.0), (2, 1, 1.0)]


@pytest.mark.parametrize(("n", "groups", "scale"), PROBLEMS)
def test_entropy_and_its_gradient_within_five_standard_errors(
    n: int, groups: int, scale: float
) -> None:
    leaves = [t.requires_grad_() for t in parameters(n, groups, scale, 3)]
    law = build(*leaves)
    entropy = law.entropy(GRADIENT_DRAWS, generator=generator())
    sizes = oracles.fisher(n, leaves[1])
    found = torch.autograd.grad(entropy - sizes.entropy(), leaves)
    a, w = (leaf.detach() for leaf in leaves)
    exact, cost = oracles.affinity_partition(a, w), -oracles.affinity_fills(a)
    spread = (entropy - sizes.entropy()).detach()
    assert_expectation(spread, exact, cost, GRADIENT_DRAWS, rate=FALSE_ALARM)
    whole = sizes.entropy() + exact.expectation(cost)
    torch.testing.assert_close(whole, exact.entropy(), rtol=1e-9, atol=1e-9)
    of_affinities, of_weights, zeros = listed_slopes(a, w)
    drawn = torch.cat([draw.Y for draw in law.draws(GRADIENT_DRAWS, generator())])
    if groups > 1 and n > 1:
        assert_score_function_gradient(
            free(found),
            oracles.count_values(drawn, exact.values),
            exact,
            cost,
            free([-of_affinities, zeros]),
            free([of_affinities, of_weights]),
        )


@pytest.mark.parametrize(("n", "groups", "scale"), PROBLEMS[:3])
@pytest.mark.parametrize("prior", ["affinities", "scores"])
def test_gradient_of_the_divergence_within_five_standard_errors(
    n: int, groups: int, scale: float, prior: str
) -> None:
    """From another law of the kind, or from a random partition."""
    leaves = [t.requires_grad_() for s in (1, 2) for t in parameters(n, groups, scale, 10 * s)]
    if prior == "scores":
        leaves[2] = normal(n, seed=9).requires_grad_()
    p = build(*leaves[:2])
    q = build(*leaves[2:]) if prior == "affinities" else drpm.RandomPartition(*leaves[2:])
    estimate = drpm.partition_kl(p, q, num_samples=GRADIENT_DRAWS, generator=generator())
    sizes = oracles.fisher(n, leaves[1]).kl(oracles.fisher(n, leaves[3]))
    found = list(torch.autograd.grad(estimate - sizes, leaves))
    a, w, b, v = (leaf.detach() for leaf in leaves)
    assert (found[3].abs() < 1e-8).all()  # q's weights have a part in the sizes alone
    fills = functools.partial(oracles.fills, groups=groups)
    theirs = oracles.affinity_fills if prior == "affinities" else fills
    exact, cost = oracles.affinity_partition(a, w), oracles.affinity_fills(a) - theirs(b)
    other = oracles.affinity_partition(b, v) if prior == "affinities" else None
    if other is not None:
        whole = sizes.detach() + exact.expectation(cost)
        torch.testing.assert_close(whole, exact.kl(other), rtol=1e-9, atol=1e-9)
    spread = (estimate - sizes).detach()
    assert_expectation(spread, exact, cost, GRADIENT_DRAWS, rate=FALSE_ALARM)
    of_affinities, of_weights, zeros = listed_slopes(a, w)
    of_others = slopes(theirs, b)

    def side_by_side(first: Tensor, weights: Tensor, second: Tensor) -> Tensor:
        second = second[..., :-1, :] if prior == "affinities" else second
        return torch.cat([free([first, weights]), second[..., :-1].flatten(first.dim() - 2)], -1)

    drawn = torch.cat([draw.Y for draw in p.draws(GRADIENT_DRAWS, generator())])
    assert_score_function_gradient(
        side_by_side(*found[:3]),
        oracles.count_values(drawn, exact.values),
        exact,
        cost,
        side_by_side(of_affinities, zeros, -of_others),
        side_by_side(of_affinities, of_weights, torch.zeros_like(of_others)),
    )


def test_the_bound_of_the_divergence_lies_above_it() -> None:
    """E[log upper(p) - log lower(q)] over the drawn orders, on average over 60 estimates."""
    (a, w), (b, v) = parameters(4, 3, 1.0, 1), parameters(4, 3, 1.0, 5)
    exact = oracles.affinity_partition(a, w).kl(oracles.affinity_partition(b, v))
    p, q = build(a, w).expand((60,)), build(b, v)
    found = drpm.partition_kl(p, q, 100, generator(), estimate="bounds")
    values = oracles.to_matrix(oracles.assignments(4, 3), 3)
    law = oracles.affinity_partition(a, w)
    # Given Y, the drawn order is one of those that fill it, by its own probability.
    expected = torch.zeros((), dtype=torch.float64)
    for value, mass in zip(values, law.mass, strict=True):
        labels = value.argmax(0)
        members = [torch.nonzero(row).flatten().tolist() for row in value]
        orders = [
            torch.tensor(list(itertools.chain(*parts)))
            for parts in itertools.product(*map(itertools.permutations, members))
        ]
        ours, theirs = (
            torch.stack([oracles.affinity_order_log_prob(x, labels, order) for order in orders])
            for x in (a, b)
        )
        upper = ours.max() + math.log(len(orders))
        expected += mass * (upper - (ours.softmax(0) * theirs).sum())
    expected += oracles.fisher(4, w).kl(oracles.fisher(4, v))
    error = oracles.assert_mean(found, expected)
    assert expected > exact
    assert found.mean() + oracles.ERRORS * error > exact
