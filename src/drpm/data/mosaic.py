"""Mosaic: a grid of small digits in one image, one task per tile, each with its own noise.

A benchmark for many tasks of known difficulty. Every tile holds a random digit of MNIST, reduced
to 14x14 pixels; each of its pixels is set to zero with the tile's noise ratio. The ratios are
spread evenly from 0 to 0.9 over the tasks; see :func:`noise_ratios`. Tasks are numbered row by row
in a grid that is as near to a square as possible; places left over in the last row are black.
"""

import math

import torch
from pydantic import PositiveInt
from torch.nn.functional import pad

from drpm.data import mnist
from drpm.data.multimnist import generators
from drpm.data.types import Dataset, Split

TILE = 14
MAX_NOISE = 0.9

_CHUNK_TILES = 20_000  # tiles made at once


def task_names(num_tasks: int) -> tuple[str, ...]:
    """The names of the targets: task_00, task_01, ..."""
    digits = max(2, len(str(num_tasks - 1)))
    return tuple(f"task_{task:0{digits}}" for task in range(num_tasks))


def noise_ratios(num_tasks: int) -> tuple[float, ...]:
    r"""The probability that a pixel is dropped, for each task.

    The ratios are :math:`0.9\, r_k / (n_T - 1)`, where :math:`r_k` is the rank of the fractional
    part of :math:`k \varphi` among those of all tasks and :math:`\varphi` is the golden ratio: a
    fixed shuffle with easy and hard tasks among any few neighbours.

    Example:
        >>> [round(ratio, 2) for ratio in noise_ratios(4)]
        [0.0, 0.6, 0.3, 0.9]
    """
    golden = (1 + math.sqrt(5)) / 2
    parts = [task * golden % 1 for task in range(num_tasks)]
    ranks = {part: rank for rank, part in enumerate(sorted(parts))}
    return tuple(MAX_NOISE * ranks[part] / max(num_tasks - 1, 1) for part in parts)


def grid_shape(num_tasks: int) -> tuple[int, int]:
    """The rows and columns of tiles."""
    columns = math.isqrt(num_tasks - 1) + 1
    return math.ceil(num_tasks / columns), columns


def load(
    *,
    seed: int = 0,
    num_tasks: PositiveInt = 10,
    num_train: PositiveInt = 20_000,
    num_test: PositiveInt = 5_000,
    binary: bool = False,
) -> Dataset:
    """Mosaics (1, 14 rows, 14 columns) in [0, 1]; the targets ``task_00``, ``task_01``, ...

    An image takes 9 KiB at 10 tasks and 32 KiB at 40.

    Args:
        seed: Seed of the digits and the noise; the noise ratios depend on ``num_tasks`` alone.
        num_tasks: The number of tiles.
        num_train: The number of training images, made of MNIST's training digits.
        num_test: The number of test images, made of MNIST's test digits.
        binary: Whether the tasks are to tell even digits from odd ones.
    """
    names, kinds = task_names(num_tasks), mnist.CLASSES
    parts = mnist.read_arrays()
    if binary:
        (train_x, train_y), (test_x, test_y) = parts
        parts, kinds = ((train_x, 1 - train_y % 2), (test_x, 1 - test_y % 2)), ("odd", "even")
    train = _split(parts[0], names, seed, 0, num_train)
    test = _split(parts[1], names, seed, 1, num_test)
    classes = dict.fromkeys(names, kinds)
    preprocessing = {"noise_ratios": torch.tensor(noise_ratios(num_tasks))}
    return Dataset("mosaic", train, test, classes=classes, preprocessing=preprocessing)


def _split(source: mnist.Digits, names: tuple[str, ...], seed: int, part: int, count: int) -> Split:
    (images, labels), num_tasks = map(torch.from_numpy, source), len(names)
    rows, columns = grid_shape(num_tasks)
    # Half the sides: the mean of each 2x2 pixels, rounded to a byte.
    quads = images.view(-1, TILE, 2, TILE, 2).sum(dim=(2, 4), dtype=torch.int16)
    small = quads.add_(2).div_(4, rounding_mode="floor").byte()
    generator, noise_generator = generators(seed, part)
    chosen = torch.randint(len(images), (count, num_tasks), generator=generator)
    ratios = torch.tensor(noise_ratios(num_tasks))[:, None, None]
    inputs = torch.empty(count, 1, rows * TILE, columns * TILE)
    chunk = max(1, _CHUNK_TILES // num_tasks)
    for start in range(0, count, chunk):
        drawn = small[chosen[start : start + chunk]].float().div_(255)
        drawn.mul_(torch.rand(drawn.shape, generator=noise_generator) >= ratios)
        tiles = pad(drawn, (0, 0, 0, 0, 0, rows * columns - num_tasks))
        tiles = tiles.view(-1, rows, columns, TILE, TILE).transpose(2, 3)
        inputs[start : start + chunk] = tiles.reshape(-1, *inputs.shape[1:])
    numbers = labels.long()[chosen]
    targets = {name: numbers[:, task].contiguous() for task, name in enumerate(names)}
    return Split(inputs, targets)
