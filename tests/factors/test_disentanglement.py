"""Scores of disentanglement: their limits, closed forms, and what must not matter."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

from drpm.factors.disentanglement import (
    DCI,
    dci_scores,
    disentanglement_scores,
    mutual_information_gap,
)

SIZES = (3, 2, 4, 3)


def random_factors(count: int = 2000, sizes: Any = SIZES, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(size, size=count) for size in sizes], 1)


def noise(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_a_dimension_for_each_factor_scores_one() -> None:
    factors = random_factors()
    codes = np.concatenate([factors + 0.02 * noise(*factors.shape), noise(2000, 2)], 1)
    dci = dci_scores(codes, factors)
    assert dci[:3] == pytest.approx((1, 1, 1), abs=0.01)
    np.testing.assert_allclose(dci.importance, np.eye(6, 4), atol=0.01)
    # Noise and chance leave a trace in a finite table: about 60 of its cells over 2 N = 4,000.
    assert mutual_information_gap(factors, factors) == pytest.approx(1, abs=0.02)
    assert mutual_information_gap(codes, factors) > 0.95


def test_mixed_codes_score_less_and_noise_nothing() -> None:
    factors = random_factors()
    centred = (factors - factors.mean(0)) / factors.std(0)
    mixed = centred @ (hadamard(4) / 2) + 0.1 * noise(2000, 4)
    pure = disentanglement_scores(centred + 0.1 * noise(2000, 4), factors)
    blended = disentanglement_scores(mixed, factors)
    nothing = disentanglement_scores(noise(2000, 4), factors)
    assert pure.disentanglement > 0.9
    assert pure.mutual_information_gap > 0.9
    assert blended.disentanglement < 0.4
    assert blended.completeness < 0.4
    assert blended.mutual_information_gap < 0.3
    assert blended.informativeness > nothing.informativeness + 0.2
    assert max(nothing.disentanglement, nothing.completeness) < 0.05
    assert nothing.mutual_information_gap < 0.05
    # Guessing.
    assert nothing.informativeness == pytest.approx(np.mean([1 / size for size in SIZES]), abs=0.05)


def test_a_dimension_that_tells_of_two_factors() -> None:
    # It is complete, a dimension for each factor, but not disentangled.
    factors = random_factors(sizes=(2, 2))
    one = (2 * factors[:, 0] + factors[:, 1])[:, None]
    dci = dci_scores(np.concatenate([one, noise(2000, 1)], 1), factors)
    assert dci.completeness == pytest.approx(1, abs=0.01)
    assert dci.disentanglement == pytest.approx(0, abs=0.01)
    assert dci.informativeness == 1


def test_a_factor_that_two_dimensions_tell_together() -> None:
    # Either tells one bit of its two.
    factor = random_factors(sizes=(4, 2))
    codes = np.stack([factor[:, 0] // 2, factor[:, 0] % 2, factor[:, 1]], 1)
    dci = dci_scores(codes, factor)
    assert dci.disentanglement == pytest.approx(1, abs=0.01)
    # One of the factors is told by a single dimension, the other by two alike.
    assert dci.completeness == pytest.approx((1 + 1 - math.log(2) / math.log(3)) / 2, abs=0.02)
    assert dci.informativeness == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_order_and_the_sign_of_dimensions_do_not_matter(seed: int) -> None:
    factors = random_factors(1000, seed=seed)
    codes = factors @ noise(4, 5) + 0.3 * noise(1000, 5)
    order = np.random.default_rng(seed).permutation(5)
    turned = codes[:, order] * [1, -2, 3, -4, 5]
    first, second = disentanglement_scores(codes, factors), disentanglement_scores(turned, factors)
    # The gap exactly, unless a point lies on the edge of a bin; the trees break ties otherwise.
    assert second.mutual_information_gap == pytest.approx(first.mutual_information_gap, abs=1e-3)
    assert second == pytest.approx(first, abs=0.03)


def test_the_names_and_the_order_of_factors_do_not_matter() -> None:
    factors = random_factors(1000)
    codes = factors @ noise(4, 5) + 0.3 * noise(1000, 5)
    renamed = 7 - 3 * factors[:, ::-1]
    first, second = disentanglement_scores(codes, factors), disentanglement_scores(codes, renamed)
    assert second.mutual_information_gap == pytest.approx(first.mutual_information_gap)
    assert second == pytest.approx(first, abs=0.03)


def test_constant_dimensions_do_no_harm() -> None:
    factors = random_factors()
    codes = np.concatenate([factors, np.full((2000, 3), 1e6)], 1)
    assert dci_scores(codes, factors)[:3] == pytest.approx((1, 1, 1), abs=0.01)
    assert mutual_information_gap(codes, factors) == pytest.approx(1, abs=0.02)
    nothing = disentanglement_scores(np.zeros((2000, 3)), factors)
    assert nothing[:2] == (0, 0)
    assert nothing.mutual_information_gap == pytest.approx(0, abs=1e-12)


def test_a_single_dimension_and_a_single_factor() -> None:
    factors = random_factors(500)[:, :1]
    scores = disentanglement_scores(factors, factors)
    assert scores == pytest.approx((1, 1, 1, 1))
    scores = disentanglement_scores(np.zeros((500, 1)), factors)
    assert scores[:2] == (0, 0)


def test_the_gap_of_a_table() -> None:
    # Two bits and their sum, every combination once: the sum has half a bit about each bit, each
    # bit half a bit about the sum, whose own entropy is one and a half.
    bits = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    total = bits.sum(1, keepdims=True)
    codes = np.concatenate([bits, total], 1)
    assert mutual_information_gap(codes, bits) == pytest.approx(1 - 0.5)
    assert mutual_information_gap(codes, total) == pytest.approx((1.5 - 0.5) / 1.5)
    assert mutual_information_gap(bits, total) == pytest.approx(0, abs=1e-12)
    assert mutual_information_gap(codes, codes) == pytest.approx((0.5 + 0.5 + 2 / 3) / 3)


def test_bins_are_of_equal_width() -> None:
    # Of 4 values in 2 bins the lower two fall together: one bit of two is left.
    values = np.array([0, 1, 2, 3] * 5)[:, None]
    assert mutual_information_gap(values, values, bins=2) == pytest.approx(0.5)
    # 0.4 and 1 are together, far below 9.
    uneven = np.array([0.4, 1.0, 9.0, 9.5] * 5)[:, None]
    assert mutual_information_gap(uneven, values, bins=2) == pytest.approx(0.5)
    assert mutual_information_gap(uneven, values) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_and_arrays_are_alike(dtype: torch.dtype) -> None:
    factors = random_factors(300)
    codes = torch.from_numpy(factors + noise(300, 4)).to(dtype).requires_grad_()
    found = disentanglement_scores(codes, torch.from_numpy(factors))
    assert found == disentanglement_scores(codes.detach().numpy(), factors)
    assert all(type(score) is float for score in found)


def test_the_seed_settles_the_trees() -> None:
    factors = random_factors(300)
    codes = factors + noise(300, 4)

    def scores(seed: int) -> DCI:
        return dci_scores(codes, factors, seed=seed)

    assert scores(1)[:3] == scores(1)[:3]
    assert scores(1)[:3] != scores(2)[:3]


@pytest.mark.parametrize("score", [dci_scores, disentanglement_scores, mutual_information_gap])
@pytest.mark.parametrize(
    ("codes", "factors", "message"),
    [
        (np.ones(8), np.ones((8, 2), int), r"codes must be numbers of the shape \(N, d\).* \(8,\)"),
        (np.ones((8, 2)), np.ones((8, 2)), "factors must be whole numbers .* float64"),
        (np.ones((8, 2)), np.ones((7, 2), int), "factors must have the length of codes, 8.* got 7"),
        (np.full((8, 2), np.inf), np.ones((8, 2), int), "codes must be finite"),
        (np.ones((8, 0)), np.ones((8, 2), int), "codes must be numbers of the shape"),
        (np.ones((8, 2)), np.eye(8, 9, 2).astype(int), "two values or more .* column 0 has one"),
    ],
)
def test_refusals(score: Any, codes: Any, factors: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(codes, factors)


def test_the_gap_refuses_a_single_bin() -> None:
    with pytest.raises(ValueError, match="bins must be 2 or more, but got 1"):
        mutual_information_gap(np.eye(4), np.eye(4, dtype=int), bins=1)
