"""How well a representation of pairs keeps apart what two images share and what they do not."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_MAX_ITERATIONS = 1000


class FactorAccuracy(NamedTuple):
    """Adjusted balanced accuracies: 1 where every value is told, 0 for guessing.

    mean: Over the factors that have one; None where none has.
    by_factor: Of each factor; None where there are no pairs to learn it from or to test it on.
    """

    mean: float | None
    by_factor: tuple[float | None, ...]


class PairScores(NamedTuple):
    """What is reported of a model on test pairs.

    shared: How well the shared part tells the values of the shared factors.
    independent: How well the independent part tells the first image's values of the others.
    count_error: Mean squared error of the estimated number of shared factors.
    mean_count: Mean of the estimated number.
    """

    shared: FactorAccuracy
    independent: FactorAccuracy
    count_error: float
    mean_count: float


def evaluate_pairs(
    codes: Any, mask: Any, factors: Any, is_shared: Any, *, num_train: int | None = None
) -> PairScores:
    """All scores at once.

    Arguments:
        codes: The mean representations of both images of each pair, (P, 2, d).
        mask: 1 where a dimension is taken as shared, 0 where it is not, (P, d).
        factors: The values of the factors of both images, (P, 2, F) whole numbers.
        is_shared: Where they are the same by design, (P, F).
        num_train: How many pairs, from the front, the classifiers learn from; the others are what
            they are scored on. By default two thirds.
    """
    inputs = codes, mask, factors, is_shared
    return PairScores(
        shared_accuracy(*inputs, num_train=num_train),
        independent_accuracy(*inputs, num_train=num_train),
        count_error(mask, is_shared),
        float(_require_mask("mask", mask).sum(1).mean()),
    )


def shared_accuracy(
    codes: Any, mask: Any, factors: Any, is_shared: Any, *, num_train: int | None = None
) -> FactorAccuracy:
    """How well a linear classifier tells each shared factor from the shared part of the codes.

    The shared part is the mean of both images' codes, with zeros in the independent dimensions. A
    factor is learnt from, and scored on, the pairs that share it.

    Arguments:
        codes: The mean representations of both images of each pair, (P, 2, d).
        mask: 1 where a dimension is taken as shared, 0 where it is not, (P, d).
        factors: The values of the factors of both images, (P, 2, F) whole numbers.
        is_shared: Where they are the same by design, (P, F).
        num_train: How many pairs, from the front, are learnt from; by default two thirds.
    """
    pairs = _require_pairs(codes, mask, factors, is_shared, num_train)
    return _accuracy(pairs, pairs.codes.mean(1) * pairs.mask, pairs.is_shared)


def independent_accuracy(
    codes: Any, mask: Any, factors: Any, is_shared: Any, *, num_train: int | None = None
) -> FactorAccuracy:
    """How well a linear classifier tells each other factor from the independent part of the codes.

    The independent part is the first image's code, with zeros in the shared dimensions. A factor is
    learnt from, and scored on, the pairs that do not share it, by its value in the first image.

    Arguments:
        codes: The mean representations of both images of each pair, (P, 2, d).
        mask: 1 where a dimension is taken as shared, 0 where it is not, (P, d).
        factors: The values of the factors of both images, (P, 2, F) whole numbers.
        is_shared: Where they are the same by design, (P, F).
        num_train: How many pairs, from the front, are learnt from; by default two thirds.
    """
    pairs = _require_pairs(codes, mask, factors, is_shared, num_train)
    return _accuracy(pairs, pairs.codes[:, 0] * (1 - pairs.mask), ~pairs.is_shared)


def count_error(mask: Any, is_shared: Any) -> float:
    """Mean squared error between the estimated and the true number of shared factors.

    The estimate is the number of shared dimensions as it is, although there may be more dimensions
    than factors.

    Arguments:
        mask: 1 where a dimension is taken as shared, 0 where it is not, (P, d).
        is_shared: Where the factors are the same by design, (P, F).

    Example:
        >>> count_error([[1, 1, 0], [1, 1, 1]], [[True, True], [True, False]])
        2.0
    """
    estimated = _require_mask("mask", mask).sum(1)
    true = _require_mask("is_shared", is_shared).sum(1)
    _require_length("is_shared", len(true), "mask", len(estimated))
    return float(np.square(estimated - true).mean())


class _Pairs(NamedTuple):
    codes: NDArray[Any]
    mask: NDArray[Any]
    factors: NDArray[Any]
    is_shared: NDArray[np.bool_]
    num_train: int


def _accuracy(pairs: _Pairs, part: NDArray[Any], counts: NDArray[np.bool_]) -> FactorAccuracy:
    """Of each factor's value in the first image, told from a part of the codes.

    Arguments:
        pairs: The pairs.
        part: What is told from, (P, d).
        counts: Which pairs count for which factor, (P, F).
    """
    training = np.arange(len(part)) < pairs.num_train
    scores = []
    for factor in range(counts.shape[1]):
        fitted, tested = counts[:, factor] & training, counts[:, factor] & ~training
        known = pairs.factors[:, 0, factor]
        scores.append(_score(part[fitted], known[fitted], part[tested], known[tested]))
    found = [score for score in scores if score is not None]
    return FactorAccuracy(float(np.mean(found)) if found else None, tuple(scores))


def _score(
    inputs: NDArray[Any], values: NDArray[Any], test_inputs: NDArray[Any], test_values: NDArray[Any]
) -> float | None:
    """Of a classifier that is fitted to the first two and scored on the last two."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score

    if min(len(np.unique(values)), len(np.unique(test_values))) < 2:
        return None
    # Logistic regression tells values that lie in a row, such as angles along one dimension. A
    # ridge classifier, though quicker, hides the middle ones behind the outer ones.
    # Codes stay as they are: brought to one scale, dimensions that are empty but for a rest too
    # small to matter to any image would speak as loudly as the others.
    classifier = LogisticRegression(max_iter=_MAX_ITERATIONS)
    predicted = classifier.fit(inputs, values).predict(test_inputs)
    with warnings.catch_warnings():
        # A value that is predicted but does not occur is a mistake like any other.
        warnings.filterwarnings("ignore", "y_pred contains classes not in y_true", UserWarning)
        return float(balanced_accuracy_score(test_values, predicted, adjusted=True))


