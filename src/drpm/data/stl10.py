"""STL-10: natural images, as pixels or as the features of a pretrained network."""

import hashlib
from pathlib import Path

import numpy as np
import pooch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from drpm.data import features
from drpm.data.features import Network
from drpm.data.files import atomic_write, obtain, search_folders, writable_folder
from drpm.data.types import DataError, Dataset, DatasetSpec, Device, RemoteFile, Split

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")

_SHAPE = (3, 96, 96)
_FOLDER = "stl10_binary"

ARCHIVE = RemoteFile(
    "stl10/stl10_binary.tar.gz",
    (
        "https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    ),
    known_hash="f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    members={
        f"{_FOLDER}/train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
        f"{_FOLDER}/train_y.bin": "5a34089d4802c674881badbb80307741",
        f"{_FOLDER}/test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
        f"{_FOLDER}/test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    },
)


def read_images(path: Path) -> NDArray[np.uint8]:
    """The images (N, 3, 96, 96) of a binary file, memory-mapped."""
    size = path.stat().st_size
    if size == 0 or size % np.prod(_SHAPE):
        raise DataError(
            f"{path} should hold images of {np.prod(_SHAPE):,} bytes each, but has {size:,} bytes."
        )
    # The format is column-major within a channel.
    return np.memmap(path, np.uint8, "r").reshape(-1, *_SHAPE).swapaxes(2, 3)


def read_labels(path: Path, count: int) -> NDArray[np.int64]:
    """The labels, from 0 to 9."""
    labels = np.fromfile(path, np.uint8)
    if len(labels) != count:
        raise DataError(f"{path} should hold {count:,} labels, but holds {len(labels):,}.")
    if labels.min() < 1 or labels.max() > len(CLASSES):
        raise DataError(
            f"{path} should hold labels from 1 to {len(CLASSES)}, but holds {labels.min()} to "
            f"{labels.max()}."
        )
    return labels.astype(np.int64) - 1


def load(
    *,
    device: Device = "cpu",
    seed: int = 0,
    representation: str = "features",
    network: str | Network = "auto",
) -> Dataset:
    """5,000 training and 8,000 test images, or their features; the target ``label``.

    Args:
        device: Where the tensors go, and where features are computed.
        seed: Has no effect.
        representation: "features", (F,) from a pretrained network, computed once and cached beside
            the data; or "images", (3, 96, 96) in [0, 1].
        network: "auto", "resnet50" (2,048 features), "efficientnet-lite0" (1,280 features), or a
            network of your own.
    """
    if representation not in ("features", "images"):
        raise DataError(f"representation must be 'features' or 'images', not '{representation}'.")
    folder = obtain([ARCHIVE])[ARCHIVE.path] / _FOLDER
    if representation == "features" and not isinstance(network, Network):
        network = features.pretrained(network, device)

    def split(part: str) -> Split:
        images, labels = folder / f"{part}_X.bin", folder / f"{part}_y.bin"
        pixels = read_images(images)
        target = torch.from_numpy(read_labels(labels, len(pixels))).to(device)
        if isinstance(network, Network) and representation == "features":
            return Split(_features(images, network, device).to(device), {"label": target})
        inputs = torch.from_numpy(np.ascontiguousarray(pixels)).to(device).float().div_(255)
        return Split(inputs, {"label": target})

    return Dataset("stl10", split("train"), split("test"), classes={"label": CLASSES})


def _features(path: Path, network: Network, device: Device) -> Tensor:
    """The features of the images of a file, from the cache if they are there."""
    content = pooch.file_hash(str(path))
    key = hashlib.sha256(f"{network.name} {content}".encode()).hexdigest()[:16]
    name = f"stl10/features/{network.name}-{key}.safetensors"
    for folder in search_folders():
        try:
            return load_file(folder / name)["features"]
        except (SafetensorError, KeyError, OSError):
            continue  # missing or damaged: computed again
    computed = features.extract(read_images(path), network, device)
    with atomic_write(writable_folder() / name) as out:
        out.write(save({"features": computed}))
    # A copy, because tensors made in inference mode cannot be trained on.
    return computed.clone()


SPEC = DatasetSpec(
    name="stl10",
    title="Natural images, as features of a pretrained network",
    source="Coates, Lee, Ng: An Analysis of Single Layer Networks (2011)",
    licence="images from ImageNet, for research",
    shapes="5,000 + 8,000 images of 3x96x96, or 2,048 features each, 10 classes",
    load=load,
    files=(ARCHIVE,),
    sheet_options={"representation": "images"},
)
