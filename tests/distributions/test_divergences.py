"""The KL divergence of partitions against the sum over all of them."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

import drpm
from tests import oracles
from tests.oracles import (
    FALSE_ALARM,
    GRADIENT_DRAWS,
    GRADIENT_GRID,
    SMALL,
    assert_expectation,
    assert_mean,
    assert_score_function_gradient,
    fisher_on,
    generator,
    parameters,
    slopes,
    without_last,
)

SCALES = [0.5, 2.0, 10.0, 50.0]
DRAWS = 2_000
REPEATS = 60  # independent estimates, as the members of one batch


@pytest.mark.parametrize(("n", "groups"), SMALL)
def test_partition_kl_within_five_standard_errors(n: int, groups: int) -> None:
    for index, scale in enumerate(SCALES):
        (s, w), (t, v) = (parameters(n, groups, scale, 2 * index + seed) for seed in (1, 2))
        exact = oracles.random_partition(s, w)
        # The sizes are exact, the rest is a mean over draws.
        sizes = oracles.fisher(n, w).kl(oracles.fisher(n, v))
        ratio = oracles.fills(s, groups) - oracles.fills(t, groups)
        p, q = drpm.RandomPartition(s, w), drpm.RandomPartition(t, v)
        found = drpm.partition_kl(p, q, num_samples=DRAWS, generator=generator(index))
        assert_expectation(found - sizes, exact, ratio, DRAWS, rate=FALSE_ALARM / len(SCALES))
        whole = exact.kl(oracles.random_partition(t, v))
        torch.testing.assert_close(sizes + exact.expectation(ratio), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("n", "groups", "scale", "weight_scale", "room"), GRADIENT_GRID)
def test_gradient_within_five_standard_errors(
    n: int, groups: int, scale: float, weight_scale: float, room: oracles.Room | None
) -> None:
    """In the parameters of both laws; detached draws would give zero in p on average."""
    given = [parameters(n, groups, scale, seed, weight_scale) for seed in (1, 2)]
    leaves = [t.requires_grad_() for pair in given for t in pair]
    s, w, t, v = leaves
    narrow, wide = room and room(n, groups), [n] * groups
    fills = functools.partial(oracles.fills, groups=groups)
    p = drpm.RandomPartition(s, w, None if narrow is None else torch.tensor(narrow))
    q = drpm.RandomPartition(t, v)
    estimate = drpm.partition_kl(p, q, num_samples=GRADIENT_DRAWS, generator=generator())
    sizes = oracles.fisher(n, w, narrow)
    found = torch.autograd.grad(estimate - sizes.kl(fisher_on(sizes.values, v, wide)), leaves)
    for grad in found:
        assert abs(grad.sum()) < 1e-8
    # The weights of q have a part in the sizes alone, which are exact. That leaves at most 13
    # random slopes to compare, as many as the false-alarm rate covers.
    assert (found[3].abs() < 1e-8).all()
    s, w, t = (leaf.detach() for leaf in leaves[:3])
    law, cost = oracles.random_partition(s, w, narrow), fills(s) - fills(t)
    ours, theirs = slopes(fills, s), slopes(fills, t)
    of_weights = slopes(lambda w: oracles.random_partition(s, w, narrow).log_mass, w)
    scores = without_last([ours, of_weights, torch.zeros_like(theirs)])
    drawn = torch.cat([draw.Y for draw in p.draws(GRADIENT_DRAWS, generator())])
    assert_score_function_gradient(
        without_last(found[:3]),
        oracles.count_values(drawn, law.values),
        law,
        cost,
        without_last([ours, torch.zeros_like(of_weights), -theirs]),
        scores,
    )


def expected_bounds(s: Tensor, w: Tensor, t: Tensor, v: Tensor) -> Tensor:
    """E[log upper bound of p - log lower bound of q along the drawn order], enumerated."""
    orders, other = oracles.plackett_luce(s), oracles.plackett_luce(t)
    sizes, theirs = oracles.fisher(len(s), w), oracles.fisher(len(s), v)
    counts = torch.lgamma(sizes.values.double() + 1).sum(-1)
    return (
        orders.log_mass.max()
        - (orders.mass * other.log_mass).sum()
        + (sizes.mass * (sizes.log_mass - theirs.log_mass + counts)).sum()
    )


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_bounds_estimate_lies_above_the_exact_one(scale: float) -> None:
    """KL(p, q) <= E[log upper(p) - log lower(q)]; compared on average over draws."""
    (s, w), (t, v) = parameters(5, 3, scale, 1), parameters(5, 3, scale, 2)
    p, q = drpm.RandomPartition(s, w), drpm.RandomPartition(t, v)
    exact = oracles.random_partition(s, w).kl(oracles.random_partition(t, v))
    found = drpm.partition_kl(p.expand((REPEATS,)), q, 200, generator(), estimate="bounds")
    error = assert_mean(found, expected_bounds(s, w, t, v), rate=FALSE_ALARM / 2)
    assert found.mean() + oracles.ERRORS * error > exact


@pytest.mark.parametrize(("n", "groups", "scale"), [(3, 2, 0.5), (4, 3, 1.0)])
def test_gradient_of_the_bounds_within_five_standard_errors(
    n: int, groups: int, scale: float
) -> None:
    """The bound depends on the drawn order, not on the partition alone."""
    given = [parameters(n, groups, scale, seed) for seed in (1, 2)]
    leaves = [t.requires_grad_() for pair in given for t in pair]
    expected = torch.cat(torch.autograd.grad(expected_bounds(*leaves), leaves))
    # The gradient of each member of a batch of equal laws is an estimate of its own.
    ours, theirs = (
        [t.detach().expand(REPEATS, -1).clone().requires_grad_() for t in pair] for pair in given
    )
    p, q = drpm.RandomPartition(*ours), drpm.RandomPartition(*theirs)
    found = drpm.partition_kl(p, q, 300, generator(), estimate="bounds")
    gradients = torch.cat(torch.autograd.grad(found.sum(), [*ours, *theirs]), -1)
    assert_mean(gradients, expected)


def test_batches_and_broadcasting() -> None:
    s, w = oracles.normal(4, 1, 5), oracles.normal(3, 2, seed=1)
    p = drpm.RandomPartition(s, w)
    q = drpm.RandomPartition(torch.zeros(5).double(), torch.zeros(2).double())
    for estimate in ("exact", "bounds"):
        found = drpm.partition_kl(p, q, num_samples=7, estimate=estimate)
        assert found.shape == (4, 3)
        assert torch.isfinite(found).all()
    empty = drpm.RandomPartition(torch.zeros(0, 5).double(), torch.zeros(2).double())
    assert drpm.partition_kl(empty, q).shape == (0,)


def test_registered_with_torch() -> None:
    (s, w), (t, v) = parameters(5, 3, 1.0, 1), parameters(5, 3, 1.0, 2)
    p, q = drpm.RandomPartition(s, w), drpm.RandomPartition(t, v)
    r = drpm.AffinityPartition(oracles.normal(3, 5), v)
    for first, second in ((p, q), (p, r), (r, p)):
        torch.manual_seed(3)
        found = kl_divergence(first, second)
        torch.manual_seed(3)
        assert torch.equal(found, drpm.partition_kl(first, second))
    assert drpm.partition_kl(r, r) == 0
