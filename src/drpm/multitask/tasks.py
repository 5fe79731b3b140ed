"""Data with several tasks: images as bytes, and a class of every image for every task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drpm.data.types import Dataset, Split
from drpm.distributions.validation import describe
from drpm.training.config import require_classes
from drpm.training.errors import ConfigError

COMMON = "common"
"""The name of the subset of neurons that all tasks see."""

_ROUNDING = 1e-5  # of pixels outside [0, 1]


@dataclass(frozen=True)
class TaskData:
    """Training and test images of several tasks.

    Args:
        name: Name of the data set.
        images: (N, C, H, W), bytes.
        targets: (N, T), classes.
        test_images: The same for the test split.
        test_targets: Likewise.
        classes: Maps the name of each task to its number of classes.
        mean: (C, 1, 1), mean of the pixels in [0, 1].
        std: (C, 1, 1), their standard deviation.
        noise_ratios: (T,), the noise ratio of each task, if known.
        content_hash: Content hash of your own data; empty for a named data set.
    """

    name: str
    images: Tensor
    targets: Tensor
    test_images: Tensor
    test_targets: Tensor
    classes: Mapping[str, int]
    mean: Tensor
    std: Tensor
    noise_ratios: tuple[float, ...] = ()
    content_hash: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.classes)

    def labels(self, *, common: bool = False) -> dict[int, str]:
        """From the index of each task to its display name, ordered by noise ratio, if known.

        A common subset comes first, so that it is shown whatever the number of tasks.
        """
        first = {len(self.tasks): COMMON} if common else {}
        if not self.noise_ratios:
            return first | dict(enumerate(self.tasks))
        noisy = sorted(enumerate(self.noise_ratios), key=lambda each: each[1])
        return first | {index: f"{self.tasks[index]} ({ratio:.2f})" for index, ratio in noisy}


def read_tasks(
    data: Dataset, *, train_examples: int | None = None, test_examples: int | None = None
) -> TaskData:
    """The tasks of a data set of images: one for each target that has classes.

    Pixels are normalized as the data set says, or else by the mean and standard deviation of each
    channel of the training split.

    Args:
        data: The data set. Its inputs are bytes, or floats in [0, 1] before normalization; its
            targets are classes from 0 on.
        train_examples: Number of training examples, the first ones; None for all.
        test_examples: The same for the test split.
    """
    shape = tuple(data.input_shape)
    if len(shape) != 3:
        raise ConfigError(
            f"data must contain images for several tasks, but {data.name} has inputs of shape "
            f"{shape}."
        )
    if not data.classes:
        raise ConfigError(f"data must have targets with classes, but {data.name} has none.")
    mean, std = (
        data.preprocessing.get(name, torch.tensor(default, device=data.train.inputs.device))
        .reshape(-1, 1, 1)
        .expand(shape[0], 1, 1)
        for name, default in (("mean", 0.0), ("std", 1.0))
    )
    images, targets = _read(data, "train", train_examples, mean, std)
    test = _read(data, "test", test_examples, mean, std)
    if "mean" not in data.preprocessing:
        mean, std = _moments(images)
    classes = {task: len(names) for task, names in data.classes.items()}
    ratios = data.preprocessing.get("noise_ratios")
    noise = () if ratios is None else tuple(ratios.tolist())
    return TaskData(data.name, images, targets, *test, classes, mean.clone(), std.clone(), noise)


def _read(
    data: Dataset, part: str, examples: int | None, mean: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """The first images of a part, before normalization, and their classes (N, T)."""
    split: Split = getattr(data, part)
    name = f"{part}.inputs before normalization"
    images = [
        as_bytes(name, x * std + mean if x.is_floating_point() else x, data.input_shape)
        for x in split.inputs[:examples].split(10_000)  # to save memory
    ]
    columns = []
    for task, names in data.classes.items():
        column = split.targets[task][:examples]
        require_classes(f"{part}.targets[{task!r}]", column, len(column), len(names))
        columns.append(column.long())
    return torch.cat(images), torch.stack(columns, -1)


def as_bytes(name: str, images: Any, shape: Sequence[int]) -> Tensor:
    """Images (N, C, H, W) as bytes, from bytes or from floats in [0, 1]; others are refused."""
    if (
        not isinstance(images, Tensor)
        or not (images.dtype == torch.uint8 or images.is_floating_point())
        or images.shape[1:] != tuple(shape)
        or len(images) == 0
    ):
        raise ConfigError(
            f"{name} must be bytes, or floats in [0, 1], of shape "
            f"(N, {', '.join(map(str, shape))}), but got {describe(images)}."
        )
    if images.dtype == torch.uint8:
        return images
    low, high = images.min().item(), images.max().item()
    # Written so that NaN is refused.
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise ConfigError(
            f"{name} must lie in [0, 1], but got values from {low:.4g} to {high:.4g}."
        )
    return (255 * images).round_().clamp_(0, 255).to(torch.uint8)


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the pixels of each channel, in [0, 1], from bytes."""
    counts = torch.stack([x.flatten().bincount(minlength=256) for x in images.unbind(1)]).double()
    probs = counts / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64, device=images.device) / 255
    mean = (probs * values).sum(1, keepdim=True)
    std = (probs * (values - mean).square()).sum(1, keepdim=True).sqrt()
    # Constant channels are not scaled.
    std = torch.where(std > 1e-6, std, torch.ones_like(std))
    return mean.float()[..., None], std.float()[..., None]
