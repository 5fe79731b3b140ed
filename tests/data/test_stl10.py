"""STL-10 from small files in the true format; a small network stands in for the pretrained one."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from drpm.data import DataError, load, stl10
from drpm.data.stl10 import SIDE, Network, extract
from tests.data.formats import stl10_images, write_stl10


class Counting:
    """Mean and extremes of each channel; counts the images it has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, images: Tensor) -> Tensor:
        assert images.shape[1:] == (3, SIDE, SIDE)
        assert 0 <= float(images.min()) <= float(images.max()) <= 1
        self.seen += len(images)
        return torch.cat([images.mean((2, 3)), images.amax((2, 3)), images.amin((2, 3))], dim=1)


@pytest.fixture(autouse=True)
def files(folder: Path) -> Path:
    write_stl10(folder / "stl10" / "stl10_binary")
    return folder / "stl10" / "stl10_binary"


def test_images_stand_upright() -> None:
    dataset = load("stl10", representation="images")
    expected = torch.from_numpy(stl10_images(6, seed=0)).float() / 255
    assert torch.equal(dataset.train.inputs, expected)
    assert dataset.train.targets["label"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (len(dataset.test), dataset.input_shape) == (4, (3, 96, 96))


def test_features_are_computed_once(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Counting()
    monkeypatch.setattr(stl10, "resnet50", lambda device: Network("counting", network))
    first = load("stl10")
    assert network.seen == 10
    assert first.input_shape == (9,)
    means = torch.from_numpy(stl10_images(6, seed=0)).float().mean((2, 3)) / 255
    torch.testing.assert_close(first.train.inputs[:, :3], means, atol=0.01, rtol=0)
    second = load("stl10", network=Network("counting", network))
    assert network.seen == 10
    assert torch.equal(first.train.inputs, second.train.inputs)
    # Both times they can be learned from.
    for dataset in (first, second):
        assert not any(split.inputs.is_inference() for split in (dataset.train, dataset.test))
    # Another network, and other images, have features of their own.
    load("stl10", network=Network("other", network))
    assert network.seen == 20
    (files / "test_X.bin").write_bytes(stl10_images(4, seed=7).tobytes())
    load("stl10", network=Network("counting", network))
    assert network.seen == 24


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("train_X.bin", bytes(27_648 * 6 - 1), "train_X.bin should contain images of 27,648 bytes"),
        ("train_X.bin", b"", "train_X.bin should contain images"),
        ("test_y.bin", bytes([1, 2, 3]), "test_y.bin should contain 4 labels .* contains 3"),
        ("test_y.bin", bytes([1, 2, 3, 0]), "labels from 1 to 10, but contains 4 from 0"),
        ("test_y.bin", bytes([1, 2, 3, 11]), "labels from 1 to 10, but contains 4 from 1 to 11"),
    ],
)
def test_damaged_files_are_refused(files: Path, file: str, content: bytes, complaint: str) -> None:
    (files / file).write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        load("stl10", representation="images")


def test_without_a_network_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=r"install torchvision with pip install 'drpm\[vision\]'"):
        load("stl10")


def test_images_are_resized_as_pillow_does() -> None:
    # Without black and white, which pillow cuts off after each direction and we after both.
    image = stl10_images(1, seed=3) // 4 + 96
    resized = extract(image, Network("all pixels", lambda images: images), "cpu")
    by_pillow = Image.fromarray(image[0].transpose(1, 2, 0)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )
    difference = resized[0].transpose(1, 2, 0) * 255 - np.asarray(by_pillow, np.float32)
    assert np.abs(difference).max() <= 1.5  # pillow rounds twice, once for each direction
