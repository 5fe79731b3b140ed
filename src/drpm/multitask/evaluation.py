"""Accuracies of tasks, and how their network's neurons are shared."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from drpm.multitask.models import MultitaskNetwork, Outputs

# Pixels of a batch on a CPU, limited by its caches, and bytes of a pixel in the network on a GPU,
# where memory is the limit.
_PIXELS_AT_ONCE: Final = 2**19
_BYTES_OF_A_PIXEL: Final = 2**11

# Metrics that are logged for the test part.
ACCURACY: Final = "test_accuracy"
ACCURACIES: Final = "test_accuracies"
SIZES: Final = "test_sizes"

# Prefix of the metrics of the epoch with the best mean test accuracy.
BEST_ACCURACY: Final = "best_test_epoch_accuracy"


class TaskScores(NamedTuple):
    """Scores on test images.

    Args:
        accuracies: (T,), of each task.
        sizes: (T,), the mean number of neurons of each task; None if all tasks have all neurons.
        shares: (T, n), the fraction of images for which a task has the largest share of a neuron.
    """

    accuracies: Tensor
    sizes: Tensor | None = None
    shares: Tensor | None = None

    def record(self) -> dict[str, Any]:
        """The scores as a line of metrics."""
        found: dict[str, Any] = {
            ACCURACY: self.accuracies.mean().item(),
            ACCURACIES: self.accuracies.tolist(),
        }
        return found if self.sizes is None else {**found, SIZES: self.sizes.tolist()}


@torch.no_grad()
def evaluate_in_batches(network: MultitaskNetwork, images: Tensor) -> Iterator[Outputs]:
    """The outputs of a network in evaluation mode, at its last temperature.

    Args:
        network: The network.
        images: (N, C, H, W), bytes, on any device.
    """
    like = network.mean
    temperature = torch.tensor(network.config.temperature[1], dtype=like.dtype, device=like.device)
    for part in _batches(images, like.device):
        yield network(images[part].to(like.device), temperature)


def score_tasks(network: MultitaskNetwork, images: Tensor, targets: Tensor) -> TaskScores:
    """Evaluate a network in evaluation mode.

    Args:
        network: The network.
        images: (N, C, H, W), bytes.
        targets: (N, T).
    """
    device = network.mean.device
    sums: dict[str, Tensor] = {}
    parts = _batches(images, device)
    for part, outputs in zip(parts, evaluate_in_batches(network, images), strict=True):
        counts = {"accuracies": outputs.logits.argmax(-1).mT == targets[part].to(device)}
        masks, sizes = outputs.shared.masks, outputs.shared.sizes
        if masks is not None and sizes is not None:
            tasks = torch.arange(len(masks), device=device)[:, None]
            counts |= {"sizes": sizes, "shares": masks.argmax(0)[:, None] == tasks}
        for name, values in counts.items():
            sums[name] = sums.get(name, 0) + values.double().sum(0)
    return TaskScores(**{name: x.cpu() / len(images) for name, x in sums.items()})


def _batches(images: Tensor, device: torch.device) -> Iterator[slice]:
    pixels = _PIXELS_AT_ONCE
    if device.type == "cuda":
        pixels = torch.cuda.get_device_properties(device).total_memory // _BYTES_OF_A_PIXEL
    step = max(1, pixels // images[0].numel())
    return (slice(start, start + step) for start in range(0, len(images), step))


def best_test_epoch(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first record with the best mean test accuracy.

    Chosen on the test part, it is optimistic; the paper reports it.

    Args:
        records: The metrics of a run.
    """
    return max((record for record in records if ACCURACY in record), key=lambda x: x[ACCURACY])


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's; NaN if either is constant.

    Example:
        >>> rank_correlation([1.0, 2.0, 9.0], [0.1, 0.2, 0.3])
        1.0
    """
    from scipy.stats import ConstantInputWarning, spearmanr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        return float(spearmanr(one, other).statistic)


def chance_correlation(tasks: int) -> float:
    """The standard deviation of rank correlations of independent ranks.

    Args:
        tasks: Number of ranks, at least two.

    Example:
        >>> chance_correlation(10)
        0.3333333333333333
    """
    return float((tasks - 1) ** -0.5)
