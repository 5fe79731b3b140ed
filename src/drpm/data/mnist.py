"""scikit-learn's digits, MNIST, Fashion-MNIST, and images of several MNIST digits."""

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn.functional import interpolate, pad

from drpm.data.catalogue import DATASETS
from drpm.data.files import obtain, open_content
from drpm.data.types import DataError, Dataset, Split, reason

CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
MEAN, STD = 0.1307, 0.3081  # of the pixels of MNIST

_SIDE, _TILE = 28, 14
_CHUNK = 2000  # images made at once

Digits = tuple[Tensor, Tensor]  # images (N, 28, 28) of bytes and labels (N,)


def load_digits() -> Dataset:
    """1,442 training and 355 test images, (1, 8, 8) in [0, 1]; the target ``label``.

    Every fifth image of each digit, in scikit-learn's order, is a test image, since there is no
    official split.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    # Count per digit, because the data starts with digits in a fixed cycle.
    of_digit = labels.unsqueeze(1) == torch.arange(len(CLASSES))
    is_test = (of_digit.cumsum(0) * of_digit).sum(1) % 5 == 0
    whole = Split(images, {"label": labels})
    return Dataset("digits", whole[~is_test], whole[is_test], classes={"label": CLASSES})


def load_mnist(name: str = "mnist", classes: tuple[str, ...] = CLASSES) -> Dataset:
    """60,000 training and 10,000 test images, (1, 28, 28) in [0, 1]; the target ``label``."""
    train, test = (
        Split(images.unsqueeze(1).float().div_(255), {"label": labels})
        for images, labels in read_digits(name)
    )
    return Dataset(name, train, test, classes={"label": classes})


def load_fashion() -> Dataset:
    """As :func:`load_mnist`, of the images of Fashion-MNIST."""
    return load_mnist("fashion-mnist", FASHION_CLASSES)


def load_multimnist(
    *,
    seed: int = 0,
    noise: Annotated[float, Field(ge=0, le=1)] = 0.0,
    num_train: int | None = None,
    num_test: int | None = None,
) -> Dataset:
    """Two digits in one image (1, 28, 28), one of them noisy; the targets ``left`` and ``right``.

    Each digit of MNIST is the left one of one image, at rows and columns 0 to 27 of a canvas of
    36x36 pixels; a random partner is at rows and columns 6 to 33. Overlaps take the brighter pixel.
    The canvas is resized to 28x28, and pixels are normalized with mean 0.1307 and standard
    deviation 0.3081.

    Args:
        seed: Seed of the partners and the noise.
        noise: The probability that a pixel of the right digit is dropped before merging. Pixels
            dropped at a ratio are also dropped at larger ones.
        num_train: The number of training images; by default all 60,000.
        num_test: The number of test images; by default all 10,000.
    """
    train, test = (
        _pair_up(source, seed, part, noise, (num_train, num_test)[part])
        for part, source in enumerate(read_digits())
    )
    classes = {"left": CLASSES, "right": CLASSES}
    preprocessing = {"mean": torch.tensor(MEAN), "std": torch.tensor(STD)}
    return Dataset("multimnist", train, test, classes=classes, preprocessing=preprocessing)


def _pair_up(source: Digits, seed: int, part: int, noise: float, limit: int | None) -> Split:
    digits, numbers = source
    available = len(digits)
    count = available if limit is None else limit
    if not 1 <= count <= available:
        name = ("num_train", "num_test")[part]
        raise DataError(f"{name} must be from 1 to {available:,}, but got {count:,}.")
    generator, noise_generator = _generators(seed, part)
    # Draw all partners, so that fewer images are the first ones.
    partners = torch.randint(available, (available,), generator=generator)[:count]
    inputs = torch.empty(count, 1, _SIDE, _SIDE)
    chunks = (x.split(_CHUNK) for x in (digits[:count], partners, inputs))
    for lefts, rights, made in zip(*chunks, strict=True):
        left, right = lefts.float().div_(255), digits[rights].float().div_(255)
        if noise > 0:
            right.mul_(torch.rand(right.shape, generator=noise_generator) >= noise)
        canvas = torch.maximum(pad(left, (0, 8, 0, 8)), pad(right, (6, 2, 6, 2)))[:, None]
        made.copy_(interpolate(canvas, (_SIDE, _SIDE), mode="bilinear", antialias=True))
    inputs.sub_(MEAN).div_(STD)
    return Split(inputs, {"left": numbers[:count].clone(), "right": numbers[partners]})


def load_mosaic(
    *,
    seed: int = 0,
    num_tasks: PositiveInt = 10,
    num_train: PositiveInt = 20_000,
    num_test: PositiveInt = 5_000,
    binary: bool = False,
) -> Dataset:
    """A grid of small digits in one image; the targets ``task_00``, ``task_01``, ...

    A benchmark for many tasks of known difficulty. Every tile has a random digit of MNIST, reduced
    to 14x14 pixels, each of which is set to zero with the tile's noise ratio, from
    :func:`noise_ratios`. Tasks are numbered row by row in a nearly square grid; unused tiles are
    black. Images are (1, 14 rows, 14 columns) in [0, 1]: 9 KiB at 10 tasks, 32 KiB at 40.

    Args:
        seed: Seed of the digits and the noise; the noise ratios depend only on ``num_tasks``.
        num_tasks: The number of tiles.
        num_train: The number of training images, from MNIST's training digits.
        num_test: The number of test images, from MNIST's test digits.
        binary: Whether to predict the parity of each digit.
    """
    names, ratios = task_names(num_tasks), torch.tensor(noise_ratios(num_tasks))
    splits = []
    for part, (images, labels) in enumerate(read_digits()):
        kinds = 1 - labels % 2 if binary else labels
        count = (num_train, num_test)[part]
        inputs, chosen = _lay_tiles(images, ratios, _generators(seed, part), count)
        targets = {name: kinds[column] for name, column in zip(names, chosen.T, strict=True)}
        splits.append(Split(inputs, targets))
    classes = dict.fromkeys(names, ("odd", "even") if binary else CLASSES)
    train, test = splits
    return Dataset("mosaic", train, test, classes=classes, preprocessing={"noise_ratios": ratios})


def _lay_tiles(
    images: Tensor, ratios: Tensor, generators: tuple[torch.Generator, ...], count: int
) -> tuple[Tensor, Tensor]:
    """Mosaics (count, 1, H, W) of digits with noise, and the digit of each tile, (count, T)."""
    num_tasks = len(ratios)
    columns = math.isqrt(num_tasks - 1) + 1
    rows = math.ceil(num_tasks / columns)
    # Downsample: the mean of each 2x2 pixels, rounded to a byte.
    quads = images.view(-1, _TILE, 2, _TILE, 2).sum(dim=(2, 4), dtype=torch.int16)
    small = quads.add_(2).div_(4, rounding_mode="floor").byte()
    chosen = torch.randint(len(images), (count, num_tasks), generator=generators[0])
    inputs = torch.empty(count, 1, rows * _TILE, columns * _TILE)
    chunk = max(1, 10 * _CHUNK // num_tasks)
    for numbers, made in zip(chosen.split(chunk), inputs.split(chunk), strict=True):
        drawn = small[numbers].float().div_(255)
        drawn.mul_(torch.rand(drawn.shape, generator=generators[1]) >= ratios[:, None, None])
        tiles = pad(drawn, (0, 0, 0, 0, 0, rows * columns - num_tasks))
        tiles = tiles.view(-1, rows, columns, _TILE, _TILE).transpose(2, 3)
        made.copy_(tiles.reshape(made.shape))
    return inputs, chosen


def task_names(num_tasks: int) -> tuple[str, ...]:
    """The names of the targets of a mosaic: task_00, task_01, ..."""
    digits = max(2, len(str(num_tasks - 1)))
    return tuple(f"task_{task:0{digits}}" for task in range(num_tasks))


def noise_ratios(num_tasks: int) -> tuple[float, ...]:
    r"""The probability that a pixel is dropped, for each task of a mosaic.

    The ratios are :math:`0.9\, r_k / (n_T - 1)`, where :math:`r_k` is the rank of the fractional
    part of :math:`k \varphi` and :math:`\varphi` the golden ratio: a fixed shuffle that mixes easy
    and hard tasks.

    Example:
        >>> [round(ratio, 2) for ratio in noise_ratios(4)]
        [0.0, 0.6, 0.3, 0.9]
    """
    golden = (1 + math.sqrt(5)) / 2
    parts = [task * golden % 1 for task in range(num_tasks)]
    ranks = {part: rank for rank, part in enumerate(sorted(parts))}
    return tuple(0.9 * ranks[part] / max(num_tasks - 1, 1) for part in parts)


def _generators(seed: int, part: int) -> tuple[torch.Generator, ...]:
    """The generators of digits and of noise for one split: 0 for training, 1 for testing."""
    words = np.random.SeedSequence([seed, part]).generate_state(2, np.uint64)
    return tuple(torch.Generator().manual_seed(int(word >> np.uint64(1))) for word in words)


def read_digits(name: str = "mnist") -> list[Digits]:
    """Find or download the files, and read the training and the test split."""
    train_x, train_y, test_x, test_y = obtain(DATASETS[name].files).values()
    splits = []
    for images, labels in ((train_x, train_y), (test_x, test_y)):
        pixels, numbers = read_idx(images, _SIDE, _SIDE), read_idx(labels)
        if len(numbers) != len(pixels) or numbers.max() >= len(CLASSES):
            raise DataError(
                f"{labels} should contain {len(pixels):,} labels from 0 to 9, but has "
                f"{len(numbers):,} up to {numbers.max()}."
            )
        splits.append((torch.from_numpy(pixels), torch.from_numpy(numbers).long()))
    return splits


def read_idx(path: Path, *shape: int) -> NDArray[np.uint8]:
    """The bytes (N, *shape) in an idx file, gzipped or not.

    The header is 00 00 08, the number of dimensions, and each as a big-endian 32-bit integer.
    """
    try:
        with open_content(path) as file:
            content = file.read()
    except Exception as error:  # from the disk or gzip
        raise DataError(f"{path} cannot be read ({reason(error)}).") from error
    start = 8 + 4 * len(shape)
    count, rest = divmod(len(content) - start, math.prod(shape))
    header = [0x801 + len(shape), count, *shape]
    if count < 1 or rest or content[:start] != np.array(header, ">u4").tobytes():
        expected = ", ".join(["N", *map(str, shape)])
        raise DataError(
            f"{path} should be an idx file of bytes ({expected}), but begins with "
            f"{content[:start].hex(' ') or 'nothing'} and has {len(content):,} bytes."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(count, *shape).copy()
