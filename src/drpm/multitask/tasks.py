"""Data with several tasks: images as bytes, and a class of every image for every task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drpm.data.types import Dataset, Split
from drpm.training.config import require_classes
from drpm.training.errors import ConfigError

# Converted to bytes at once, to save memory.
_IMAGES_AT_ONCE = 10_000
_SMALLEST_STD = 1e-6
# Tolerance of pixels outside [0, 1].
_ROUNDING = 1e-5


@dataclass(frozen=True)
class TaskData:
    """Training and test images of several tasks.

    Args:
        name: Name of the data set.
        images: (N, C, H, W), bytes.
        targets: (N, T), classes.
        test_images: The same of the test part.
        test_targets: Likewise.
        tasks: (T,), their names.
        classes: (T,), their numbers of classes.
        mean: (C, 1, 1), mean of the pixels in [0, 1].
        std: (C, 1, 1), their standard deviation.
        noise_ratios: (T,), of each task, if known.
        content_hash: Of own data; empty for a known data set.
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
    content_hash: str = ""

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H and W."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width


def read_tasks(
    data: Dataset, *, train_examples: int | None = None, test_examples: int | None = None
) -> TaskData:
    """The tasks of a data set of images: one for each target that has classes.

    Pixels are normalized as the data set says, or else by the mean and standard deviation of each
    channel of the training part.

    Args:
        data: The data set. Its inputs are bytes, or floats in [0, 1] before normalization; its
            targets are classes from 0 on.
        train_examples: Number of training examples, from the front; None for all.
        test_examples: The same for the test part.
    """
    if len(data.input_shape) != 3:
        raise ConfigError(
            f"data must hold images for several tasks, but {data.name} has inputs of the shape "
            f"{tuple(data.input_shape)}."
        )
    if not data.classes:
        raise ConfigError(f"data must have targets with classes, but {data.name} has none.")
    targets = _targets(data, "train", train_examples)
    test_targets = _targets(data, "test", test_examples)
    mean, std = (_applied(data, name, value) for name, value in (("mean", 0.0), ("std", 1.0)))
    images = _bytes(data, "train", train_examples, mean, std)
    test_images = _bytes(data, "test", test_examples, mean, std)
    if "mean" not in data.preprocessing:
        mean, std = _moments(images)
    ratios = data.preprocessing.get("noise_ratios")
    return TaskData(
        data.name,
        images,
        targets,
        test_images,
        test_targets,
        tuple(data.classes),
        tuple(len(names) for names in data.classes.values()),
        mean,
        std,
        () if ratios is None else tuple(ratios.tolist()),
    )


def sort_by_noise(count: int, ratios: Sequence[float]) -> list[int]:
    """The order in which tasks are shown: by noise ratio, if known.

    Args:
        count: Number of tasks.
        ratios: Their noise ratios, or nothing.

    Example:
        >>> sort_by_noise(3, [0.9, 0.0, 0.4])
        [1, 2, 0]
    """
    return sorted(range(count), key=ratios.__getitem__ if ratios else None)


def display_names(tasks: Sequence[str], ratios: Sequence[float]) -> dict[str, str]:
    """From the names of tasks, in the order of :func:`sort_by_noise`, to their display names.

    Example:
        >>> display_names(["left", "right"], [0.5, 0.0])
        {'right': 'right (0.00)', 'left': 'left (0.50)'}
    """
    order = sort_by_noise(len(tasks), ratios)
    return {tasks[x]: f"{tasks[x]} ({ratios[x]:.2f})" if ratios else tasks[x] for x in order}


def _applied(data: Dataset, name: str, otherwise: float) -> Tensor:
    """A constant of the normalization of each channel, (C, 1, 1)."""
    nothing = torch.tensor(otherwise, device=data.train.inputs.device)
    value = data.preprocessing.get(name, nothing)
    return value.reshape(-1, 1, 1).expand(data.input_shape[0], 1, 1).clone()


def _bytes(data: Dataset, part: str, examples: int | None, mean: Tensor, std: Tensor) -> Tensor:
    """The first images of a part, before normalization."""
    split: Split = getattr(data, part)
    inputs, name = split.inputs[:examples], f"{part}.inputs"
    valid = inputs.dtype == torch.uint8 or inputs.is_floating_point()
    if not valid or inputs.shape[1:] != data.input_shape:
        raise ConfigError(
            f"{name} must be bytes, or floats in [0, 1], of the shape "
            f"(N, {', '.join(map(str, data.input_shape))}), "
            f"but got {inputs.dtype} of the shape {tuple(inputs.shape)}."
        )
    if inputs.dtype == torch.uint8:
        return inputs.clone()
    parts = inputs.split(_IMAGES_AT_ONCE)
    return torch.cat([pixel_bytes(x * std + mean, f"{name} before normalization") for x in parts])


def pixel_bytes(pixels: Tensor, name: str) -> Tensor:
    """Pixels in [0, 1], but for rounding, as bytes; others are refused."""
    low, high = pixels.min().item(), pixels.max().item()
    # Written so that NaN is refused.
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise ConfigError(
            f"{name} must lie in [0, 1], but got values from {low:.4g} to {high:.4g}."
        )
    return (255 * pixels).round_().clamp_(0, 255).to(torch.uint8)


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the pixels of each channel, in [0, 1]."""

    def pixels() -> Iterator[Tensor]:
        for part in images.split(_IMAGES_AT_ONCE):
            yield part.double().div_(255)

    count = images[:, 0].numel()
    mean = torch.stack([part.sum((0, 2, 3)) for part in pixels()]).sum(0) / count
    centred = [(part - mean[:, None, None]).square().sum((0, 2, 3)) for part in pixels()]
    std = (torch.stack(centred).sum(0) / count).sqrt()
    # Constant channels are not scaled.
    std = torch.where(std > _SMALLEST_STD, std, torch.ones_like(std))
    return mean.float().reshape(-1, 1, 1), std.float().reshape(-1, 1, 1)


def _targets(data: Dataset, part: str, examples: int | None) -> Tensor:
    """The classes of the first images of a part, (N, T)."""
    split: Split = getattr(data, part)
    count = len(split.inputs[:examples])
    columns = []
    for task, names in data.classes.items():
        name = f"{part}.targets[{task!r}]"
        if task not in split.targets:
            raise ConfigError(
                f"{name} must be there, because classes has names for it, but "
                f"got {', '.join(map(repr, split.targets)) or 'no target'}."
            )
        column = split.targets[task][:examples]
        require_classes(name, column, count, len(names))
        columns.append(column.long())
    return torch.stack(columns, -1)
