"""Scores of pairs: limits, and a classifier done by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor
from torch.nn.functional import one_hot

from drpm.factors.evaluation import evaluate_pairs
from tests.factors.toys import draw, numbered
from tests.oracles import normal

SIZES = (3, 2, 4, 3)

# Guessing scores 0 with a standard deviation of at most 2 sqrt(1/4 / 500) = 0.045, where a factor
# of two values is scored on 500 pairs, and of 0.02 in the mean over the four factors. 0.12 is more
# than five of them: a false alarm in less than 1e-6 of the comparisons.
CHANCE = 0.12


def make_pairs(shared: Any, count: int = 2000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The factors of both images, (P, 2, F), and which of them are shared, (P, F)."""
    batch = draw(count, shared, numbered(SIZES), seed)
    return batch["factors"], batch["is_shared"]


def one_hot_codes(factors: Tensor) -> Tensor:
    """A dimension for each value of each factor."""
    parts = [one_hot(values, size) for values, size in zip(factors.unbind(-1), SIZES, strict=True)]
    return torch.cat(parts, -1).float()


def one_hot_mask(is_shared: Tensor) -> Tensor:
    return is_shared.repeat_interleave(torch.tensor(SIZES), -1).float()


def is_chance(score: float | None) -> bool:
    return score is not None and abs(score) < CHANCE


@pytest.mark.parametrize("shared", [1, 3])
def test_a_perfect_representation_scores_one(shared: Any) -> None:
    factors, is_shared = make_pairs(shared, 4000)
    codes, mask = one_hot_codes(factors), one_hot_mask(is_shared)
    scores = evaluate_pairs(codes, mask, factors, is_shared)
    assert scores[:2] == (1.0, 1.0)
    assert all(map(is_chance, scores[4:6]))
    assert scores.mean_count == pytest.approx(float(mask.sum(1).mean()))


@pytest.mark.parametrize("seed", range(3))
def test_a_useless_representation_scores_zero(seed: int) -> None:
    codes, mask = normal(2000, 2, 5, seed=seed), torch.rand(2000, 5) < 0.5
    scores = evaluate_pairs(codes, mask, *make_pairs(2, seed=seed))
    assert all(map(is_chance, scores[:2]))


def test_the_accuracies_by_hand() -> None:
    """Trained on two thirds of the pairs, tested on the others.

    The independent part is the first image's code, the shared part the mean of both.
    """
    factors, is_shared = make_pairs(2, 600)
    codes = factors + normal(600, 2, 4)
    mask = torch.rand(600, 4) < 0.6
    found = evaluate_pairs(codes, mask, factors, is_shared)
    shared, independent = codes.mean(1) * mask, codes[:, 0] * ~mask
    for name, part, counted in (
        ("shared_accuracy", shared, is_shared),
        ("independent_accuracy", independent, ~is_shared),
        ("shared_from_independent", independent, is_shared),
        ("independent_from_shared", shared, ~is_shared),
    ):
        expected = []
        for factor in range(4):
            fitted, tested = (counted[rows, factor] for rows in (slice(400), slice(400, 600)))
            values = factors[:, 0, factor].numpy()
            model = LogisticRegression(max_iter=1000).fit(part[:400][fitted], values[:400][fitted])
            predicted = model.predict(part[400:][tested])
            expected.append(balanced_accuracy_score(values[400:][tested], predicted, adjusted=True))
        assert found.by_factor[name] == pytest.approx(expected)
        assert getattr(found, name) == pytest.approx(np.mean(expected))


def test_fixed_factors_are_shared_or_independent() -> None:
    batch = draw(2000, 1, numbered(SIZES), which="fixed")
    factors, is_shared = batch["factors"], batch["is_shared"]
    # The dimensions of the third factor are taken for shared, and those of the first are not.
    mask = one_hot_mask(torch.arange(4) == 2).expand(2000, -1)
    scores = evaluate_pairs(one_hot_codes(factors), mask, factors, is_shared)
    assert scores.by_factor["shared_from_independent"] == [1, None, None, None]
    assert is_chance(scores.shared_accuracy)
    none, second, third, fourth = scores.by_factor["independent_accuracy"]
    assert (none, second, fourth) == (None, 1, 1)
    assert is_chance(third)
    # The mean of both images tells their values, but not which is the first one's: 1/3.
    assert scores.by_factor["independent_from_shared"][2] > CHANCE


def test_parts_without_factors_have_no_score() -> None:
    for shared, expected in ((0, (None, 1.0)), (4, (1.0, None))):
        factors, is_shared = make_pairs(shared, 200)
        mask = one_hot_mask(is_shared)
        assert evaluate_pairs(one_hot_codes(factors), mask, factors, is_shared)[:2] == expected


def test_the_count_error() -> None:
    mask = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
    is_shared = np.array([[True, False], [True, True], [True, True]])
    factors = np.zeros((3, 2, 2), int)
    found = evaluate_pairs(np.ones((3, 2, 4)), mask, factors, is_shared)
    assert found.count_error == pytest.approx((2**2 + 2**2 + 1) / 3)
    assert found.mean_count == pytest.approx(2)


def good() -> dict[str, Any]:
    same = np.arange(8) % 2
    factors = np.stack([same, same], 1)[..., None].repeat(3, 2)
    return {
        "codes": np.ones((8, 2, 4)),
        "mask": np.ones((8, 4)),
        "factors": factors,
        "is_shared": np.ones((8, 3), bool),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": np.ones((8, 4))}, r"codes must have shape \(8, 2, 4\), but got \(8, 4\)"),
        ({"codes": np.full((8, 2, 4), np.nan)}, "codes must contain finite numbers, but got nan"),
        ({"codes": np.ones((0, 2, 4))}, r"codes must have shape .* got \(0, 2, 4\)"),
        ({"mask": np.full((8, 4), 0.5)}, "mask must contain zeros and ones, but got 0.5"),
        ({"mask": np.ones((7, 5))}, r"mask must have shape \(8, 4\), but got \(7, 5\)"),
        ({"factors": np.full((8, 2, 3), 0.5)}, "factors must contain integers, but got 0.5"),
        ({"factors": np.ones((7, 2, 3), int)}, r"factors must have shape \(8, 2, 3\)"),
        ({"factors": np.arange(48).reshape(8, 2, 3)}, "factors must be equal in both images"),
        ({"is_shared": np.ones((9, 3))}, r"is_shared must have shape \(8, 3\), .* \(9, 3\)"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_pairs(**{**good(), **change})