def _require_pairs(
    codes: Any, mask: Any, factors: Any, is_shared: Any, num_train: int | None
) -> _Pairs:
    codes = require_numbers("codes", codes, "P, 2, d")
    mask = _require_mask("mask", mask)
    factors = require_numbers("factors", factors, "P, 2, F", whole=True)
    is_shared = _require_mask("is_shared", is_shared)
    for name, views in (("codes", codes), ("factors", factors)):
        if views.shape[1] != 2:
            raise ValueError(f"{name} must have the shape (P, 2, ...), but got {views.shape}.")
    for name, array in (("mask", mask), ("factors", factors), ("is_shared", is_shared)):
        _require_length(name, len(array), "codes", len(codes))
    if mask.shape[1] != codes.shape[2]:
        raise ValueError(
            f"mask must have the {codes.shape[2]} dimensions of codes, but got {mask.shape[1]}."
        )
    if is_shared.shape[1] != factors.shape[2]:
        raise ValueError(
            f"is_shared must have the {factors.shape[2]} factors of factors, but got "
            f"{is_shared.shape[1]}."
        )
    is_shared = is_shared.astype(bool)
    if (is_shared & (factors[:, 0] != factors[:, 1])).any():
        raise ValueError(
            "factors must be the same in both images where is_shared says so, but differ."
        )
    num_train = 2 * len(codes) // 3 if num_train is None else num_train
    if not 0 < num_train < len(codes):
        raise ValueError(
            f"num_train must be from 1 to {len(codes) - 1}, less than the number of pairs, but got "
            f"{num_train}."
        )
    return _Pairs(codes, mask, factors, is_shared, num_train)


def _require_mask(name: str, values: Any) -> NDArray[np.float64]:
    array = require_numbers(name, values, "P, d" if name == "mask" else "P, F")
    wrong = array[(array != 0) & (array != 1)]
    if len(wrong):
        raise ValueError(f"{name} must hold zeros and ones, but got {wrong[0]:g}.")
    return array


def _require_length(name: str, length: int, reference: str, expected: int) -> None:
    if length != expected:
        raise ValueError(
            f"{name} must have the length of {reference}, {expected}, but got {length}."
        )


def require_numbers(name: str, values: Any, axes: str, *, whole: bool = False) -> NDArray[Any]:
    """Finite numbers in a tensor, array or sequence, as an array of float64 or whole numbers.

    Arguments:
        name: What an error calls them.
        values: The numbers.
        axes: The names of their axes, such as "N, d"; none may be empty.
        whole: Whether they must be whole.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # Half precision has no counterpart in some arrays.
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
