"""Scores of representations of pairs, given the true factors."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr
from torch import Tensor

_MAX_ITERATIONS = 1000
_TREES = 50
# Smaller leaves memorize single points. With 10, disentanglement and completeness of noisy and of
# mixed codes were within 0.015 of those by gradient boosting.
_SMALLEST_LEAF = 10
_BINS = 20


class FactorAccuracy(NamedTuple):
    """Adjusted balanced accuracies: 1 is perfect, 0 is chance.

    mean: Over the factors that have a score; None if none has.
    by_factor: Of each factor; None if there are no pairs to learn it from or to test it on.
    """

    mean: float | None
    by_factor: tuple[float | None, ...]


class PairScores(NamedTuple):
    """Scores of a model on test pairs.

    shared: Accuracy of the shared factors, predicted from the shared dimensions.
    independent: Accuracy of the first image's other factors, predicted from the other dimensions.
    count_error: Mean squared error of the number of shared dimensions as an estimate of the number
        of shared factors.
    mean_count: Mean of that estimate.
    """

    shared: FactorAccuracy
    independent: FactorAccuracy
    count_error: float
    mean_count: float


class DisentanglementScores(NamedTuple):
    """Four scores from 0 to 1, larger is better.

    disentanglement: Whether a dimension depends on one factor only.
    completeness: Whether a factor is encoded by one dimension only.
    informativeness: Accuracy of the factors predicted from the codes of held-out points.
    mutual_information_gap: How far the most informative dimension of a factor is ahead of the next.
    """

    disentanglement: float
    completeness: float
    informativeness: float
    mutual_information_gap: float


def evaluate_pairs(
    codes: Any, mask: Any, factors: Any, is_shared: Any, *, num_train: int | None = None
) -> PairScores:
    """Evaluate what a model takes as shared.

    Linear classifiers predict each factor: from the mean of both images' codes, with zeros in the
    independent dimensions, for the pairs that share the factor; and from the first image's code,
    with zeros in the shared dimensions, for the other pairs.

    Args:
        codes: Posterior means of both images of each pair, (P, 2, d).
        mask: 1 for shared dimensions, else 0, (P, d).
        factors: The values of the factors of both images, (P, 2, F) integers.
        is_shared: Where these are equal by design, (P, F).
        num_train: Number of pairs, from the front, that classifiers are trained on; they are
            tested on the others. By default two thirds.
    """
    codes = require_numbers("codes", codes, "P, 2, d")
    mask = _require_mask("mask", mask, "P, d")
    factors = require_numbers("factors", factors, "P, 2, F", whole=True)
    shared = _require_mask("is_shared", is_shared, "P, F").astype(bool)
    pairs, _, dimensions = codes.shape
    for name, array, expected in (
        ("codes", codes, (pairs, 2, dimensions)),
        ("mask", mask, (pairs, dimensions)),
        ("factors", factors, (pairs, 2, shared.shape[1])),
        ("is_shared", shared, (pairs, factors.shape[2])),
    ):
        if array.shape != expected:
            raise ValueError(f"{name} must have the shape {expected}, but got {array.shape}.")
    if (shared & (factors[:, 0] != factors[:, 1])).any():
        raise ValueError(
            "factors must be equal in both images where is_shared is true, but differ."
        )
    num_train = 2 * pairs // 3 if num_train is None else num_train
    if not 0 < num_train < pairs:
        raise ValueError(f"num_train must be from 1 to {pairs - 1}, but got {num_train}.")
    training = np.arange(pairs) < num_train
    estimate = mask.sum(1)
    return PairScores(
        _accuracy(codes.mean(1) * mask, factors[:, 0], shared, training),
        _accuracy(codes[:, 0] * (1 - mask), factors[:, 0], ~shared, training),
        count_error=float(np.square(estimate - shared.sum(1)).mean()),
        mean_count=float(estimate.mean()),
    )


def _accuracy(
    inputs: NDArray[Any],
    factors: NDArray[Any],
    counts: NDArray[np.bool_],
    training: NDArray[np.bool_],
) -> FactorAccuracy:
    """Of each factor, trained and tested on the pairs (P, F) that count for it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score

    scores: list[float | None] = []
    for values, counted in zip(factors.T, counts.T, strict=True):
        fitted, tested = counted & training, counted & ~training
        if min(len(np.unique(values[fitted])), len(np.unique(values[tested]))) < 2:
            scores.append(None)
            continue
        # Unscaled: standardized, empty dimensions would weigh as much as the others.
        classifier = LogisticRegression(max_iter=_MAX_ITERATIONS)
        predicted = classifier.fit(inputs[fitted], values[fitted]).predict(inputs[tested])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "y_pred contains classes not in y_true", UserWarning)
            found = balanced_accuracy_score(values[tested], predicted, adjusted=True)
        scores.append(float(found))
    known = [score for score in scores if score is not None]
    return FactorAccuracy(float(np.mean(known)) if known else None, tuple(scores))


