"""How well partitions of batches agree with the known ones."""

from typing import NamedTuple

import torch
from torch import Tensor

from drpm.training.config import require_classes


class PartitionScores(NamedTuple):
    """What is reported of a model.

    f1: The mean over classes of the F1 score, over all batches together.
    accuracy: The part of the elements that are in the right subset.
    size_error: How far predicted sizes are from the true ones: the mean absolute difference over
        classes and batches.
    """

    f1: float
    accuracy: float
    size_error: float


def partition_scores(labels: Tensor, found: Tensor, classes: int, batch: Tensor) -> PartitionScores:
    """All scores at once.

    Arguments:
        labels: (N,), the class of every element, from 0 to K - 1.
        found: (N,), the subset that it was put into.
        classes: K.
        batch: (N,), the number of the batch that it was in, from 0 to N - 1.

    Example:
        >>> labels, found = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1])
        >>> scores = partition_scores(labels, found, 2, torch.zeros(4, dtype=torch.int64))
        >>> print(f"{scores.f1:.3f} {scores.accuracy:.3f} {scores.size_error:.3f}")
        0.733 0.750 1.000
    """
    count = labels.numel()
    require_classes("labels", labels, count, classes)
    require_classes("found", found, count, classes)
    # Each element may have a batch to itself; a higher number leaves one without any.
    require_classes("batch", batch, count, count)
    table = confusion(labels, found, classes)
    right = table.diagonal().double()
    # A class that nobody has and nobody was put into has the score of one that is always missed.
    members = (table.sum(0) + table.sum(1)).clamp_min(1)
    batches = int(batch.max()) + 1
    sizes = [confusion(batch, each, max(batches, classes)) for each in (labels, found)]
    error = (sizes[0] - sizes[1])[:batches, :classes].abs().double().mean()
    return PartitionScores(
        float((2 * right / members).mean()), float(right.sum() / table.sum()), float(error)
    )


def confusion(labels: Tensor, found: Tensor, classes: int) -> Tensor:
    """(K, K): how many elements of every class are in every subset."""
    places = labels.long() * classes + found.long()
    return torch.bincount(places, minlength=classes**2).reshape(classes, classes)


def shuffled_batches(count: int, size: int, seed: int) -> tuple[Tensor, ...]:
    """Which elements come together: all of them, in batches as near to a size as equal ones can be.

    Arguments:
        count: The number of elements.
        size: That of a batch.
        seed: Settles the order.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order.tensor_split(max(1, round(count / size)))
