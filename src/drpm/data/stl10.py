"""STL-10: natural images, as pixels or as the features of a pretrained network."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from drpm.data import features
from drpm.data.errors import DataError
from drpm.data.features import Network
from drpm.data.files import find, obtain
from drpm.data.folders import atomic_write, search_folders, writable_folder
from drpm.data.hashes import file_hash
from drpm.data.types import Dataset, DatasetSpec, Device, RemoteFile, Split

CLASSES = (
    "airplane",
    "bird",
    "car",
    "cat",
    "deer",
    "dog",
    "horse",
    "monkey",
    "ship",
    "truck",
)

UNLABELLED = -1  # the label of an image that has none

_SHAPE = (3, 96, 96)
_FOLDER = "stl10_binary"

ARCHIVE = RemoteFile(
    "stl10/stl10_binary.tar.gz",
    (
        "https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    ),
    sha256="f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    size=2_640_397_119,
    members=tuple(
        f"{_FOLDER}/{name}" for name in ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
    ),
    members_md5=(
        "918c2871b30a85fa023e0c44e0bee87f",
        "5a34089d4802c674881badbb80307741",
        "7f263ba9f9e0b06b93213547f721ac82",
        "36f9794fa4beb8a2c72628de14fa638e",
    ),
)

EXTRA = RemoteFile(
    f"stl10/{_FOLDER}/unlabeled_X.bin", md5="5242ba1fed5e4be9e1e742405eb56ca4", optional=True
)


def read_images(path: Path) -> NDArray[np.uint8]:
    """The images (N, 3, 96, 96) of a binary file, read from the disk only as they are used."""
    size = path.stat().st_size
    if size == 0 or size % np.prod(_SHAPE):
        raise DataError(
            f"{path} should hold images of {np.prod(_SHAPE):,} bytes each, but its {size:,} bytes "
            "are no whole number of them."
        )
    # The format counts down the columns of an image, not along its rows.
    return np.memmap(path, np.uint8, "r").reshape(-1, *_SHAPE).swapaxes(2, 3)


def read_labels(path: Path, count: int) -> NDArray[np.int64]:
    """The labels, counted from zero."""
    labels = np.fromfile(path, np.uint8)
    if len(labels) != count:
        raise DataError(f"{path} should hold {count:,} labels, but holds {len(labels):,}.")
    if labels.min() < 1 or labels.max() > len(CLASSES):
        wrong = labels[(labels < 1) | (labels > len(CLASSES))][0]
        raise DataError(
            f"{path} should hold labels from 1 to {len(CLASSES)}, but holds {int(wrong)}."
        )
    return labels.astype(np.int64) - 1


def load(
    *,
    device: Device = "cpu",
    seed: int = 0,
    representation: str = "features",
    network: str | Network = "auto",
    unlabeled: bool = False,
) -> Dataset:
    """5,000 training and 8,000 test images, or their features; the target `label`.

    Args:
        device: where the tensors go, and where features are computed.
        seed: of no effect.
        representation: "features", (F,) from a pretrained network, computed once and kept beside
            the data; or "images", (3, 96, 96) in [0, 1].
        network: "auto", "resnet50" (2,048 features), "efficientnet-lite0" (1,280 features), or a
            network of your own.
        unlabeled: whether the 100,000 further images join the training part, with the label -1.
            Their file must be put beside the others by hand.
    """
    if representation not in ("features", "images"):
        raise DataError(f"representation must be 'features' or 'images', not '{representation}'.")
    folder = obtain([ARCHIVE])[ARCHIVE.path] / _FOLDER
    paths = [folder / "train_X.bin"]
    if unlabeled:
        extra = find(EXTRA)
        if extra is None:
            raise DataError(
                f"{folder / 'unlabeled_X.bin'} is missing: take it out of {ARCHIVE.urls[0]}."
            )
        paths.append(extra)
    test_path = folder / "test_X.bin"
    train_arrays, test_array = [read_images(path) for path in paths], read_images(test_path)
    train_labels = read_labels(folder / "train_y.bin", len(train_arrays[0]))
    test_labels = read_labels(folder / "test_y.bin", len(test_array))
    num_extra = sum(map(len, train_arrays[1:]))
    train_labels = np.concatenate([train_labels, np.full(num_extra, UNLABELLED)])

    if representation == "images":
        train = torch.cat([_pixels(array, device) for array in train_arrays])
        test = _pixels(test_array, device)
    else:
        chosen = network if isinstance(network, Network) else features.pretrained(network, device)
        parts = [_features(path, chosen, device) for path in (*paths, test_path)]
        train, test = torch.cat(parts[:-1]).to(device), parts[-1].to(device)
    return Dataset(
        "stl10",
        Split(train, {"label": torch.from_numpy(train_labels).to(device)}),
        Split(test, {"label": torch.from_numpy(test_labels).to(device)}),
        classes={"label": CLASSES},
    )


def inspect() -> None:
    """Check that the files belong together, without computing anything."""
    folder = obtain([ARCHIVE])[ARCHIVE.path] / _FOLDER
    for part in ("train", "test"):
        images = read_images(folder / f"{part}_X.bin")
        read_labels(folder / f"{part}_y.bin", len(images))


def _pixels(images: NDArray[np.uint8], device: Device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images)).to(device).float().div_(255)


def _features(path: Path, network: Network, device: Device) -> Tensor:
    """The features of the images of a file, from the cache where they lie there."""
    # Named after the network and the images themselves, so that neither can be mistaken.
    key = hashlib.sha256(f"{network.name} {file_hash(path)}".encode()).hexdigest()[:16]
    name = f"stl10/features/{network.name}-{key}.safetensors"
    count = path.stat().st_size // int(np.prod(_SHAPE))
    for folder in search_folders():
        cached = _read_cache(folder / name)
        if cached is not None and len(cached) == count:
            return cached
    computed = features.extract(read_images(path), network, device)
    with atomic_write(writable_folder() / name) as out:
        out.write(save({"features": computed}))
    # A copy, because nothing can be learned from what a network made in inference mode.
    return computed.clone()


def _read_cache(path: Path) -> Tensor | None:
    try:
        return load_file(path)["features"] if path.exists() else None
    except (SafetensorError, KeyError, OSError):
        return None  # what cannot be read is computed anew


SPEC = DatasetSpec(
    name="stl10",
    title="Natural images, as features of a pretrained network",
    source="Coates, Lee, Ng: An Analysis of Single Layer Networks (2011)",
    licence="images from ImageNet, for research",
    shapes="5,000 + 8,000 images of 3x96x96, or 2,048 features each, 10 classes",
    load=load,
    files=(ARCHIVE, EXTRA),
    options=("representation", "network", "unlabeled"),
    sheet_options={"representation": "images"},
    inspect=inspect,
)
