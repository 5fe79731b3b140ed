"""Data with several tasks: images as bytes, and a class of every image for every task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drpm.data.types import Dataset, Split
from drpm.training.checks import require_classes
from drpm.training.errors import ConfigError

# Turned into bytes at once, so that memory holds little besides the result.
_IMAGES_AT_ONCE = 10_000
_SMALLEST_STD = 1e-6
# Further outside [0, 1] than this is no rounding.
_ROUNDING = 1e-5


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
        data: The set. Its inputs are bytes, or floats that lie in [0, 1] before they are
            normalised; its targets are classes from 0 on, in both parts.
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


def shown_tasks(tasks: Sequence[str], ratios: Sequence[float]) -> dict[str, str]:
    """From the names of tasks, in the order of :func:`by_noise`, to what people see of them.

    Example:
        >>> shown_tasks(["left", "right"], [0.5, 0.0])
        {'right': 'right (0.00)', 'left': 'left (0.50)'}
    """
    order = by_noise(len(tasks), ratios)
    return {tasks[x]: f"{tasks[x]} ({ratios[x]:.2f})" if ratios else tasks[x] for x in order}


def _applied(data: Dataset, name: str, otherwise: float) -> Tensor:
    """What every channel was normalised with, (C, 1, 1)."""
    nothing = torch.tensor(otherwise, device=data.train.inputs.device)
    value = data.preprocessing.get(name, nothing)
    return value.reshape(-1, 1, 1).expand(data.input_shape[0], 1, 1).clone()


def _bytes(data: Dataset, part: str, examples: int | None, mean: Tensor, std: Tensor) -> Tensor:
    """The first images of a part, as they were before they were normalised."""
    split: Split = getattr(data, part)
    inputs, name = split.inputs[:examples], f"{part}.inputs"
    known = inputs.dtype == torch.uint8 or inputs.is_floating_point()
    if not known or inputs.shape[1:] != data.input_shape:
        raise ConfigError(
            f"{name} must be bytes, or floats in [0, 1], of the shape "
            f"(N, {', '.join(map(str, data.input_shape))}), "
            f"but got {inputs.dtype} of the shape {tuple(inputs.shape)}."
        )
    if inputs.dtype == torch.uint8:
        return inputs.clone()
    normalised = {"mean", "std"} & {*data.preprocessing}
    what = f"{name} without its normalisation" if normalised else f"{name} of floats"
    parts = inputs.split(_IMAGES_AT_ONCE)
    return torch.cat([pixel_bytes(part * std + mean, what) for part in parts])


def pixel_bytes(pixels: Tensor, what: str, hint: str = "") -> Tensor:
    """Pixels in [0, 1], but for rounding, as bytes; others are refused.

    Arguments:
        pixels: One or more.
        what: What they are, for the sentence that refuses them.
        hint: How that sentence ends.
    """
    low, high = pixels.min().item(), pixels.max().item()
    # Asked this way round, what is not a number is refused as well.
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise ConfigError(
            f"{what} must lie in [0, 1], but got values from {low:.4g} to {high:.4g}{hint}."
        )
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


def _targets(data: Dataset, part: str, examples: int | None) -> Tensor:
    """The classes of the first images of a part for every task, (N, T)."""
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