def disentanglement_scores(codes: Any, factors: Any, *, seed: int = 0) -> DisentanglementScores:
    r"""DCI (disentanglement, completeness, informativeness) and the mutual information gap.

    Random forests predict every factor from the codes of the first half of the points. With the
    importance :math:`R_{ij}` of dimension i for factor j,

    .. math:: D_i = 1 - H_F(R_{i \cdot} / \sum_j R_{ij}), \quad
        C_j = 1 - H_d(R_{\cdot j} / \sum_i R_{ij})

    with entropies to the base of the number of entries; their means are weighted by the sums.
    Informativeness is the accuracy on the second half, averaged over the factors. Libraries with
    gradient boosting, which is many times slower, may differ in the second digit.

    References:
        Eastwood and Williams, *A framework for the quantitative evaluation of disentangled
        representations*, 2018. Chen, Li, Grosse and Duvenaud, *Isolating sources of disentanglement
        in variational autoencoders*, 2018 (mutual information gap).

    Args:
        codes: The representations, (N, d).
        factors: The values of the factors, (N, F) integers.
        seed: Of the forests.
    """
    from sklearn.ensemble import RandomForestClassifier

    codes = require_numbers("codes", codes, "N, d")
    factors = require_numbers("factors", factors, "N, F", whole=True)
    if len(factors) != len(codes):
        raise ValueError(
            f"factors must have the length of codes, {len(codes)}, but got {len(factors)}."
        )
    if (factors == factors[0]).all(0).any():
        raise ValueError("factors must have two values or more in each column, but one has one.")
    half = len(codes) // 2
    importance = np.empty((codes.shape[1], factors.shape[1]))
    accuracies = []
    for place, values in enumerate(factors.T):
        # Every split chooses among all dimensions, else it would use uninformative ones.
        forest = RandomForestClassifier(
            _TREES,
            max_features=None,
            min_samples_leaf=_SMALLEST_LEAF,
            random_state=seed,
            n_jobs=-1,
        )
        forest.fit(codes[:half], values[:half])
        importance[:, place] = forest.feature_importances_
        accuracies.append(forest.score(codes[half:], values[half:]))
    return DisentanglementScores(
        _concentration(importance),
        _concentration(importance.T),
        float(np.mean(accuracies)),
        mutual_information_gap(codes, factors),
    )


def mutual_information_gap(codes: NDArray[Any], factors: NDArray[Any]) -> float:
    r"""The gap between the two most informative dimensions of a factor.

    .. math:: \frac{1}{F} \sum_j \frac{I(z_{(1)}; v_j) - I(z_{(2)}; v_j)}{H(v_j)}

    Dimensions are discretized into 20 bins of equal width.

    Args:
        codes: The representations, (N, d).
        factors: The values of the factors, (N, F) integers.

    Example:
        >>> codes = np.array([[0.0, 5.0], [0.0, 6.0], [1.0, 5.0], [1.0, 6.0]])
        >>> mutual_information_gap(codes, np.array([[0], [0], [1], [1]]))
        1.0
    """
    from sklearn.metrics import mutual_info_score

    binned = [np.digitize(x, np.histogram_bin_edges(x, _BINS)[1:-1]) for x in codes.T]
    gaps = []
    for values in factors.T:
        # A single dimension is compared with none.
        found = sorted([0.0, *(float(mutual_info_score(values, code)) for code in binned)])
        gaps.append((found[-1] - found[-2]) / mutual_info_score(values, values))
    return float(np.mean(gaps))


def _concentration(importance: NDArray[np.float64]) -> float:
    """1 minus the normalized entropy of rows, averaged with weights that are their sums."""
    sums = importance.sum(1)
    if not sums.any():
        return 0.0
    if importance.shape[1] == 1:
        return 1.0
    shares = importance / np.where(sums > 0, sums, 1)[:, None]
    concentration = 1 - entr(shares).sum(1) / np.log(importance.shape[1])
    return float(np.average(concentration, weights=sums))


def _require_mask(name: str, values: Any, axes: str) -> NDArray[np.float64]:
    array = require_numbers(name, values, axes)
    wrong = array[(array != 0) & (array != 1)]
    if len(wrong):
        raise ValueError(f"{name} must hold zeros and ones, but got {wrong[0]:g}.")
    return array


def require_numbers(name: str, values: Any, axes: str, *, whole: bool = False) -> NDArray[Any]:
    """Finite numbers as an array of float64, or of integers if ``whole``.

    Args:
        name: The argument's name.
        values: A tensor, array or sequence.
        axes: Names of its axes, such as "N, d"; none may be empty.
        whole: Whether the numbers must be integers.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    array = np.asarray(values)
    kinds = "biu" if whole else "biuf"
    if array.ndim != axes.count(",") + 1 or array.size == 0 or array.dtype.kind not in kinds:
        raise ValueError(
            f"{name} must be {'whole ' if whole else ''}numbers of the shape ({axes}), "
            f"but got {array.dtype} of the shape {array.shape}."
        )
    array = array.astype(np.int64 if whole else np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, but some are not.")
    return array
