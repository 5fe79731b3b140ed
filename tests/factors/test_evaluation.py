"""Scores of pairs: perfect, useless and swapped representations, and a classifier done by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor
from torch.nn.functional import one_hot

from drpm.factors.evaluation import (
    count_error,
    evaluate_pairs,
    independent_accuracy,
    shared_accuracy,
)
from drpm.factors.pairs import PairFactors, draw_pairs
from tests.oracles import generator, normal

SIZES = (3, 2, 4, 3)

# Guessing scores 0 with a standard deviation of at most 2 sqrt(1/4 / 500) = 0.045, where a factor
# of two values is scored on 500 pairs, and of 0.02 in the mean over the four factors. 0.25 and 0.12
# are more than five of them: a false alarm in less than 1e-6 of the comparisons.
CHANCE, CHANCE_OF_MEAN = 0.25, 0.12


def make_pairs(shared: Any, count: int = 2000, sizes: Any = SIZES, seed: int = 0) -> PairFactors:
    return draw_pairs(sizes, shared, count, generator(seed))


def both(pairs: PairFactors) -> Tensor:
    """The factors of both images, (P, 2, F)."""
    return torch.stack([pairs.first, pairs.second], 1)


def one_hot_codes(factors: Tensor) -> Tensor:
    """A dimension for each value of each factor."""
    parts = [one_hot(values, size) for values, size in zip(factors.unbind(-1), SIZES, strict=True)]
    return torch.cat(parts, -1).float()


def one_hot_mask(is_shared: Tensor) -> Tensor:
    return is_shared.repeat_interleave(torch.tensor(SIZES), 1).float()


@pytest.mark.parametrize("shared", [1, 2, 3, (0, 1, 3)])
def test_a_perfect_representation_scores_one(shared: Any) -> None:
    pairs = make_pairs(shared)
    codes, mask = one_hot_codes(both(pairs)), one_hot_mask(pairs.is_shared)
    scores = evaluate_pairs(codes, mask, both(pairs), pairs.is_shared)
    assert scores.shared == (1.0, (1.0,) * 4)
    assert scores.independent == (1.0, (1.0,) * 4)
    assert scores.mean_count == pytest.approx(float(mask.sum(1).mean()))


@pytest.mark.parametrize("shared", [1, 3])
def test_one_dimension_a_factor_is_enough_for_few_values(shared: int) -> None:
    pairs = make_pairs(shared, 4000)
    codes = both(pairs) / (torch.tensor(SIZES) - 1) * 3 - 1.5
    scores = evaluate_pairs(codes, pairs.is_shared, both(pairs), pairs.is_shared)
    for accuracy in (scores.shared, scores.independent):
        assert accuracy.mean is not None
        assert accuracy.mean > 0.99
    assert scores.count_error == 0
    assert scores.mean_count == shared


@pytest.mark.parametrize("seed", range(3))
def test_a_useless_representation_scores_zero(seed: int) -> None:
    pairs = make_pairs(2, seed=seed)
    codes, mask = normal(2000, 2, 5, seed=seed), torch.rand(2000, 5) < 0.5
    scores = evaluate_pairs(codes, mask, both(pairs), pairs.is_shared)
    for mean, by_factor in (scores.shared, scores.independent):
        assert all(score is not None and abs(score) < CHANCE for score in by_factor)
        assert mean is not None
        assert abs(mean) < CHANCE_OF_MEAN


def test_swapped_masks_are_caught() -> None:
    pairs = make_pairs(2)
    codes, mask = one_hot_codes(both(pairs)), one_hot_mask(pairs.is_shared)
    swapped = evaluate_pairs(codes, 1 - mask, both(pairs), pairs.is_shared)
    # What is told is in the other part; only which dimensions are zero is left.
    for accuracy in (swapped.shared, swapped.independent):
        assert accuracy.mean is not None
        assert abs(accuracy.mean) < CHANCE_OF_MEAN


def test_the_parts_are_of_the_right_images() -> None:
    # The second image's code is all that differs: no independent factor is read from it, while the
    # shared part is the mean of both.
    pairs = make_pairs(2)
    mask = one_hot_mask(pairs.is_shared)
    codes = one_hot_codes(both(pairs))
    noisy = torch.stack([codes[:, 0], normal(*mask.shape).float()], 1)
    assert independent_accuracy(noisy, mask, both(pairs), pairs.is_shared).mean == 1
    cancelled = torch.stack([codes[:, 0], -codes[:, 0]], 1)
    assert independent_accuracy(cancelled, mask, both(pairs), pairs.is_shared).mean == 1
    mean = shared_accuracy(cancelled, mask, both(pairs), pairs.is_shared).mean
    assert mean is not None
    assert abs(mean) < CHANCE_OF_MEAN


def test_the_accuracy_by_hand() -> None:
    pairs = make_pairs((1, 2), 600)
    codes = both(pairs) + normal(600, 2, 4)
    mask = torch.rand(600, 4) < 0.6
    found = shared_accuracy(codes, mask, both(pairs), pairs.is_shared, num_train=400)
    part = (codes.mean(1) * mask).numpy()
    for factor in range(4):
        fitted, tested = (pairs.is_shared[rows, factor] for rows in (slice(400), slice(400, 600)))
        inputs, test_inputs = part[:400][fitted], part[400:][tested]
        values = pairs.first[:, factor].numpy()
        model = LogisticRegression(max_iter=1000).fit(inputs, values[:400][fitted])
        predicted = model.predict(test_inputs)
        expected = balanced_accuracy_score(values[400:][tested], predicted, adjusted=True)
        assert found.by_factor[factor] == pytest.approx(expected)
    assert found.mean == pytest.approx(np.mean(found.by_factor))


def test_two_thirds_are_learnt_from() -> None:
    pairs = make_pairs(2, 600)
    inputs = both(pairs) + normal(600, 2, 4), torch.ones(600, 4), both(pairs), pairs.is_shared
    assert shared_accuracy(*inputs) == shared_accuracy(*inputs, num_train=400)
    assert shared_accuracy(*inputs) != shared_accuracy(*inputs, num_train=300)


def test_what_is_left_of_an_empty_dimension_says_nothing() -> None:
    pairs = make_pairs(2)
    codes, mask = one_hot_codes(both(pairs)), one_hot_mask(pairs.is_shared)
    for accuracy in evaluate_pairs(1e-3 * codes, mask, both(pairs), pairs.is_shared)[:2]:
        assert accuracy.mean < 0.2
    for accuracy in evaluate_pairs(codes, mask, both(pairs), pairs.is_shared)[:2]:
        assert accuracy.mean == 1


def test_parts_without_factors_have_no_score() -> None:
    for shared in (0, 4):
        pairs = make_pairs(shared, 200)
        codes = one_hot_codes(both(pairs))
        mask = one_hot_mask(pairs.is_shared)
        scores = evaluate_pairs(codes, mask, both(pairs), pairs.is_shared)
        absent, present = scores[:2] if shared == 0 else scores[1::-1]
        assert absent == (None, (None,) * 4)
        assert present.mean == 1
    # A factor that is too rare to learn has none, and does not count.
    is_shared = np.zeros((20, 2), bool)
    is_shared[[0, 19], 0], is_shared[:, 1] = True, True
    factors = np.random.default_rng(0).integers(3, size=(20, 1, 2)).repeat(2, 1)
    accuracy = shared_accuracy(factors, np.ones((20, 2)), factors, is_shared)
    assert accuracy.by_factor[0] is None
    assert accuracy.mean == accuracy.by_factor[1]


def test_a_value_that_is_met_in_one_half_only() -> None:
    values = np.array([0, 1, 2] * 10 + [0, 1] * 15)
    factors = np.stack([values, values], 1)[..., None]
    for rows in (slice(None), slice(None, None, -1)):
        accuracy = shared_accuracy(
            factors[rows], np.ones((60, 1)), factors[rows], np.ones((60, 1), bool)
        )
        assert accuracy.mean is not None
        assert np.isfinite(accuracy.mean)


def test_the_count_error() -> None:
    mask = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
    is_shared = np.array([[True, False], [True, True], [True, True]])
    assert count_error(mask, is_shared) == pytest.approx((2**2 + 2**2 + 1) / 3)
    assert count_error(torch.from_numpy(mask), torch.from_numpy(is_shared)) == pytest.approx(3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_tensors_and_arrays_are_alike(dtype: torch.dtype) -> None:
    pairs = make_pairs(2, 400)
    codes = (both(pairs) + normal(400, 2, 4)).to(dtype).requires_grad_()
    tensors = codes, pairs.is_shared, both(pairs), pairs.is_shared
    found = evaluate_pairs(*tensors)
    arrays = [x.detach().double().numpy() if x is codes else x.numpy() for x in tensors]
    assert found == evaluate_pairs(*arrays)
    assert all(type(score) is float for score in found.shared.by_factor)


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
        ({"codes": np.ones((8, 4))}, r"codes must be numbers of the shape \(P, 2, d\).* \(8, 4\)"),
        ({"codes": np.full((8, 2, 4), np.nan)}, "codes must be finite"),
        ({"codes": np.ones((8, 3, 4))}, r"codes must have the shape \(P, 2, ...\).* \(8, 3, 4\)"),
        ({"codes": np.ones((0, 2, 4))}, r"codes must be numbers of the shape .* \(0, 2, 4\)"),
        ({"mask": np.full((8, 4), 0.5)}, "mask must hold zeros and ones, but got 0.5"),
        ({"mask": np.full((8, 4), 2)}, "mask must hold zeros and ones, but got 2"),
        ({"mask": np.ones((8, 5))}, "mask must have the 4 dimensions of codes, but got 5"),
        ({"mask": np.ones((7, 4))}, "mask must have the length of codes, 8, but got 7"),
        ({"factors": np.ones((8, 2, 3))}, r"factors must be whole numbers .* float64"),
        ({"factors": np.ones((7, 2, 3), int)}, "factors must have the length of codes, 8"),
        ({"factors": np.arange(48).reshape(8, 2, 3)}, "factors must be the same in both images"),
        ({"is_shared": np.ones((8, 2))}, "is_shared must have the 3 factors of factors, but got 2"),
        ({"is_shared": np.ones((9, 3))}, "is_shared must have the length of codes, 8, but got 9"),
        ({"num_train": 8}, "num_train must be from 1 to 7, .* but got 8"),
        ({"num_train": 0}, "num_train must be from 1 to 7, .* but got 0"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    arguments = {**good(), **change}
    for score in (evaluate_pairs, shared_accuracy, independent_accuracy):
        with pytest.raises(ValueError, match=message):
            score(**arguments)


def test_the_count_error_refuses_other_lengths() -> None:
    with pytest.raises(ValueError, match="is_shared must have the length of mask, 3, but got 2"):
        count_error(np.ones((3, 4)), np.ones((2, 7)))
