"""The KL divergence of partitions against the sum over all of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import kl_divergence

import drpm
from tests import oracles

ERRORS = 5  # standard errors a Monte Carlo mean may be off


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(n: int, groups: int, scale: float, seed: int) -> tuple[Tensor, Tensor]:
    noise = torch.randn(n + groups, dtype=torch.float64, generator=generator(seed))
    return scale * noise[:n], scale * noise[n:]


def unseen(p: oracles.Enumeration, q: oracles.Enumeration, draws: int) -> float:
    """What values too rare to be drawn may contribute to the divergence."""
    rare = (p.mass * draws < 50) & (p.mass > 0)
    return 5 * float((p.mass[rare] * (p.log_mass[rare] - q.log_mass[rare]).abs()).sum())


@pytest.mark.parametrize(
    ("n", "groups", "scale"),
    [(3, 2, 0.3), (4, 3, 1.0), (5, 3, 2.0), (6, 4, 1.0), (6, 2, 10.0), (6, 3, 50.0), (1, 3, 1.0)],
)
def test_partition_kl_within_five_standard_errors(n: int, groups: int, scale: float) -> None:
    p_params, q_params = parameters(n, groups, scale, 1), parameters(n, groups, scale, 2)
    exact_p, exact_q = oracles.random_partition(*p_params), oracles.random_partition(*q_params)
    p, q = drpm.RandomPartition(*p_params), drpm.RandomPartition(*q_params)
    repeats, draws = 40, 200
    found = torch.stack(
        [drpm.partition_kl(p, q, num_samples=draws, generator=generator(r)) for r in range(repeats)]
    )
    error = found.std() / math.sqrt(repeats)
    exact = exact_p.kl(exact_q)
    slack = unseen(exact_p, exact_q, repeats * draws) + 1e-9 * max(1, float(exact))
    assert abs(found.mean() - exact) <= ERRORS * error + slack


def test_capacities_enter_the_divergence() -> None:
    (s, w), (t, v) = parameters(4, 3, 1.0, 1), parameters(4, 3, 1.0, 2)
    narrow, wide = [2, 4, 1], [4, 4, 2]
    p = drpm.RandomPartition(s, w, torch.tensor(narrow))
    q = drpm.RandomPartition(t, v, torch.tensor(wide))
    exact = oracles.random_partition(s, w, narrow).kl(oracles.random_partition(t, v, wide))
    found = torch.stack(
        [drpm.partition_kl(p, q, num_samples=200, generator=generator(r)) for r in range(40)]
    )
    assert abs(found.mean() - exact) <= ERRORS * found.std() / math.sqrt(40)
    assert torch.isposinf(drpm.partition_kl(q, p, num_samples=5))


@pytest.mark.parametrize(("n", "groups", "scale"), [(3, 2, 0.5), (4, 3, 1.0), (5, 3, 1.5)])
def test_gradient_within_five_standard_errors(n: int, groups: int, scale: float) -> None:
    """In the parameters of both laws; detached draws would give zero in p on average."""
    leaves = [t.requires_grad_() for seed in (1, 2) for t in parameters(n, groups, scale, seed)]
    exact = oracles.random_partition(*leaves[:2]).kl(oracles.random_partition(*leaves[2:]))
    expected = torch.cat(torch.autograd.grad(exact, leaves))
    found = []
    for r in range(60):
        p, q = drpm.RandomPartition(*leaves[:2]), drpm.RandomPartition(*leaves[2:])
        estimate = drpm.partition_kl(p, q, num_samples=200, generator=generator(r))
        found.append(torch.cat(torch.autograd.grad(estimate, leaves)))
    draws = torch.stack(found)
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - expected).abs() <= ERRORS * error + 1e-9).all()
    ours = slice(0, n + groups)
    assert expected[ours].abs().max() > 10 * error[ours].max()  # zero would be noticed


def test_equal_laws_have_no_divergence() -> None:
    s, w = parameters(5, 3, 1.0, 0)
    law = drpm.RandomPartition(s, w)
    same = drpm.RandomPartition(s + 3, w - 2)  # common factors change nothing
    assert abs(drpm.partition_kl(law, law, num_samples=3)) < 1e-9
    assert abs(drpm.partition_kl(law, same, num_samples=3)) < 1e-9


def test_equal_scores_leave_only_the_exact_size_part() -> None:
    """The ordering part vanishes draw by draw, so few samples give the exact value."""
    w, v = torch.randn(2, 3, dtype=torch.float64, generator=generator())
    s = torch.randn(6, dtype=torch.float64, generator=generator(1))
    p, q = drpm.RandomPartition(s, w), drpm.RandomPartition(s, v)
    found = drpm.partition_kl(p, q, num_samples=2, generator=generator())
    torch.testing.assert_close(found, kl_divergence(p.sizes, q.sizes), rtol=0, atol=1e-9)
    exact = oracles.random_partition(s, w).kl(oracles.random_partition(s, v))
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-9)


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
    found = torch.stack(
        [
            drpm.partition_kl(p, q, num_samples=200, generator=generator(r), estimate="bounds")
            for r in range(20)
        ]
    )
    error = found.std() / math.sqrt(len(found))
    assert found.mean() + ERRORS * error > exact
    assert abs(found.mean() - expected_bounds(s, w, t, v)) <= ERRORS * error + 1e-9


@pytest.mark.parametrize(("n", "groups", "scale"), [(3, 2, 0.5), (4, 3, 1.0)])
def test_gradient_of_the_bounds_within_five_standard_errors(
    n: int, groups: int, scale: float
) -> None:
    """The bound depends on the drawn order, not on the partition alone."""
    leaves = [t.requires_grad_() for seed in (1, 2) for t in parameters(n, groups, scale, seed)]
    expected = torch.cat(torch.autograd.grad(expected_bounds(*leaves), leaves))
    found = []
    for r in range(60):
        p, q = drpm.RandomPartition(*leaves[:2]), drpm.RandomPartition(*leaves[2:])
        estimate = drpm.partition_kl(
            p, q, num_samples=300, generator=generator(r), estimate="bounds"
        )
        found.append(torch.cat(torch.autograd.grad(estimate, leaves)))
    draws = torch.stack(found)
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - expected).abs() <= ERRORS * error + 1e-9).all()


def test_batches_and_broadcasting() -> None:
    s = torch.randn(4, 1, 5, dtype=torch.float64, generator=generator())
    w = torch.randn(3, 2, dtype=torch.float64, generator=generator(1))
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
    torch.manual_seed(3)
    found = kl_divergence(p, q)
    torch.manual_seed(3)
    assert torch.equal(found, drpm.partition_kl(p, q))


def test_generator_reproduces_the_estimate() -> None:
    (s, w), (t, v) = parameters(5, 3, 1.0, 1), parameters(5, 3, 1.0, 2)
    p, q = drpm.RandomPartition(s, w), drpm.RandomPartition(t, v)
    first, second = (
        drpm.partition_kl(p, q, num_samples=4, generator=generator(9)) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_gradcheck_in_q() -> None:
    """With the draws of p held fixed the estimate is a plain function of q's parameters."""
    s, w = parameters(4, 3, 1.0, 1)
    leaves = tuple(t.requires_grad_() for t in parameters(4, 3, 1.0, 2))
    p = drpm.RandomPartition(s, w)
    for estimate in ("exact", "bounds"):
        assert gradcheck(
            lambda t, v, estimate=estimate: drpm.partition_kl(
                p,
                drpm.RandomPartition(t, v),
                num_samples=4,
                generator=generator(0),
                estimate=estimate,
            ),
            leaves,
        )
