"""The family of MNIST: small files in the true format, and images of many digits."""

import gzip
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from drpm.data import DataError, Dataset, load
from drpm.data.mnist import noise_ratios, read_digits, read_idx, task_names
from drpm.data.types import fingerprint
from tests.data.formats import idx_bytes, write_mnist


@pytest.fixture(autouse=True)
def mnist(folder: Path) -> Path:
    """Forty training and twenty test digits of random pixels."""
    write_mnist(folder / "mnist", train=40, test=20)
    return folder / "mnist"


ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
GOOD = idx_bytes(ARRAY)
ZIPPED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", r"bytes \(N, 3, 4\), but begins with nothing"),
        (b"\x89PNG\r\n", "begins with 89 50 4e 47"),
        (idx_bytes(ARRAY[0]), "begins with 00 00 08 02"),
        (idx_bytes(ARRAY.swapaxes(1, 2)), "begins with 00 00 08 03"),
        (idx_bytes(ARRAY[:0]), "has 16 bytes"),
        (GOOD[:6], "should be an idx file"),
        (GOOD[:-1], "has 39 bytes"),
        (GOOD[:-12], "has 28 bytes"),
        (GOOD + b"\0", "has 41 bytes"),
        (ZIPPED[:-4], "cannot be read"),
        (ZIPPED[:15] + b"\xff\xff\xff" + ZIPPED[18:], "cannot be read"),
        (ZIPPED[:-8] + b"\0\0\0\0" + ZIPPED[-4:], "cannot be read .*CRC"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "wrong-file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"wrong-file .*{complaint}"):
        read_idx(path, 3, 4)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_files_are_read(folder: Path, name: str) -> None:
    write_mnist(folder / "fashion-mnist", train=40, test=20, compressed=False)
    dataset = load(name)
    assert dataset.name == name
    assert (len(dataset.train), len(dataset.test)) == (40, 20)
    labels = dataset.train.targets["label"]
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 28, 28), np.uint8)
    assert torch.equal(dataset.train.inputs, torch.from_numpy(pixels).float() / 255)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [index % 10 for index in range(40)]
    assert len(dataset.classes["label"]) == 10


