"""What MNIST and Fashion-MNIST share: four idx files of 28x28 grey images and their labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from drpm.data.errors import DataError
from drpm.data.files import obtain
from drpm.data.idx import read_idx
from drpm.data.types import Dataset, Device, RemoteFile, Split

SIDE = 28
NUM_CLASSES = 10


class Arrays(NamedTuple):
    """Images (N, 28, 28) and labels (N,) of both parts, as the bytes they are on the disk."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


@dataclass(frozen=True)
class Files:
    """The four files of such a set."""

    train_images: RemoteFile
    train_labels: RemoteFile
    test_images: RemoteFile
    test_labels: RemoteFile

    def all(self) -> tuple[RemoteFile, ...]:
        """In the order of `Arrays`."""
        return self.train_images, self.train_labels, self.test_images, self.test_labels

    def read(self) -> Arrays:
        """Find or download the files and read them, checking that they belong together."""
        paths = obtain(self.all())
        train_x, train_y, test_x, test_y = (paths[file.path] for file in self.all())
        return Arrays(*_read_pair(train_x, train_y), *_read_pair(test_x, test_y))


def remote_file(
    path: str, urls: tuple[str, ...], sha256: str, content_sha256: str, size: int
) -> RemoteFile:
    """A file served under its own name below each of several addresses."""
    name = Path(path).name
    addresses = tuple(f"{url}/{name}" for url in urls)
    return RemoteFile(path, addresses, sha256=sha256, content_sha256=content_sha256, size=size)


def load(name: str, files: Files, classes: tuple[str, ...], device: Device) -> Dataset:
    """The set as tensors: images (N, 1, 28, 28) in [0, 1], the target `label`."""
    arrays = files.read()
    return Dataset(
        name,
        _split(arrays.train_images, arrays.train_labels, device),
        _split(arrays.test_images, arrays.test_labels, device),
        classes={"label": classes},
    )


def _split(images: NDArray[np.uint8], labels: NDArray[np.uint8], device: Device) -> Split:
    # Moved as bytes, a quarter of the floats, and widened where they will be used.
    pixels = torch.from_numpy(images).to(device).unsqueeze(1).float().div_(255)
    return Split(pixels, {"label": torch.from_numpy(labels).to(device).long()})


def _read_pair(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    pixels, numbers = read_idx(images, ndim=3), read_idx(labels, ndim=1)
    for path, array in ((images, pixels), (labels, numbers)):
        if array.dtype != np.uint8:
            raise DataError(f"{path} should hold bytes, but holds values of type {array.dtype}.")
    if len(pixels) == 0:
        raise DataError(f"{images} holds no image.")
    if pixels.shape[1:] != (SIDE, SIDE):
        height, width = pixels.shape[1:]
        raise DataError(
            f"{images} should hold images of {SIDE}x{SIDE} pixels, but they are {height}x{width}."
        )
    if len(numbers) != len(pixels):
        raise DataError(
            f"{labels} should hold one label for each of the {len(pixels):,} images of "
            f"{images.name}, but holds {len(numbers):,}."
        )
    if numbers.max() >= NUM_CLASSES:
        raise DataError(
            f"{labels} should hold labels from 0 to {NUM_CLASSES - 1}, "
            f"but holds {int(numbers.max())}."
        )
    return pixels.astype(np.uint8, copy=False), numbers.astype(np.uint8, copy=False)
