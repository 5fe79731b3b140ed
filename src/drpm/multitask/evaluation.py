"""What a network with several tasks is worth, and how its neurons are shared out."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from drpm.multitask.models import MultitaskNetwork, Outputs

# So many pixels are looked at together on a CPU, where more do not fit its caches. On a GPU, which
# wants many, memory is the limit: on its way through a network a pixel takes a thousand bytes or
# two.
_PIXELS_AT_ONCE: Final = 2**19
_BYTES_OF_A_PIXEL: Final = 2**11

# What is logged of a look at the test part.
ACCURACY: Final = "test_accuracy"
ACCURACIES: Final = "test_accuracies"
SIZES: Final = "test_sizes"

# What is reported of the epoch whose mean accuracy on the test part is best.
BEST_ACCURACY: Final = "best_test_epoch_accuracy"


class TaskScores(NamedTuple):
    """What is reported of a network on test images.

    Arguments:
        accuracies: (T,), the part of the images that each task tells rightly.
        sizes: (T,), how many neurons each task has, on average; none where all have all.
        shares: (T, n), the part of the images for which a task has most of a neuron.
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
def evaluate_in_chunks(network: MultitaskNetwork, images: Tensor) -> Iterator[Outputs]:
    """What a network in evaluation mode makes of images, some at a time.

    Arguments:
        network: At the temperature that its training ends with.
        images: (N, C, H, W), bytes, on any device.
    """
    temperature = _temperature(network)
    for part in _parts(images, temperature.device):
        yield network(images[part].to(temperature.device), temperature)


def score_tasks(network: MultitaskNetwork, images: Tensor, targets: Tensor) -> TaskScores:
    """Judge a network in evaluation mode.

    Arguments:
        network: The network.
        images: (N, C, H, W), bytes.
        targets: (N, T).
    """
    device = network.mean.device
    outputs = evaluate_in_chunks(network, images)
    truths = [targets[part].to(device) for part in _parts(images, device)]
    counts = [_count(each, truth) for each, truth in zip(outputs, truths, strict=True)]
    return TaskScores(**_means(counts, len(images)))


@torch.no_grad()
def score_stack(
    network: MultitaskNetwork,
    tensors: Mapping[str, Tensor],
    images: Sequence[Tensor],
    targets: Sequence[Tensor],
) -> list[TaskScores]:
    """Judge several networks at once, each on its own images.

    Arguments:
        network: One in evaluation mode, which lends its structure.
        tensors: The parameters and buffers of all, with a leading axis.
        images: (N, C, H, W), bytes, of every network.
        targets: (N, T), of every network.
    """
    temperature = _temperature(network)
    device = temperature.device

    def count(own: dict[str, Tensor], images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return _count(functional_call(network, own, (images, temperature)), targets)

    counts = []
    for part in _parts(images[0], device, len(images)):
        chunks = [torch.stack([x[part] for x in each]).to(device) for each in (images, targets)]
        counts.append(vmap(count)(dict(tensors), *chunks))
    means = _means(counts, len(images[0]))
    return [TaskScores(**{name: x[run] for name, x in means.items()}) for run in range(len(images))]


def _temperature(network: MultitaskNetwork) -> Tensor:
    """What a network is used at, on its device."""
    last = network.config.temperature[1]
    return torch.tensor(last, dtype=network.mean.dtype, device=network.mean.device)


def _parts(images: Tensor, device: torch.device, runs: int = 1) -> Iterator[slice]:
    """Images that a device can take at once, for so many networks together."""
    pixels = _PIXELS_AT_ONCE
    if device.type == "cuda":
        pixels = torch.cuda.get_device_properties(device).total_memory // _BYTES_OF_A_PIXEL
    step = max(1, pixels // (runs * images[0].numel()))
    return (slice(start, start + step) for start in range(0, len(images), step))


def _count(outputs: Outputs, targets: Tensor) -> dict[str, Tensor]:
    """The scores of some images, summed over them."""
    right = outputs.logits.argmax(-1).mT == targets
    counts = {"accuracies": right.double().sum(0)}
    masks, sizes = outputs.shared.masks, outputs.shared.sizes
    if masks is not None and sizes is not None:
        tasks = torch.arange(len(masks), device=masks.device)[:, None, None]
        owned = masks.argmax(0) == tasks
        counts |= {"sizes": sizes.double().sum(0), "shares": owned.double().sum(1)}
    return counts


def _means(counts: Sequence[Mapping[str, Tensor]], images: int) -> dict[str, Tensor]:
    """From sums over parts of the images to means over all of them."""
    sums = {name: torch.stack([part[name] for part in counts]).sum(0) for name in counts[0]}
    return {name: x.cpu() / images for name, x in sums.items()}


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


def chance_correlation(tasks: int) -> float:
    """How far rank correlations stray from zero where ranks have nothing to do with each other.

    Arguments:
        tasks: How many there are, at least two.

    Example:
        >>> chance_correlation(10)
        0.3333333333333333
    """
    return float((tasks - 1) ** -0.5)
