"""MNIST and Fashion-MNIST: gzipped idx files of 28x28 grey images and their labels."""

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from drpm.data.files import obtain, open_content
from drpm.data.types import DataError, Dataset, DatasetSpec, RemoteFile, Split, reason

SIDE = 28
CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)

_SHAPES = "60,000 + 10,000 images of 1x28x28, 10 classes"


def _files(folder: str, urls: tuple[str, ...], **sha256: str) -> tuple[RemoteFile, ...]:
    """The four files of a data set, from the hashes of their uncompressed contents."""
    files = []
    for part, content in sha256.items():
        name = f"{part.replace('_', '-')}-ubyte.gz"
        addresses = tuple(f"{url}/{name}" for url in urls)
        files.append(RemoteFile(f"{folder}/{name}", addresses, content_sha256=content))
    return tuple(files)


FILES = _files(
    "mnist",
    # The author's own site no longer serves the files.
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    train_images_idx3="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    train_labels_idx1="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    t10k_images_idx3="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    t10k_labels_idx1="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)

FASHION_FILES = _files(
    "fashion-mnist",
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
    ),
    train_images_idx3="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    train_labels_idx1="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    t10k_images_idx3="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    t10k_labels_idx1="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)


Digits = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # images (N, 28, 28) and labels (N,)


def read_arrays(files: tuple[RemoteFile, ...] = FILES) -> tuple[Digits, Digits]:
    """Find or download the files, and read the training and the test split."""
    paths = obtain(files)
    train_x, train_y, test_x, test_y = (paths[file.path] for file in files)
    return _read_pair(train_x, train_y), _read_pair(test_x, test_y)


def load() -> Dataset:
    """60,000 training and 10,000 test images, (1, 28, 28) in [0, 1]; the target ``label``."""
    return _load("mnist", FILES, CLASSES)


def load_fashion() -> Dataset:
    """As :func:`load`, of the images of Fashion-MNIST."""
    return _load("fashion-mnist", FASHION_FILES, FASHION_CLASSES)


def _load(name: str, files: tuple[RemoteFile, ...], classes: tuple[str, ...]) -> Dataset:
    train, test = (
        Split(
            torch.from_numpy(images).unsqueeze(1).float().div_(255),
            {"label": torch.from_numpy(labels).long()},
        )
        for images, labels in read_arrays(files)
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


SPEC = DatasetSpec(
    name="mnist",
    title="Handwritten digits",
    source="LeCun, Cortes, Burges",
    licence="CC BY-SA 3.0",
    shapes=_SHAPES,
    load=load,
    files=FILES,
)

FASHION_SPEC = DatasetSpec(
    name="fashion-mnist",
    title="Articles of clothing",
    source="Xiao, Rasul, Vollgraf (Zalando Research)",
    licence="MIT",
    shapes=_SHAPES,
    load=load_fashion,
    files=FASHION_FILES,
)
