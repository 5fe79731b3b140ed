"""Agreement of a clustering with known labels, invariant to the names of the clusters."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor


def clustering_scores(labels: Any, clusters: Any) -> dict[str, float]:
    """Normalized mutual information, adjusted Rand index and :func:`accuracy`.

    Args:
        labels: The class of each point, (n,) integers in a tensor, array or sequence.
        clusters: The cluster of each point, likewise.

    Example:
        >>> scores = clustering_scores([0, 0, 1, 1, 2, 2], [2, 2, 0, 0, 1, 0])
        >>> {name: round(score, 3) for name, score in scores.items()}
        {'nmi': 0.74, 'ari': 0.444, 'accuracy': 0.833}
    """
    pair = _integers(labels), _integers(clusters)
    return {
        "nmi": float(normalized_mutual_info_score(*pair)),
        "ari": float(adjusted_rand_score(*pair)),
        "accuracy": accuracy(*pair),
    }


def accuracy(labels: Any, clusters: Any) -> float:
    """The accuracy under the best one-to-one matching of clusters and labels.

    References:
        Kuhn, *The Hungarian method for the assignment problem*, 1955.

    Args:
        labels: The class of each point, (n,) integers in a tensor, array or sequence.
        clusters: The cluster of each point, likewise.

    Example:
        >>> accuracy([0, 0, 1, 1], [5, 5, 3, 5])
        0.75
    """
    table = contingency_matrix(_integers(labels), _integers(clusters))
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())


def _integers(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
