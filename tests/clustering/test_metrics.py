"""Clustering scores against brute force over all matchings."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from drpm.clustering.metrics import accuracy, clustering_scores


def random_pair(num_labels: int, num_clusters: int, n: int = 40) -> Any:
    """Labels, and clusters that depend on them; every value occurs."""
    rng = np.random.default_rng(0)
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


@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (4, 1), (2, 2), (5, 5), (3, 5), (5, 3)])
def test_no_matching_has_more_hits(sizes: tuple[int, int]) -> None:
    labels, clusters = random_pair(*sizes)
    best = max(
        sum(matched.get(int(c)) == label for label, c in zip(labels, clusters, strict=True))
        for matched in every_matching(*sizes)
    )
    assert accuracy(labels, clusters) == best / len(labels)


def test_scores_are_invariant_to_names_and_types() -> None:
    labels, clusters = random_pair(4, 5)
    expected = clustering_scores(labels, clusters)
    assert expected["nmi"] == normalized_mutual_info_score(labels, clusters)
    assert expected["ari"] == adjusted_rand_score(labels, clusters)
    names = np.array([17, -4, 900, 3, 0])
    assert clustering_scores(names[labels], names[clusters]) == pytest.approx(expected, abs=1e-12)
    assert clustering_scores(labels.tolist(), torch.from_numpy(clusters)) == expected
    assert clustering_scores(labels, (labels + 2) % 4) == pytest.approx(
        dict.fromkeys(expected, 1.0)
    )
