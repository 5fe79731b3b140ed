"""Data with several tasks: images as bytes, and a class of every image for every task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drpm.data.types import Dataset, Split
from drpm.training.errors import ConfigError

# Turned into bytes at once, so that memory holds little besides the result.
_IMAGES_AT_ONCE = 10_000
_SMALLEST_STD = 1e-6


@dataclass(frozen=True)
class TaskData:
    """What is learned from, and what is judged on.

    Images are kept as bytes: many runs with data of their own then fit on one card.

    Arguments:
        name: That of the data set.
        images: (N, C, H, W), bytes.
        targets: (N, T), the class of every image for every task.
        test_images: The same of the test part.
        test_targets: Likewise.
        tasks: (T,), their names.
        classes: (T,), how many each has.
        mean: (C, 1, 1), what is taken off pixels in [0, 1].
        std: (C, 1, 1), what they are then divided by.
        noise_ratios: (T,), how noisy each task is, where that is known.
    """

    name: str
    images: Tensor
    targets: Tensor
    test_images: Tensor
    test_targets: Tensor
    tasks: tuple[str, ...]
    classes: tuple[int, ...]
    mean: Tensor
    std: Tensor
    noise_ratios: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H and W."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width


def read_tasks(
    data: Dataset, *, train_examples: int | None = None, test_examples: int | None = None
) -> TaskData:
    """The tasks of a data set of images: one for each target that has classes.

    Pixels are normalised as the set says; where it says nothing, by the mean and the deviation of
    every channel of the training part.

    Arguments:
        data: The set.
        train_examples: Take only the first so many; none for all.
        test_examples: The same for the test part.
    """
    if len(data.input_shape) != 3:
        raise ConfigError(
            f"data must hold images for several tasks, but {data.name} has inputs of the shape "
            f"{tuple(data.input_shape)}."
        )
    if not data.classes:
        raise ConfigError(f"data must have targets with classes, but {data.name} has none.")
    mean, std = (_applied(data, name, value) for name, value in (("mean", 0.0), ("std", 1.0)))
    images = _bytes(data.train.inputs[:train_examples], mean, std)
    test_images = _bytes(data.test.inputs[:test_examples], mean, std)
    if "mean" not in data.preprocessing:
        mean, std = _moments(images)
    ratios = data.preprocessing.get("noise_ratios")
    return TaskData(
        data.name,
        images,
        _targets(data, data.train)[:train_examples],
        test_images,
        _targets(data, data.test)[:test_examples],
        tuple(data.classes),
        tuple(len(names) for names in data.classes.values()),
        mean,
        std,
        () if ratios is None else tuple(ratios.tolist()),
    )


def by_noise(count: int, ratios: Sequence[float]) -> list[int]:
    """The places of tasks in the order in which people see them: the least noisy first.

    Arguments:
        count: How many there are.
        ratios: How noisy each is, or nothing where nobody knows; they then stay as they are.

    Example:
        >>> by_noise(3, [0.9, 0.0, 0.4])
        [1, 2, 0]
    """
    return sorted(range(count), key=ratios.__getitem__ if ratios else None)


def _applied(data: Dataset, name: str, otherwise: float) -> Tensor:
    """What every channel was normalised with, (C, 1, 1)."""
    value = data.preprocessing.get(name, data.train.inputs.new_tensor(otherwise))
    return value.reshape(-1, 1, 1).expand(data.input_shape[0], 1, 1).clone()


def _bytes(inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images as they were before they were normalised."""
    return torch.cat([pixel_bytes(part * std + mean) for part in inputs.split(_IMAGES_AT_ONCE)])


def pixel_bytes(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1], but for rounding, as bytes."""
    return (255 * pixels).round_().clamp_(0, 255).to(torch.uint8)


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the pixels of every channel, in [0, 1]."""

    def pixels() -> Iterator[Tensor]:
        for part in images.split(_IMAGES_AT_ONCE):
            yield part.double().div_(255)

    count = images[:, 0].numel()
    mean = torch.stack([part.sum((0, 2, 3)) for part in pixels()]).sum(0) / count
    centred = [(part - mean[:, None, None]).square().sum((0, 2, 3)) for part in pixels()]
    std = (torch.stack(centred).sum(0) / count).sqrt()
    # Pixels that are all alike, but for rounding, have nothing to be divided by.
    std = torch.where(std > _SMALLEST_STD, std, torch.ones_like(std))
    return mean.float().reshape(-1, 1, 1), std.float().reshape(-1, 1, 1)


def _targets(data: Dataset, split: Split) -> Tensor:
    return torch.stack([split.targets[task] for task in data.classes], -1)
