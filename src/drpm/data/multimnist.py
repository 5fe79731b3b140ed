"""MultiMNIST: two digits in one image, one of which may be noisy.

Each digit of MNIST is the left one of one image, on a canvas of 36x36 pixels at rows and columns
0 to 27; a random partner lies at rows and columns 6 to 33. Where they overlap the brighter pixel is
taken. The canvas is then resized to 28x28.

Noise sets each pixel of the right digit to zero with a given probability before the digits are
merged. With the same seed, the pixels dropped at one noise ratio are also dropped at every larger
one.
"""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import interpolate, pad

from drpm.data import mnist
from drpm.data.mnist import SIDE
from drpm.data.types import DataError, Dataset, Split

MEAN, STD = 0.1307, 0.3081

_CHUNK = 2000  # images made at once


def generators(seed: int, part: int) -> tuple[torch.Generator, ...]:
    """The generators of digits and of noise for one split: 0 for training, 1 for testing."""
    words = np.random.SeedSequence([seed, part]).generate_state(2, np.uint64)
    return tuple(torch.Generator().manual_seed(int(word >> np.uint64(1))) for word in words)


def merge(left: Tensor, right: Tensor) -> Tensor:
    """Overlay digits (N, 28, 28) in [0, 1] and resize them to (N, 1, 28, 28)."""
    canvas = torch.maximum(pad(left, (0, 8, 0, 8)), pad(right, (6, 2, 6, 2)))[:, None]
    return interpolate(canvas, (SIDE, SIDE), mode="bilinear", antialias=True)


def load(
    *,
    seed: int = 0,
    noise: Annotated[float, Field(ge=0, le=1)] = 0.0,
    num_train: int | None = None,
    num_test: int | None = None,
) -> Dataset:
    """One image (1, 28, 28) per digit of MNIST; the targets ``left`` and ``right``.

    Pixels are normalized with mean 0.1307 and standard deviation 0.3081.

    Args:
        seed: Seed of the partners and the noise.
        noise: The probability that a pixel of the right digit is dropped.
        num_train: How many of the 60,000 training images to make; by default all.
        num_test: How many of the 10,000 test images to make; by default all.
    """
    train_digits, test_digits = mnist.read_arrays()
    train = _split(train_digits, seed, 0, noise, num_train)
    test = _split(test_digits, seed, 1, noise, num_test)
    classes = {"left": mnist.CLASSES, "right": mnist.CLASSES}
    preprocessing = {"mean": torch.tensor(MEAN), "std": torch.tensor(STD)}
    return Dataset("multimnist", train, test, classes=classes, preprocessing=preprocessing)


def _split(source: mnist.Digits, seed: int, part: int, noise: float, limit: int | None) -> Split:
    digits, numbers = map(torch.from_numpy, source)
    available, numbers = len(digits), numbers.long()
    count = available if limit is None else limit
    if not 1 <= count <= available:
        name = ("num_train", "num_test")[part]
        raise DataError(f"{name} must be from 1 to {available:,}, but got {count:,}.")
    generator, noise_generator = generators(seed, part)
    # All partners are drawn, so that fewer images are the first of all.
    partners = torch.randint(available, (available,), generator=generator)[:count]
    inputs = torch.empty(count, 1, SIDE, SIDE)
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        left = digits[start:stop].float().div_(255)
        right = digits[partners[start:stop]].float().div_(255)
        if noise > 0:
            right.mul_(torch.rand(right.shape, generator=noise_generator) >= noise)
        inputs[start:stop] = merge(left, right)
    inputs.sub_(MEAN).div_(STD)
    return Split(inputs, {"left": numbers[:count].clone(), "right": numbers[partners]})
