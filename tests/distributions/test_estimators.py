"""The score-function estimator against gradients of enumerated expectations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import drpm
from tests import oracles
from tests.oracles import FALSE_ALARM, generator, normal

REPEATS, DRAWS = 100, 100


def size_law(weights: Tensor) -> drpm.FisherHypergeometric:
    return drpm.FisherHypergeometric(5, weights, torch.tensor([5, 2, 4]))


PROBLEMS = {
    "sizes": (size_law, lambda w: oracles.fisher(5, w, [5, 2, 4]), [(3,)]),
    "order": (drpm.PlackettLuce, oracles.plackett_luce, [(4,)]),
    "partition": (drpm.RandomPartition, oracles.random_partition, [(4,), (3,)]),
    "affinities": (drpm.AffinityPartition, oracles.affinity_partition, [(2, 4), (2,)]),
}


def ramp(shape: Sequence[int]) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape), dtype=torch.float64).reshape(*shape)


def cost_of(direct: Tensor) -> Callable[[Tensor], Tensor]:
    """A nonlinear cost with a parameter of its own and a large constant."""

    def cost(value: Tensor) -> Tensor:
        flat = value.double().flatten(-direct.dim()) if direct.dim() > 1 else value.double()
        return 20 + (flat @ direct.flatten()) ** 2 / 4

    return cost


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_equals_the_enumerated_one(name: str) -> None:
    build, enumerate_all, shapes = PROBLEMS[name]
    # Given parameters: with random ones, the expected gradient may be small beside its error.
    leaves = [ramp(shape).requires_grad_() for shape in shapes]
    exact = enumerate_all(*leaves)
    direct = ramp(exact.values.shape[1:]).add(0.5).requires_grad_()
    cost = cost_of(direct)
    expectation = (exact.mass * cost(exact.values)).sum()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(expectation, [*leaves, direct])])
    grads, values = [], []
    for r in range(REPEATS):
        loss = drpm.score_function_loss(build(*leaves), cost, DRAWS, generator=generator(r))
        assert loss.shape == ()
        values.append(loss.detach())
        grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*leaves, direct])]))
    oracles.assert_mean(torch.stack(values), expectation, rate=FALSE_ALARM / 2)
    error = oracles.assert_mean(torch.stack(grads), expected, rate=FALSE_ALARM / 2)
    own = slice(0, sum(map(math.prod, shapes)))
    assert expected[own].abs().max() > 10 * error[own].max()  # zero would be noticed


def test_the_baseline_leaves_the_own_draw_out() -> None:
    """With two draws the surrogate's gradient is half the cost difference times the score."""
    weights = (normal(3, seed=2) / 3).requires_grad_()
    # Two draws of so many are hardly ever equal (1e-4 where the sizes deviate by 40).
    law = drpm.FisherHypergeometric(10_000, weights)
    table = normal(3, seed=3)
    draws = []

    def cost(value: Tensor) -> Tensor:
        draws.append(value)
        return value @ table

    loss = drpm.score_function_loss(law, cost, 2, generator=generator(4))
    (found,) = torch.autograd.grad(loss, weights)
    first, second = draws[0]
    gap = (first - second) @ table
    scores = [torch.autograd.grad(law.log_prob(x), weights, retain_graph=True)[0] for x in draws[0]]
    torch.testing.assert_close(found, gap * (scores[0] - scores[1]) / 2)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("draws", [0, -3])
def test_too_few_draws_are_refused(draws: int) -> None:
    law = drpm.PlackettLuce(torch.zeros(3))
    with pytest.raises(ValueError, match=f"num_samples.*{draws}"):
        drpm.score_function_loss(law, lambda x: x.double().sum(-1), draws)


def test_a_cost_of_the_wrong_shape_is_refused() -> None:
    law = drpm.RandomPartition(torch.zeros(2, 4), torch.zeros(3))
    with pytest.raises(ValueError, match=r"cost.*\(5, 2\)"):
        drpm.score_function_loss(law, lambda y: y.sum(), 5)
