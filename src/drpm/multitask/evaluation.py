"""What a network with several tasks is worth, and how its neurons are shared out."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from drpm.multitask.models import MultitaskNetwork, Outputs

# A chunk of images has so many pixels: few enough for memory, and enough for a GPU.
_PIXELS_AT_ONCE: Final = 2**23

# What is logged of a look at the test part.
ACCURACY: Final = "test_accuracy"
ACCURACIES: Final = "test_accuracies"
SIZES: Final = "test_sizes"


class TaskScores(NamedTuple):
    """What is reported of a network on test images.

    Arguments:
        accuracies: (T,), the part of the images that each task tells rightly.
        sizes: (T,), how many neurons each task has, on average; none where all have all.
        shares: (T, n), the part of the images for which a task has most of a neuron.
    """

    accuracies: Tensor
    sizes: Tensor | None
    shares: Tensor | None

    def record(self) -> dict[str, Any]:
        """The scores as a line of metrics."""
        found: dict[str, Any] = {
            ACCURACY: self.accuracies.mean().item(),
            ACCURACIES: self.accuracies.tolist(),
        }
        return found if self.sizes is None else {**found, SIZES: self.sizes.tolist()}


@torch.no_grad()
def evaluate_in_chunks(network: MultitaskNetwork, images: Tensor) -> Iterator[Outputs]:
    """What a network in evaluation mode makes of images, some at a time.

    Arguments:
        network: At the temperature that its training ends with.
        images: (N, C, H, W), bytes, on any device.
    """
    temperature = torch.tensor(
        network.config.temperature[1], dtype=network.mean.dtype, device=network.mean.device
    )
    for chunk in images.split(max(1, _PIXELS_AT_ONCE // images[0].numel())):
        yield network(chunk.to(network.mean.device), temperature)


def score_tasks(network: MultitaskNetwork, images: Tensor, targets: Tensor) -> TaskScores:
    """Judge a network in evaluation mode.

    Arguments:
        network: The network.
        images: (N, C, H, W), bytes.
        targets: (N, T).
    """
    right, sizes, shares, done = [], [], [], 0
    for outputs in evaluate_in_chunks(network, images):
        found = outputs.logits.argmax(-1).T
        truth = targets[done : done + len(found)].to(found.device)
        done += len(found)
        right.append((found == truth).double().sum(0))
        if outputs.shared.sizes is not None and outputs.shared.masks is not None:
            sizes.append(outputs.shared.sizes.double().sum(0))
            owners = outputs.shared.masks.argmax(0)
            tasks = torch.arange(found.shape[-1], device=found.device)[:, None, None]
            shares.append((owners == tasks).double().sum(1))

    def mean(sums: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(sums)).sum(0).cpu() / len(images)

    return TaskScores(mean(right), mean(sizes) if sizes else None, mean(shares) if shares else None)


def best_test_epoch(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of all looks at the test part, the first with the best mean accuracy.

    A figure that is chosen on the test part says more than can be expected of new images; it is
    what the paper reports, and only for comparison with it.

    Arguments:
        records: The metrics of a run, of which some are looks.
    """
    return max((record for record in records if ACCURACY in record), key=lambda x: x[ACCURACY])


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; not a number where either is all alike.

    Example:
        >>> rank_correlation([1.0, 2.0, 9.0], [0.1, 0.2, 0.3])
        1.0
    """
    from scipy.stats import ConstantInputWarning, spearmanr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        return float(spearmanr(one, other).statistic)
