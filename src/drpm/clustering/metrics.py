"""How well a clustering agrees with known labels, whatever the clusters are called."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor


class ClusteringScores(NamedTuple):
    """The three scores of a clustering; each is 1 when it equals the labels up to names."""

    nmi: float
    ari: float
    accuracy: float


def clustering_scores(labels: Any, clusters: Any) -> ClusteringScores:
    """Normalised mutual information, adjusted Rand index and accuracy at once.

    Arguments:
        labels: The known class of each point, (n,) whole numbers in a tensor, array or sequence.
        clusters: The cluster of each point, likewise.

    Example:
        >>> scores = clustering_scores([0, 0, 1, 1, 2, 2], [2, 2, 0, 0, 1, 0])
        >>> print(f"{scores.nmi:.3f} {scores.ari:.3f} {scores.accuracy:.3f}")
        0.740 0.444 0.833
    """
    pair = _require_pair(labels, clusters)
    return ClusteringScores(
        nmi=normalized_mutual_info(*pair), ari=adjusted_rand(*pair), accuracy=accuracy(*pair)
    )


def normalized_mutual_info(labels: Any, clusters: Any) -> float:
    r"""Their mutual information over the mean of their entropies.

    .. math:: \frac{2 I(L; C)}{H(L) + H(C)}

    Arguments:
        labels: The known class of each point, (n,) whole numbers in a tensor, array or sequence.
        clusters: The cluster of each point, likewise.

    Example:
        >>> normalized_mutual_info([0, 0, 1, 1], [7, 7, 7, 7])
        0.0
    """
    return float(normalized_mutual_info_score(*_require_pair(labels, clusters)))


def adjusted_rand(labels: Any, clusters: Any) -> float:
    """How many pairs of points they treat alike, corrected for chance.

    References:
        Hubert and Arabie, *Comparing partitions*, 1985.

    Arguments:
        labels: The known class of each point, (n,) whole numbers in a tensor, array or sequence.
        clusters: The cluster of each point, likewise.

    Example:
        >>> adjusted_rand([0, 0, 1, 1], [0, 1, 0, 1])
        -0.5
    """
    return float(adjusted_rand_score(*_require_pair(labels, clusters)))


def accuracy(labels: Any, clusters: Any) -> float:
    """The part of the points whose cluster has their label under the best :func:`matching`.

    Arguments:
        labels: The known class of each point, (n,) whole numbers in a tensor, array or sequence.
        clusters: The cluster of each point, likewise.

    Example:
        >>> accuracy([0, 0, 1, 1], [5, 5, 3, 5])
        0.75
    """
    pair = _require_pair(labels, clusters)
    table = contingency_matrix(*pair)
    return float(table[_best_pairs(table)].sum() / table.sum())


def matching(labels: Any, clusters: Any) -> dict[int, int]:
    """The label of each cluster, so chosen that the most points keep their label.

    No label is given twice. With more clusters than labels some clusters have none, and are not in
    the result.

    References:
        Kuhn, *The Hungarian method for the assignment problem*, 1955.

    Arguments:
        labels: The known class of each point, (n,) whole numbers in a tensor, array or sequence.
        clusters: The cluster of each point, likewise.

    Example:
        >>> matching([0, 0, 1, 1, 2, 2], [2, 2, 0, 0, 1, 0])
        {0: 1, 1: 2, 2: 0}
    """
    pair = _require_pair(labels, clusters)
    rows, columns = _best_pairs(contingency_matrix(*pair))
    # The table's rows and columns are the distinct values in ascending order.
    known, found = (np.unique(values) for values in pair)
    order = np.argsort(columns)
    return dict(zip(found[columns[order]].tolist(), known[rows[order]].tolist(), strict=True))


def _best_pairs(table: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows and columns of the entries with the largest sum, at most one in each line."""
    rows, columns = linear_sum_assignment(table, maximize=True)
    return rows, columns


def _require_pair(labels: Any, clusters: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    first, second = _require_numbers("labels", labels), _require_numbers("clusters", clusters)
    if len(first) != len(second):
        raise ValueError(
            f"clusters must have the length of labels, {len(first)}, but got {len(second)}."
        )
    return first, second


def _require_numbers(name: str, values: Any) -> NDArray[Any]:
    """One whole number for each point."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "biu":
        raise ValueError(
            f"{name} must be a vector of whole numbers, one for each point, "
            f"but got shape {array.shape} and type {array.dtype}."
        )
    return array
