"""Scores of representations of pairs: given the true factors, and without them."""

import copy
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.factors.models import FactorVAE
from drpm.nn.encoders import standard_divergence

_MAX_ITERATIONS = 1000


class PairScores(NamedTuple):
    """Scores of a model on test pairs.

    Accuracies are adjusted and balanced (1 is perfect, 0 is chance) and averaged over the factors
    that have pairs to learn them from and to test them on; None if there are none.
    """

    shared_accuracy: float | None  # of shared factors, predicted from the shared dimensions
    independent_accuracy: float | None  # of the first image's other factors, from the others
    count_error: float  # squared error of the number of shared dimensions, for that of factors
    mean_count: float  # the mean number of shared dimensions
    shared_from_independent: float | None  # of shared factors, from the independent dimensions
    independent_from_shared: float | None  # of the other factors, from the shared dimensions
    by_factor: dict[str, list[float | None]]  # the four accuracies of every factor


class Evidence(NamedTuple):
    """Means over pairs, in nats.

    Args:
        pair_evidence: Lower bound on the log-probability of both images together: the parts of
            both views are summed, and a shared dimension, one code for both, counts once. If a
            fixed rule chooses the shared dimensions, these are taken as given.
        reconstruction: Negative log-likelihood of an image given its code, averaged over views.
        latent_divergence: KL divergence of the codes from their prior, averaged over views.
        partition_divergence: KL divergence of the shared dimensions, their number and choice, from
            their prior; 0 for a fixed rule.
    """

    pair_evidence: float
    reconstruction: float
    latent_divergence: float
    partition_divergence: float


def evaluate_pairs(codes: Any, mask: Any, factors: Any, is_shared: Any) -> PairScores:
    """Evaluate the shared dimensions of pairs against the true factors.

    Linear classifiers predict each factor from the shared part, the mean of both images' codes
    with zeros in the independent dimensions, and from the independent part, the first image's code
    with zeros in the shared dimensions; separately for the pairs that share the factor and for the
    others. They are trained on the first two thirds of the pairs and tested on the others.

    Args:
        codes: Posterior means of both images of each pair, (P, 2, d).
        mask: 1 for shared dimensions, else 0, (P, d).
        factors: The values of the factors of both images, (P, 2, F) integers.
        is_shared: Where these are equal by design, (P, F).
    """
    codes, mask, factors, is_shared = map(_to_array, (codes, mask, factors, is_shared))
    pairs, latent, width = len(codes), codes.shape[-1], is_shared.shape[-1]
    for name, array, shape, expected, holds in (
        ("codes", codes, (pairs, 2, latent), "finite numbers", np.isfinite(codes)),
        ("mask", mask, (pairs, latent), "zeros and ones", np.isin(mask, (0, 1))),
        ("factors", factors, (pairs, 2, width), "integers", factors == factors.round()),
        ("is_shared", is_shared, (pairs, width), "zeros and ones", np.isin(is_shared, (0, 1))),
    ):
        if array.shape != shape or array.size == 0:
            raise ValueError(f"{name} must have shape {shape}, but got {array.shape}.")
        if not holds.all():
            raise ValueError(f"{name} must contain {expected}, but got {array[~holds][0]:g}.")
    shared, values = is_shared.astype(bool), factors[:, 0].astype(np.int64)
    if (shared & (factors[:, 0] != factors[:, 1])).any():
        raise ValueError(
            "factors must be equal in both images where is_shared is true, but differ."
        )
    shared_part, independent_part = codes.mean(1) * mask, codes[:, 0] * (1 - mask)
    by_factor = {
        "shared_accuracy": _accuracies(shared_part, values, shared),
        "independent_accuracy": _accuracies(independent_part, values, ~shared),
        "shared_from_independent": _accuracies(independent_part, values, shared),
        "independent_from_shared": _accuracies(shared_part, values, ~shared),
    }
    known = {name: [x for x in found if x is not None] for name, found in by_factor.items()}
    means = {name: float(np.mean(found)) if found else None for name, found in known.items()}
    count = mask.sum(1)
    error = float(np.square(count - shared.sum(1)).mean())
    return PairScores(
        **means, count_error=error, mean_count=float(count.mean()), by_factor=by_factor
    )


def _accuracies(
    inputs: NDArray[Any], factors: NDArray[Any], counts: NDArray[np.bool_]
) -> list[float | None]:
    """Of every factor, learned and tested on the pairs (P, F) that count for it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score

    training = np.arange(len(inputs)) < 2 * len(inputs) // 3
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
            score = balanced_accuracy_score(values[tested], predicted, adjusted=True)
        scores.append(float(score))
    return scores


def _to_array(values: Any) -> NDArray[np.float64]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double()
    return np.atleast_1d(np.asarray(values, np.float64))


@torch.no_grad()
def estimate_evidence(
    model: FactorVAE, first: Tensor, second: Tensor, *, label: Tensor | None = None, seed: int = 0
) -> Evidence:
    """A lower bound on the log-probability of pairs, computed without labels.

    All weights are 1 and the probability of a partition is exact, regardless of the training
    settings, so models of one method with different weights can be compared. Do not compare
    methods if one of them has a fixed rule, whose partition costs nothing.

    Args:
        model: The model.
        first: (P, C, H, W), values in [0, 1]; held-out pairs.
        second: The same.
        label: (P,), a factor that differs, for the method ``label``.
        seed: Random seed of the partitions and codes, one sample of each per pair.
    """
    model = copy.deepcopy(model)
    model.aggregation.config = replace(model.config, gamma=1.0, delta=1.0, objective="exact")
    temperature = model.last_temperature
    generator = torch.Generator(temperature.device).manual_seed(seed)
    found = []
    for batch in model.batches(first, second, label):
        # Sampled, since the bound is an expectation over partitions.
        _, aggregated, shared = model.compare(batch, temperature, generator)
        errors = model.errors(batch, aggregated.sample((), generator)).mean(0)
        latent = standard_divergence(aggregated)
        once = (shared.mask * latent).sum(-1).mean(0)
        partition = torch.stack([torch.zeros_like(once), *shared.terms.values()]).sum(0)
        parts = [errors, latent.sum(-1).mean(0), partition, once]
        found.append(torch.stack(parts).double())
    reconstruction, latent, partition, once = torch.cat(found, 1).mean(1).tolist()
    evidence = -(2 * (reconstruction + latent) - once + partition)
    return Evidence(evidence, reconstruction, latent, partition)
