"""Noise, the straight-through estimator, and relaxed sorts against the textbook."""

from __future__ import annotations

import pytest
import scipy.stats
import torch

from drpm.relaxation import operators
from drpm.relaxation.operators import (
    SORTS,
    gumbel_like,
    order_descending,
    permutation_matrix,
    sort_by_counting,
    sort_descending,
    straight_through,
)
from tests import oracles
from tests.oracles import FALSE_ALARM, generator, normal

TEXTBOOK = {"neuralsort": oracles.neuralsort, "softsort": oracles.softsort}
any_sort = pytest.mark.parametrize("sort", sorted(SORTS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_noise_is_gumbel(dtype: torch.dtype) -> None:
    noise = gumbel_like(torch.zeros(50_000, dtype=dtype), generator())
    assert noise.dtype == dtype
    assert torch.isfinite(noise).all()
    assert scipy.stats.kstest(noise.numpy(), "gumbel_r").pvalue > FALSE_ALARM


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_straight_through_has_the_hard_value_and_the_soft_gradient(dtype: torch.dtype) -> None:
    """``hard - soft + soft`` would lose the hard value beside a large soft one."""
    soft = torch.randn(100_000, dtype=dtype).mul(10).exp().requires_grad_()
    factors = torch.randn(100_000, dtype=dtype)
    for hard in (torch.zeros_like(soft), torch.ones_like(soft), 7 * torch.ones_like(soft)):
        value = straight_through(hard, 2 * soft)
        assert torch.equal(value, hard)
        (grad,) = torch.autograd.grad((value * factors).sum(), soft)
        assert torch.equal(grad, 2 * factors)


# --- sorts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", sorted(TEXTBOOK))
@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 30.0])
def test_values_equal_the_textbook(sort: str, n: int, scale: float) -> None:
    scores = scale * normal(3, n)
    torch.testing.assert_close(SORTS[sort](scores), TEXTBOOK[sort](scores, 1.0), rtol=0, atol=1e-11)
    single = scores.float()
    expected = TEXTBOOK[sort](single.double(), 1.0)
    assert (SORTS[sort](single).double() - expected).abs().max() < 1e-4


@any_sort
def test_low_temperatures_give_the_hard_sort(sort: str) -> None:
    scores = normal(20, 8)
    hard = permutation_matrix(scores.argsort(-1, descending=True), scores.dtype)
    gaps = [(SORTS[sort](scores / t) - hard).abs().max().item() for t in (1.0, 0.1, 1e-3, 1e-6)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.1
    assert gaps[-1] < 1e-6


@any_sort
def test_gradients_are_finite_at_ties_and_extremes(sort: str) -> None:
    for base in (torch.zeros(6), torch.tensor([1.0, 1.0, 2.0, 2.0]), 1e3 * normal(7).float()):
        scores = base.clone().requires_grad_()
        soft = SORTS[sort](scores)
        (soft * torch.arange(1.0, soft.numel() + 1).view_as(soft)).sum().backward()
        assert torch.isfinite(soft).all()
        assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_counting_sorts_as_sorting_does(scale: float) -> None:
    scores, factors = scale * normal(3, 40), normal(3, 40, seed=1)
    scores[:, 5:9] = scores[:, 20:24]  # ties keep the order of their elements
    scores[0, :7] = -torch.inf
    scores.requires_grad_()
    expected, found = sort_descending(scores), sort_by_counting(scores)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(order_descending(scores), found.order)
    gradients = [
        torch.autograd.grad((factors * x.scores).nan_to_num().sum(), scores)[0]
        for x in (found, expected)
    ]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize("scale", [0.1, 3.0, 1e6])
def test_logits_without_a_sort(n: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in compiled code on a GPU, where sorts are counted."""
    scores = (scale * normal(3, n)).requires_grad_()
    factors = normal(3, n, n, seed=1)
    expected = operators.neural_sort(scores)
    (slopes,) = torch.autograd.grad((factors * expected).sum(), scores)
    monkeypatch.setattr(operators, "counted", lambda scores: True)
    found = operators.neural_sort(scores)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad((factors * found).sum(), scores)[0], slopes, rtol=1e-6, atol=1e-9
    )


@pytest.mark.cuda
def test_compiled_sorts_count() -> None:
    scores = torch.randn(7, 64, device="cuda", dtype=torch.float64)
    compiled = torch.compile(sort_descending, fullgraph=True)
    for one, other in zip(compiled(scores), sort_descending(scores), strict=True):
        assert torch.equal(one, other)
