"""Plackett-Luce against the enumeration of all permutations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

import drpm
from drpm.distributions import orders
from tests import oracles
from tests.oracles import FALSE_ALARM, generator, normal


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 50.0, 300.0])
def test_log_prob_equals_enumeration(n: int, scale: float) -> None:
    scores = scale * normal(n, seed=n)
    law = drpm.PlackettLuce(scores)
    exact = oracles.plackett_luce(scores)
    found = law.log_prob(exact.values)
    assert abs(found.exp().sum() - 1) < 1e-10
    torch.testing.assert_close(found, exact.log_mass, rtol=1e-13, atol=1e-9)
    torch.testing.assert_close(law.log_prob(law.mode), exact.log_mass.max(), rtol=0, atol=1e-9)
    single = drpm.PlackettLuce(scores.float())
    exact = oracles.plackett_luce(scores.float().double())
    error = (single.log_prob(exact.values).double() - exact.log_mass).abs()
    assert (error <= 1e-4 * exact.log_mass.abs().clamp(min=1)).all()


def test_mode_sorts_the_scores_stably() -> None:
    law = drpm.PlackettLuce(torch.tensor([[0.0, 2.0, -1.0, 1.0], [1.0, 1.0, 3.0, 1.0]]))
    assert law.mode.tolist() == [[1, 3, 0, 2], [2, 0, 1, 3]]
    assert law.mode.dtype == torch.int64


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_samples_follow_the_law(scale: float, dtype: torch.dtype) -> None:
    scores = (scale * normal(5, seed=1)).to(dtype)
    exact = oracles.plackett_luce(scores.double())
    samples = drpm.PlackettLuce(scores).sample((20_000,), generator=generator(2))
    counts = oracles.count_values(samples, exact.values)
    assert oracles.chi_square_p_value(counts, exact.mass.numpy()) > FALSE_ALARM


def test_gradcheck() -> None:
    scores = (2 * normal(5)).requires_grad_()
    orders = oracles.permutations(5)[::7]
    assert gradcheck(lambda s: drpm.PlackettLuce(s).log_prob(orders), (scores,))


# --- the probability of a subset permutation --------------------------------------------------


def test_subset_permutation_equals_sequential_draws() -> None:
    scores = 3 * normal(6)
    for drawn, taken in [
        ([2, 4], [0]),
        ([1], [0, 2, 3]),
        ([5, 0, 3], []),
        ([3, 1, 2, 0, 4, 5], []),
        ([4], [0, 1, 2, 3, 5]),
    ]:
        mask = torch.zeros(6, dtype=torch.bool)
        mask[taken] = True
        exact = oracles.subset_permutation_log_prob(scores, drawn, taken)
        found = drpm.subset_permutation_log_prob(scores, torch.tensor(drawn), mask)
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-10)
        if not taken:
            alone = drpm.subset_permutation_log_prob(scores, torch.tensor(drawn))
            torch.testing.assert_close(alone, exact, rtol=0, atol=1e-10)


TAKEN = torch.tensor([True, False, False, False, False])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("log_scores", (torch.tensor([0.0, math.nan, 1.0]), torch.tensor([0]))),
        ("log_scores", (torch.tensor([0.0, math.inf, 1.0]), torch.tensor([0]))),
        ("log_scores", (torch.arange(3), torch.tensor([0]))),
        ("log_scores", (torch.zeros(0), torch.tensor([0]))),
        ("subset_order", (torch.zeros(5), torch.tensor([2, 2]))),
        ("subset_order", (torch.zeros(5), torch.tensor([1, 0]), TAKEN)),
        ("subset_order", (torch.zeros(5), torch.tensor([True, False]))),
        ("subset_order", (torch.zeros(5), torch.tensor([1.0, 2.0]))),
        ("subset_order", (torch.zeros(5), torch.tensor([1, 5]))),
        ("subset_order", (torch.zeros(5), torch.tensor([-1, 2]))),
        ("subset_order", (torch.zeros(5), torch.arange(6) % 5)),
        ("subset_order", (torch.zeros(5), [1, 2])),
        ("subset_order", (torch.zeros(5), torch.tensor(1))),
        ("subset_order", (torch.zeros(5), torch.tensor([[1, 2], [3, 3]]))),
        ("subset_order", (torch.zeros(3, 5), torch.tensor([[1, 2], [3, 4]]))),
        ("taken", (torch.zeros(5), torch.tensor([1]), [0])),
        ("taken", (torch.zeros(5), torch.tensor([1]), TAKEN[:4])),
        ("taken", (torch.zeros(3, 5), torch.tensor([1]), TAKEN.expand(2, 5))),
    ],
)
def test_subset_permutation_refuses(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=name) as error:
        drpm.subset_permutation_log_prob(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("paired_up_to", [0, 512])
def test_the_best_order_and_its_gradient(
    scale: float, paired_up_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "_PAIRED_UP_TO", paired_up_to)
    log_scores = (scale * normal(3, 50, seed=3)).round(decimals=1).requires_grad_()  # with ties
    law = drpm.PlackettLuce(log_scores)
    expected, found = law.log_prob(law.mode), orders.best_order_log_prob(log_scores)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(x.sum(), log_scores)[0] for x in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