@pytest.mark.parametrize(
    ("file", "array", "complaint"),
    [
        ("train-images-idx3-ubyte", np.zeros((4, 28, 28)), "should contain 4 labels .* has 40"),
        ("train-images-idx3-ubyte", np.zeros((40, 32, 32)), r"bytes \(N, 28, 28\), but"),
        ("train-labels-idx1-ubyte", np.full(40, 11), "labels from 0 to 9, but has 40 up to 11"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    mnist: Path, file: str, array: np.ndarray, complaint: str
) -> None:
    (mnist / f"{file}.gz").write_bytes(gzip.compress(idx_bytes(array.astype(np.uint8))))
    with pytest.raises(DataError, match=complaint):
        load("mnist")


def pixels(dataset: Dataset) -> torch.Tensor:
    """The training images before they were normalized, (N, 28, 28)."""
    return dataset.train.inputs[:, 0] * 0.3081 + 0.1307


def merged(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
    """Two digits in one image, made by hand."""
    canvas = np.zeros((36, 36))
    canvas[0:28, 0:28] = left / 255
    canvas[6:34, 6:34] = np.maximum(canvas[6:34, 6:34], right / 255)
    # The weight of each pixel in each resized one: a triangle as wide as the ratio.
    ratio = 36 / 28
    centers = (np.arange(28)[:, None] + 0.5) * ratio
    weights = np.clip(1 - np.abs(np.arange(36) + 0.5 - centers) / ratio, 0, None)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights @ canvas @ weights.T


def test_images_are_two_digits_and_their_labels() -> None:
    """Each image is its own digit and one other, found by trying all of them."""
    dataset = load("multimnist")
    for split, source in zip((dataset.train, dataset.test), read_digits(), strict=True):
        digits, labels = (x.numpy() for x in source)
        assert split.inputs.shape == (len(digits), 1, 28, 28)
        partners = []
        for i, image in enumerate(split.inputs[:12, 0].double().numpy()):
            candidates = np.stack([merged(digits[i], other) for other in digits])
            gaps = np.abs((candidates - 0.1307) / 0.3081 - image).max(axis=(1, 2))
            partner = int(gaps.argmin())
            assert gaps[partner] < 1e-4
            assert int(split.targets["left"][i]) == labels[i]
            assert int(split.targets["right"][i]) == labels[partner]
            partners.append(partner)
        assert len(set(partners)) > 3  # fewer of 20 or more in 12 draws: below 1e-6


def test_the_seed_determines_the_images() -> None:
    first, again, other = (load("multimnist", seed=seed, noise=0.4) for seed in (1, 1, 2))
    assert fingerprint(first) == fingerprint(again)
    fewer = load("multimnist", seed=1, noise=0.4, num_train=7, num_test=3)
    assert torch.equal(fewer.train.inputs, first.train.inputs[:7])
    assert torch.equal(fewer.test.targets["right"], first.test.targets["right"][:3])
    rights = first.train.targets["right"]
    assert not torch.equal(rights, other.train.targets["right"])
    # The two splits have their own random numbers.
    assert not torch.equal(rights[:20], first.test.targets["right"])


def test_noise_takes_pixels_from_the_right_digit_only() -> None:
    made = [load("multimnist", noise=noise) for noise in (0.0, 0.3, 0.6, 1.0)]
    for dataset in made:
        assert torch.equal(dataset.train.targets["right"], made[0].train.targets["right"])
    nothing = np.zeros((28, 28))
    alone = np.stack([merged(digit, nothing) for digit in read_digits()[0][0].numpy()])
    np.testing.assert_allclose(pixels(made[-1]).numpy(), alone, rtol=0, atol=1e-5)
    # What one ratio takes away a larger one takes as well, and nothing ever gets brighter.
    for before, after in pairwise(map(pixels, made)):
        assert bool((after <= before + 1e-6).all())
        assert float((before - after).mean()) > 0.005


@pytest.mark.parametrize("noise", [0.1, 0.5, 0.9])
def test_noise_has_the_stated_ratio(mnist: Path, noise: float) -> None:
    white = np.full((200, 28, 28), 255, np.uint8)
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(idx_bytes(white))
    (mnist / "train-labels-idx1-ubyte.gz").write_bytes(idx_bytes(white[:, 0, 0] // 255))
    # Rows and columns that only the right digit reaches. Each value is a mean of canvas pixels, at
    # least one of which is new to each: the standard error is below that of half as many. Five of
    # them: fewer than 1 alarm in 100,000 seeds.
    right = pixels(load("multimnist", noise=noise))[:, 23:26, 8:25]
    error = math.sqrt(noise * (1 - noise) / (right.numel() / 2))
    assert float(right.mean()) == pytest.approx(1 - noise, abs=5 * error)


@pytest.mark.parametrize("num_tasks", [1, 2, 10, 20, 40, 101])
def test_noise_ratios_are_evenly_spread(num_tasks: int) -> None:
    last = 0.9 if num_tasks > 1 else 0.0
    np.testing.assert_allclose(sorted(noise_ratios(num_tasks)), np.linspace(0.0, last, num_tasks))


@pytest.mark.parametrize(("num_tasks", "rows", "columns"), [(1, 1, 1), (5, 2, 3), (10, 3, 4)])
def test_every_tile_is_a_digit_of_its_label(num_tasks: int, rows: int, columns: int) -> None:
    dataset = load("mosaic", num_tasks=num_tasks, num_train=30, num_test=10)
    ratios = noise_ratios(num_tasks)
    for split, source in zip((dataset.train, dataset.test), read_digits(), strict=True):
        digits, labels = (x.numpy() for x in source)
        assert split.inputs.shape[1:] == (1, 14 * rows, 14 * columns)
        tiles = split.inputs.double().unflatten(3, (columns, 14)).unflatten(2, (rows, 14))
        tiles = tiles.transpose(3, 4).flatten(1, 3).numpy()
        means = digits.astype(float).reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255
        for task, (name, ratio) in enumerate(zip(task_names(num_tasks), ratios, strict=True)):
            seen = tiles[:, task]
            lost = seen == 0
            # Of a random digit hardly a pixel is black by itself, so the digit shows in the rest.
            gaps = np.where(lost[:, None], 0, np.abs(seen[:, None] - means)).mean(axis=(2, 3))
            assert gaps.min(axis=1).max() < 0.5 / 255 + 1e-6  # bytes are rounded
            assert split.targets[name].tolist() == labels[gaps.argmin(axis=1)].tolist()
            # Five standard errors: fewer than 1 alarm in 100,000 seeds for all tiles together.
            error = math.sqrt(ratio * (1 - ratio) / lost.size)
            assert float(lost.mean()) == pytest.approx(ratio, abs=5 * error + 1e-9)
        assert not tiles[:, num_tasks:].any()


def test_binary_mosaics_tell_even_digits_from_odd_ones() -> None:
    digits, binary = (load("mosaic", num_train=30, num_test=10, binary=x) for x in (False, True))
    assert set(binary.classes.values()) == {("odd", "even")}
    assert torch.equal(digits.train.inputs, binary.train.inputs)
    for name, labels in digits.train.targets.items():
        assert torch.equal(binary.train.targets[name], (labels % 2 == 0).long())
