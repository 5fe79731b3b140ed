"""Images made of several digits, against images made by hand; their noise against its ratio."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from drpm.data import mnist, mosaic, multimnist
from drpm.data.types import Dataset
from tests.data.formats import idx_bytes, linear_resize, write_mnist


@pytest.fixture(autouse=True)
def digits(folder: Path) -> Path:
    """Forty training and twenty test digits of random pixels."""
    write_mnist(folder / "mnist", train=40, test=20)
    return folder / "mnist"


def pixels(dataset: Dataset) -> torch.Tensor:
    """The training images before they were normalised, (N, 28, 28)."""
    return dataset.train.inputs[:, 0] * 0.3081 + 0.1307


def merged(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.float64]:
    canvas = np.zeros((36, 36))
    canvas[0:28, 0:28] = left / 255
    canvas[6:34, 6:34] = np.maximum(canvas[6:34, 6:34], right / 255)
    weights = linear_resize(36, 28)
    return weights @ canvas @ weights.T


def test_images_are_two_digits_and_their_labels() -> None:
    """Each image is its own digit and one other, found by trying all of them."""
    train, test = mnist.read_arrays()
    dataset = multimnist.load()
    for split, (digits, labels) in ((dataset.train, train), (dataset.test, test)):
        assert split.inputs.shape == (len(digits), 1, 28, 28)
        assert split.inputs.dtype == torch.float32
        assert split.targets["left"].dtype == split.targets["right"].dtype == torch.int64
        partners = []
        for i, image in enumerate(split.inputs[:12, 0].double().numpy()):
            candidates = np.stack([merged(digits[i], other) for other in digits])
            gaps = np.abs((candidates - 0.1307) / 0.3081 - image).max(axis=(1, 2))
            partner = int(gaps.argmin())
            assert gaps[partner] < 1e-4
            assert int(split.targets["left"][i]) == labels[i]
            assert int(split.targets["right"][i]) == labels[partner]
            partners.append(partner)
        assert len(set(partners)) > 6


def test_the_seed_determines_the_images() -> None:
    first, again, other = (multimnist.load(seed=seed, noise=0.4) for seed in (1, 1, 2))
    for one, same in ((first.train, again.train), (first.test, again.test)):
        assert torch.equal(one.inputs, same.inputs)
    fewer = multimnist.load(seed=1, noise=0.4, num_train=7, num_test=3)
    assert torch.equal(fewer.train.inputs, first.train.inputs[:7])
    assert torch.equal(fewer.test.targets["right"], first.test.targets["right"][:3])
    assert not torch.equal(first.train.targets["right"], other.train.targets["right"])
    assert torch.equal(first.train.targets["left"], other.train.targets["left"])
    # The two splits have their own random numbers.
    same = first.train.targets["right"][:20] == first.test.targets["right"]
    assert not bool(same.all())


def test_noise_takes_pixels_from_the_right_digit_only() -> None:
    digits = mnist.read_arrays()[0][0]
    clean, noisy, noisier, gone = (multimnist.load(noise=noise) for noise in (0.0, 0.3, 0.6, 1.0))
    for dataset in (noisy, noisier, gone):
        assert torch.equal(dataset.train.targets["right"], clean.train.targets["right"])
    nothing = np.zeros((28, 28), np.uint8)
    alone = torch.from_numpy(np.stack([merged(digit, nothing) for digit in digits])).float()
    torch.testing.assert_close(pixels(gone), alone, rtol=0, atol=1e-5)
    # What one ratio takes away a larger one takes as well, and nothing ever gets brighter.
    steps = [pixels(dataset) for dataset in (clean, noisy, noisier, gone)]
    for before, after in pairwise(steps):
        assert bool((after <= before + 1e-6).all())
        assert float((before - after).mean()) > 0.005


@pytest.mark.parametrize("noise", [0.1, 0.5, 0.9])
def test_noise_has_the_stated_ratio(digits: Path, noise: float) -> None:
    white = np.full((200, 28, 28), 255, np.uint8)
    (digits / "train-images-idx3-ubyte.gz").write_bytes(idx_bytes(white))
    (digits / "train-labels-idx1-ubyte.gz").write_bytes(idx_bytes(white[:, 0, 0] // 255))
    # Rows and columns that only the right digit reaches. Each value is a mean of canvas pixels, at
    # least one of which is new to each: the standard error is below that of half as many. Five of
    # them: fewer than 1 alarm in 100,000 seeds.
    right = pixels(multimnist.load(noise=noise))[:, 23:26, 8:25]
    error = math.sqrt(noise * (1 - noise) / (right.numel() / 2))
    assert float(right.mean()) == pytest.approx(1 - noise, abs=5 * error)


def tile(images: torch.Tensor, task: int, columns: int) -> torch.Tensor:
    """One task's part of images (N, 1, H, W)."""
    top, left = 14 * (task // columns), 14 * (task % columns)
    return images[:, 0, top : top + 14, left : left + 14]


@pytest.mark.parametrize("num_tasks", [1, 2, 10, 20, 40, 101])
def test_noise_ratios_are_evenly_spread(num_tasks: int) -> None:
    ratios = mosaic.noise_ratios(num_tasks)
    assert ratios == mosaic.noise_ratios(num_tasks)
    last = 0.9 if num_tasks > 1 else 0.0
    np.testing.assert_allclose(sorted(ratios), np.linspace(0.0, last, num_tasks))


@pytest.mark.parametrize("num_tasks", [1, 5, 10])
def test_every_tile_is_a_digit_of_its_label(num_tasks: int) -> None:
    train, test = mnist.read_arrays()
    dataset = mosaic.load(num_tasks=num_tasks, num_train=30, num_test=10)
    rows, columns = mosaic.grid_shape(num_tasks)
    ratios = mosaic.noise_ratios(num_tasks)
    assert rows * columns - columns < num_tasks <= rows * columns
    for split, (digits, labels) in ((dataset.train, train), (dataset.test, test)):
        assert split.inputs.shape[1:] == (1, 14 * rows, 14 * columns)
        assert tuple(split.targets) == mosaic.task_names(num_tasks)
        means = digits.astype(float).reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255
        for task, name in enumerate(split.targets):
            seen = tile(split.inputs, task, columns).double().numpy()
            lost = seen == 0
            # Of a random digit hardly a pixel is black by itself, so the digit shows in the rest.
            gaps = np.where(lost[:, None], 0, np.abs(seen[:, None] - means)).mean(axis=(2, 3))
            nearest = gaps.argmin(axis=1)
            assert gaps.min(axis=1).max() < 0.5 / 255 + 1e-6  # bytes are rounded
            assert split.targets[name].tolist() == labels[nearest].tolist()
            # Five standard errors: fewer than 1 alarm in 100,000 seeds for all tiles together.
            error = math.sqrt(ratios[task] * (1 - ratios[task]) / lost.size)
            assert float(lost.mean()) == pytest.approx(ratios[task], abs=5 * error + 1e-9)
        for task in range(num_tasks, rows * columns):
            assert not tile(split.inputs, task, columns).any()


def test_binary_mosaics_tell_even_digits_from_odd_ones() -> None:
    digits, binary = (mosaic.load(num_train=30, num_test=10, binary=x) for x in (False, True))
    assert set(binary.classes.values()) == {("odd", "even")}
    for one, other in ((digits.train, binary.train), (digits.test, binary.test)):
        assert torch.equal(one.inputs, other.inputs)
        for name, labels in one.targets.items():
            assert torch.equal(other.targets[name], (labels % 2 == 0).long())
