"""Scores of a clustering against brute force over all matchings and all pairs of points."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

from drpm.clustering.metrics import (
    accuracy,
    adjusted_rand,
    clustering_scores,
    matching,
    normalized_mutual_info,
)

SIZES = [(1, 1), (1, 4), (4, 1), (2, 2), (3, 3), (5, 5), (3, 5), (5, 3)]


def random_pair(num_labels: int, num_clusters: int, seed: int = 0, n: int = 40) -> Any:
    """Labels, and clusters that depend on them; every value occurs."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % num_labels)
    noisy = np.where(rng.random(n) < 0.6, labels, rng.integers(num_clusters, size=n))
    clusters = noisy % num_clusters
    clusters[:num_clusters] = np.arange(num_clusters)
    return labels, clusters


def every_matching(num_labels: int, num_clusters: int) -> Any:
    """All one-to-one maps from clusters to labels that are as large as possible."""
    if num_clusters <= num_labels:
        for chosen in itertools.permutations(range(num_labels), num_clusters):
            yield dict(enumerate(chosen))
    else:
        for chosen in itertools.permutations(range(num_clusters), num_labels):
            yield {cluster: label for label, cluster in enumerate(chosen)}


def hits(labels: Any, clusters: Any, matched: dict[int, int]) -> int:
    return sum(matched.get(int(c)) == label for label, c in zip(labels, clusters, strict=True))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_no_matching_has_more_hits(sizes: tuple[int, int], seed: int) -> None:
    labels, clusters = random_pair(*sizes, seed=seed)
    best = max(hits(labels, clusters, matched) for matched in every_matching(*sizes))
    matched = matching(labels, clusters)
    assert len(matched) == len(set(matched.values())) == min(sizes)
    assert list(matched) == sorted(matched)
    assert hits(labels, clusters, matched) == best
    assert accuracy(labels, clusters) == best / len(labels)


@pytest.mark.parametrize("sizes", SIZES)
def test_adjusted_rand_counts_pairs(sizes: tuple[int, int]) -> None:
    labels, clusters = random_pair(*sizes)
    pairs = list(itertools.combinations(range(len(labels)), 2))
    together = [(labels[i] == labels[j], clusters[i] == clusters[j]) for i, j in pairs]
    both = sum(a and b for a, b in together)
    first, second = (sum(pair[side] for pair in together) for side in (0, 1))
    chance = first * second / len(pairs)
    largest = (first + second) / 2
    expected = 1.0 if largest == chance else (both - chance) / (largest - chance)
    assert adjusted_rand(labels, clusters) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_mutual_information_from_entropies(sizes: tuple[int, int]) -> None:
    def entropy(values: Any) -> float:
        shares = np.array(list(Counter(values).values())) / len(values)
        return float(-(shares * np.log(shares)).sum())

    labels, clusters = (values.tolist() for values in random_pair(*sizes))
    total = entropy(labels) + entropy(clusters)
    shared = total - entropy(list(zip(labels, clusters, strict=True)))
    expected = 2 * shared / total if total else 1.0
    assert normalized_mutual_info(labels, clusters) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_names_do_not_matter(sizes: tuple[int, int]) -> None:
    labels, clusters = random_pair(*sizes)
    names = np.array([17, -4, 900, 3, 0])
    renamed = clustering_scores(labels, names[clusters])
    assert renamed == pytest.approx(clustering_scores(labels, clusters), abs=1e-12)
    assert clustering_scores(names[labels], clusters) == pytest.approx(renamed, abs=1e-12)


def test_points_may_come_in_any_order() -> None:
    labels, clusters = random_pair(4, 4)
    order = np.random.default_rng(1).permutation(len(labels))
    assert clustering_scores(labels[order], clusters[order]) == pytest.approx(
        clustering_scores(labels, clusters), abs=1e-12
    )


def test_the_labels_themselves_score_one() -> None:
    labels, _ = random_pair(5, 5)
    renamed = (labels + 2) % 5
    assert clustering_scores(labels, renamed) == pytest.approx((1.0, 1.0, 1.0))
    assert matching(labels, renamed) == {cluster: (cluster - 2) % 5 for cluster in range(5)}


def test_a_single_cluster_scores_the_largest_class() -> None:
    labels = np.array([0, 1, 1, 1, 2])
    scores = clustering_scores(labels, np.full(5, 9))
    assert scores == pytest.approx((0.0, 0.0, 3 / 5))
    assert matching(labels, np.full(5, 9)) == {9: 1}


def test_a_cluster_for_each_point_finds_one_of_each_class() -> None:
    labels = np.array([0, 0, 0, 1, 1])
    scores = clustering_scores(labels, np.arange(5))
    assert scores.ari == pytest.approx(0.0)
    assert scores.accuracy == pytest.approx(2 / 5)


def test_the_matching_makes_a_confusion_matrix() -> None:
    labels, clusters = random_pair(4, 4)
    matched = matching(labels, clusters)
    table = confusion_matrix(labels, [matched[cluster] for cluster in clusters.tolist()])
    assert np.trace(table) / table.sum() == accuracy(labels, clusters)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_tensors_arrays_and_lists_are_alike(dtype: torch.dtype) -> None:
    labels, clusters = random_pair(3, 4)
    expected = clustering_scores(labels, clusters)
    tensors = torch.from_numpy(labels).to(dtype), torch.from_numpy(clusters).to(dtype)
    assert clustering_scores(*tensors) == expected
    assert clustering_scores(labels.tolist(), tensors[1]) == expected
    assert matching(*tensors) == matching(labels, clusters)
    assert all(type(value) is float for value in expected)
    assert not any(math.isnan(value) for value in expected)


@pytest.mark.parametrize(
    "score", [accuracy, adjusted_rand, clustering_scores, matching, normalized_mutual_info]
)
@pytest.mark.parametrize(
    ("labels", "clusters", "message"),
    [
        ([0, 1], [0, 1, 1], "clusters must have the length of labels, 2, but got 3"),
        ([], [], r"labels must be a vector of whole numbers.* but got shape \(0,\)"),
        ([[0, 1]], [0, 1], r"labels must be a vector of whole numbers.* but got shape \(1, 2\)"),
        ([0, 1], torch.rand(2, 3), r"clusters must be a vector .* shape \(2, 3\) and type float32"),
        ([0, 1], [0.0, 1.0], "clusters must be a vector of whole numbers.* type float64"),
        (3, [0, 1], r"labels must be a vector of whole numbers.* shape \(\)"),
    ],
)
def test_refusals(score: Any, labels: Any, clusters: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(labels, clusters)
