"""Relaxed partitions by affinities: exact when hard, in their limits when soft."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import drpm
from drpm.relaxation.filling import fill_by_rows_softly
from tests import oracles
from tests.oracles import affinity_parameters, generator, normal

# --- the soft top-k -------------------------------------------------------------------------


def shares_by_bisection(scores: Tensor, left: Tensor, size: float) -> Tensor:
    """What a subset takes: left times sigma(score - t), with t found by halving an interval."""
    lower, upper = scores.min() - 100, scores.max() + 100
    for _ in range(200):
        middle = (lower + upper) / 2
        too_many = (left * torch.sigmoid(scores - middle)).sum() > size
        lower, upper = (middle, upper) if too_many else (lower, middle)
    return left * torch.sigmoid(scores - (lower + upper) / 2)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_shares_equal_the_definition(scale: float) -> None:
    scores = scale * normal(4, 12)
    sizes = torch.tensor([3.25, 0.5, 2.0, 6.25], dtype=torch.float64)
    found = fill_by_rows_softly(sizes, scores)
    left = torch.ones(12, dtype=torch.float64)
    for k in range(3):
        taken = shares_by_bisection(scores[k], left, float(sizes[k]))
        torch.testing.assert_close(found[k], taken, rtol=0, atol=1e-6 if scale > 100 else 1e-10)
        left = left - found[k]
    torch.testing.assert_close(found[3], left, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), sizes, rtol=0, atol=1e-6 if scale > 100 else 1e-10)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_derivatives_of_the_shares(spread: float) -> None:
    """The first and second ones, through the threshold; ties are smooth."""
    scores = (spread * normal(3, 5)).requires_grad_()
    sizes = torch.tensor([1.3, 0.6, 3.1], dtype=torch.float64, requires_grad=True)
    assert gradcheck(fill_by_rows_softly, (sizes, scores))
    assert gradgradcheck(fill_by_rows_softly, (sizes, scores))


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3, 1e9, 1e30])
def test_subsets_that_take_nothing_or_everything(scale: float) -> None:
    """Sizes of zero are no special case, and keep finite gradients; nor are far scores."""
    scores = (scale * normal(5, 20)).requires_grad_()
    sizes = torch.tensor([0.0, 7.0, 0.0, 13.0, 0.0], dtype=torch.float64, requires_grad=True)
    found = fill_by_rows_softly(sizes, scores)
    torch.testing.assert_close(found.sum(-1), sizes, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.sum(-2), torch.ones(20).double())
    grads = torch.autograd.grad((found * normal(5, 20, seed=1)).sum(), (sizes, scores))
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)
    assert grads[0].abs().max() > 0  # an empty subset can grow


@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0])
def test_hard_mode_is_the_greedy_partition(temperature: float) -> None:
    for seed, (scale, groups) in enumerate(itertools.product((0.0, 3.0, 1e3), (1, 2, 7))):
        affinities, weights = affinity_parameters(30, groups, scale, seed)
        law = drpm.RelaxedAffinityPartition(temperature, affinities, weights)
        sizes, size_law = law.mode.sum(-1), law.discrete.sizes
        torch.testing.assert_close(size_law.log_prob(sizes), size_law.log_prob(size_law.mode))
        if torch.equal(sizes, size_law.mode):  # unless two sizes are equally likely
            assert torch.equal(law.mode, law.discrete.greedy)


def test_memory_is_linear() -> None:
    """A sort's matrix of 30,000 elements alone takes 3.6 GB; a share of that is kept."""
    n, groups = 30_000, 3
    affinities, weights = normal(groups, n).float().requires_grad_(), torch.zeros(groups)
    law = drpm.RelaxedAffinityPartition(0.5, affinities, weights)
    value, kept = oracles.kept_bytes(law.rsample)
    assert kept < 200 * groups * n * 8
    (value[0] * torch.linspace(0, 1, n)).sum().backward()
    assert torch.isfinite(affinities.grad).all()
    assert affinities.grad.abs().max() > 0


# --- gradients ------------------------------------------------------------------------------


def test_hard_samples_have_the_gradients_of_soft_ones() -> None:
    cotangent, grads = normal(20, 4, 9, seed=5), []
    for hard in (True, False):
        leaves = [t.requires_grad_() for t in affinity_parameters(9, 4)]
        law = drpm.RelaxedAffinityPartition(0.6, *leaves, hard=hard)
        value = law.rsample((20,), generator=generator())
        grads.append(torch.autograd.grad((value * cotangent).sum(), leaves))
    torch.testing.assert_close(*grads)
    assert (grads[0][0][-1] == 0).all()  # the last subset has no choice
    assert (grads[0][0][:-1].abs().sum(-1) > 0).all()
