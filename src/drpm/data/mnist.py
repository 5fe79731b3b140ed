"""Small images in ten classes: the digits of scikit-learn, MNIST and Fashion-MNIST.

The files of the latter two are gzipped idx files of 28x28 grey images and their labels.
"""

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from drpm.data.catalogue import DATASETS
from drpm.data.files import obtain, open_content
from drpm.data.types import DataError, Dataset, Split, reason

SIDE = 28
CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)

Digits = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # images (N, 28, 28) and labels (N,)


def load_digits() -> Dataset:
    """1,442 training and 355 test images, (1, 8, 8) in [0, 1]; the target ``label``.

    The data has no official split; we use a fixed one: every fifth image of each digit, in
    scikit-learn's order, is a test image.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    # Counted per digit: the data begins with digits in a fixed cycle.
    of_digit = labels.unsqueeze(1) == torch.arange(len(CLASSES))
    is_test = (of_digit.cumsum(0) * of_digit).sum(1) % 5 == 0
    whole = Split(images, {"label": labels})
    return Dataset("digits", whole[~is_test], whole[is_test], classes={"label": CLASSES})


def read_arrays(name: str = "mnist") -> tuple[Digits, Digits]:
    """Find or download the files, and read the training and the test split."""
    train_x, train_y, test_x, test_y = obtain(DATASETS[name].files).values()
    return _read_pair(train_x, train_y), _read_pair(test_x, test_y)


def load() -> Dataset:
    """60,000 training and 10,000 test images, (1, 28, 28) in [0, 1]; the target ``label``."""
    return _load("mnist", CLASSES)


def load_fashion() -> Dataset:
    """As :func:`load`, of the images of Fashion-MNIST."""
    return _load("fashion-mnist", FASHION_CLASSES)


def _load(name: str, classes: tuple[str, ...]) -> Dataset:
    train, test = (
        Split(
            torch.from_numpy(images).unsqueeze(1).float().div_(255),
            {"label": torch.from_numpy(labels).long()},
        )
        for images, labels in read_arrays(name)
    )
    return Dataset(name, train, test, classes={"label": classes})


def read_idx(path: Path, *shape: int) -> NDArray[np.uint8]:
    """The bytes (N, *shape) in an idx file, gzipped or not.

    The file starts with 00 00 08 and the number of dimensions, then each dimension as a big-endian
    32-bit integer.
    """
    try:
        with open_content(path) as file:
            content = file.read()
    except Exception as error:  # of the disk, or of gzip
        raise DataError(f"{path} cannot be read ({reason(error)}).") from error
    start = 8 + 4 * len(shape)
    count, rest = divmod(len(content) - start, math.prod(shape))
    header = np.array([0x801 + len(shape), count, *shape], ">u4").tobytes() if count > 0 else b""
    if rest or not header or content[:start] != header:
        expected = ", ".join(["N", *map(str, shape)])
        raise DataError(
            f"{path} should be an idx file of bytes ({expected}), but begins with "
            f"{content[:start].hex(' ') or 'nothing'} and has {len(content):,} bytes."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(count, *shape).copy()


def _read_pair(images: Path, labels: Path) -> Digits:
    pixels, numbers = read_idx(images, SIDE, SIDE), read_idx(labels)
    if len(numbers) != len(pixels) or numbers.max() >= len(CLASSES):
        raise DataError(
            f"{labels} should contain {len(pixels):,} labels from 0 to 9, but has "
            f"{len(numbers):,} up to {numbers.max()}."
        )
    return pixels, numbers
