"""Partitions by affinities against the sum over all orders, and against closed forms."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from torch import Tensor

import drpm
from tests import oracles
from tests.oracles import (
    FALSE_ALARM,
    GRADIENT_DRAWS,
    affinity_parameters,
    assert_expectation,
    assert_score_function_gradient,
    generator,
    normal,
    slopes,
    without_last,
)

DRAWS = 20_000


# --- brute force ----------------------------------------------------------------------------


def test_bounds_are_those_of_the_listed_orders() -> None:
    """Every compatible order is a lower bound, and the best of them the default."""
    affinities, weights = affinity_parameters(5, 3)
    law = drpm.AffinityPartition(affinities, weights)
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
        affinities, weights = affinity_parameters(n, groups, 2.0, seed)
        law = drpm.AffinityPartition(affinities, weights)
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
    affinities, weights = affinity_parameters(4, 2)
    law = drpm.AffinityPartition(affinities, weights, torch.tensor([2, 2]))
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
    affinities, weights = affinity_parameters(4, 3)
    exact = oracles.affinity_partition(affinities, weights).mean()
    found = drpm.AffinityPartition(affinities, weights).marginals(DRAWS, generator=generator())
    torch.testing.assert_close(found.sum(0), torch.ones(4).double())
    p_values = oracles.binomial_p_values((found * DRAWS).round().numpy(), exact.numpy(), DRAWS)
    assert (p_values > FALSE_ALARM / p_values.size).all()


# --- divergences ----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "groups", "scale"), [(3, 3, 1.0), (4, 2, 3.0), (5, 2, 30.0)])
@pytest.mark.parametrize("prior", ["affinities", "scores"])
def test_the_divergence_within_five_standard_errors(
    n: int, groups: int, scale: float, prior: str
) -> None:
    """From another law of the kind, or from a random partition."""
    (a, w), (b, v) = (affinity_parameters(n, groups, scale, 10 * seed) for seed in (1, 2))
    b = b if prior == "affinities" else b[0]
    make, fills, enumerate_all = {
        "affinities": (drpm.AffinityPartition, oracles.affinity_fills, oracles.affinity_partition),
        "scores": (drpm.RandomPartition, functools.partial(oracles.fills, groups=groups), None),
    }[prior]
    found = drpm.partition_kl(drpm.AffinityPartition(a, w), make(b, v), DRAWS, generator())
    sizes = oracles.fisher(n, w).kl(oracles.fisher(n, v))
    exact, cost = oracles.affinity_partition(a, w), oracles.affinity_fills(a) - fills(b)
    assert_expectation(found - sizes, exact, cost, DRAWS, rate=FALSE_ALARM)
    if enumerate_all is not None:
        whole = sizes + exact.expectation(cost)
        torch.testing.assert_close(whole, exact.kl(enumerate_all(b, v)), rtol=1e-9, atol=1e-9)


def test_gradient_of_the_divergence_within_five_standard_errors() -> None:
    """In the parameters of both laws; the last row of either has no part in it."""
    given = [affinity_parameters(3, 3, 1.0, 10 * seed) for seed in (1, 2)]
    leaves = [t.requires_grad_() for pair in given for t in pair]
    p, q = drpm.AffinityPartition(*leaves[:2]), drpm.AffinityPartition(*leaves[2:])
    sizes = oracles.fisher(3, leaves[1]).kl(oracles.fisher(3, leaves[3]))
    estimate = drpm.partition_kl(p, q, GRADIENT_DRAWS, generator())
    found = torch.autograd.grad(estimate - sizes, leaves)
    assert (found[3].abs() < 1e-8).all()  # q's weights have a part in the sizes alone
    for grad in (found[0], found[2]):
        assert (grad.sum(-1).abs() < 1e-8).all()
        assert (grad[-1] == 0).all()
    a, w, b = (leaf.detach() for leaf in leaves[:3])
    exact, fills = oracles.affinity_partition(a, w), oracles.affinity_fills
    cost, ours, theirs = fills(a) - fills(b), slopes(fills, a), slopes(fills, b)
    of_weights = slopes(lambda w: oracles.affinity_partition(a, w).log_mass, w)

    def compared(a: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return without_last([*a.unbind(-2)[:-1], w, *b.unbind(-2)[:-1]])

    drawn = torch.cat([draw.Y for draw in p.draws(GRADIENT_DRAWS, generator())])
    assert_score_function_gradient(
        compared(*found[:3]),
        oracles.count_values(drawn, exact.values),
        exact,
        cost,
        compared(ours, torch.zeros_like(of_weights), -theirs),
        compared(ours, of_weights, torch.zeros_like(theirs)),
    )


def test_the_bound_of_the_divergence_lies_above_it() -> None:
    """E[log upper(p) - log lower(q)] over the drawn orders, on average over 60 estimates."""
    (a, w), (b, v) = affinity_parameters(4, 3, 1.0, 1), affinity_parameters(4, 3, 1.0, 5)
    exact = oracles.affinity_partition(a, w).kl(oracles.affinity_partition(b, v))
    p, q = drpm.AffinityPartition(a, w).expand((60,)), drpm.AffinityPartition(b, v)
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
