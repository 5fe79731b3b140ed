"""The oracles against each other: three ways to the same mass."""

import numpy as np
import pytest

from tests import oracles
from tests.oracles import normal


@pytest.mark.parametrize("scale", [1.0, 50.0, 300.0])
def test_partition_masses_three_ways(scale: float) -> None:
    scores, weights = scale * normal(6, seed=0), scale * normal(3, seed=1)
    law, sizes = oracles.random_partition(scores, weights), oracles.fisher(6, weights)
    assert abs(law.mass.sum() - 1) < 1e-12
    table = {tuple(v): float(m) for v, m in zip(sizes.values.tolist(), sizes.log_mass, strict=True)}
    for index in range(0, 3**6, 61):
        labels = law.values[index].argmax(0).numpy()
        of_sizes = table[tuple(np.bincount(labels, minlength=3).tolist())]
        found = oracles.fill_log_prob_by_subsets(scores.numpy(), labels) + of_sizes
        assert found == pytest.approx(float(law.log_mass[index]), abs=1e-10)
    marginals = oracles.subset_at_rank(sizes) @ oracles.rank_probabilities(scores.numpy())
    np.testing.assert_allclose(marginals, law.mean(), atol=1e-12)


def test_rank_probabilities_two_ways() -> None:
    scores = 3 * normal(10, seed=2).numpy()
    ranks = oracles.rank_probabilities(scores)
    np.testing.assert_allclose(ranks.sum(0), 1.0)
    np.testing.assert_allclose(ranks.sum(1), 1.0)
    for element in range(3):
        found = oracles.rank_probabilities_by_quadrature(scores, element)
        np.testing.assert_allclose(found, ranks[:, element], rtol=0, atol=1e-13)


def test_sizes_two_ways() -> None:
    weights, capacities = 30 * normal(4, seed=3), [3, 7, 0, 5]
    law = oracles.fisher(8, weights, capacities)
    log_p0, mean = oracles.fisher_high_precision(8, weights.tolist(), capacities)
    assert float(oracles.fisher_log_normalizer(8, weights, capacities)) == pytest.approx(log_p0)
    np.testing.assert_allclose(law.mean().numpy(), mean, rtol=0, atol=1e-12)
    best = oracles.fisher_mode(8, weights.tolist(), capacities)
    assert law.values[law.log_mass.argmax()].tolist() == best


def test_chi_square_notices_a_wrong_law() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05, 0.0])
    rng = np.random.default_rng(0)
    right = rng.multinomial(5_000, probabilities)
    wrong = rng.multinomial(5_000, [0.45, 0.35, 0.15, 0.05, 0.0])
    assert oracles.chi_square_p_value(right, probabilities) > 1e-4
    assert oracles.chi_square_p_value(wrong, probabilities) < 1e-4
    with pytest.raises(AssertionError, match="mass zero"):
        oracles.chi_square_p_value(np.array([1, 1, 1, 1, 1]), probabilities)
