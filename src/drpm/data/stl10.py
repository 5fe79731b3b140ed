"""STL-10: natural images, as pixels or as the features of a network trained on ImageNet."""

import importlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pooch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate

from drpm.data.catalogue import DATASETS
from drpm.data.files import cached_array, obtain, track
from drpm.data.types import DataError, Dataset, Device, Split, reason

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE = 224  # of the images that networks take

_SHAPE = (3, 96, 96)
_BATCH = 64


class Network(NamedTuple):
    """A network that maps images (B, 3, 224, 224) in [0, 1] to features (B, F)."""

    name: str  # identifies its features in the cache
    extract: Callable[[Tensor], Tensor]


def load(
    *,
    device: Device = "cpu",
    representation: Literal["features", "images"] = "features",
    network: Literal["resnet50"] | Network = "resnet50",
) -> Dataset:
    """5,000 training and 8,000 test images, or their features; the target ``label``.

    Args:
        device: Where features are computed.
        representation: "features", (F,) from a pretrained network, computed once and cached; or
            "images", (3, 96, 96) in [0, 1].
        network: "resnet50" (2,048 features), or a network of your own.
    """
    (folder,) = (path / "stl10_binary" for path in obtain(DATASETS["stl10"].files).values())
    if representation == "features" and network == "resnet50":
        network = resnet50(device)

    def split(part: str) -> Split:
        path = folder / f"{part}_X.bin"
        pixels, labels = read_part(path, folder / f"{part}_y.bin")
        if representation == "features" and isinstance(network, Network):
            identity = f"{network.name} {pooch.file_hash(str(path))}"
            compute = partial(extract, pixels, network, device)
            features = cached_array(f"stl10/features/{network.name}", identity, compute)
            inputs = torch.from_numpy(features)
        else:
            inputs = torch.from_numpy(np.ascontiguousarray(pixels)).float().div_(255)
        return Split(inputs, {"label": torch.from_numpy(labels)})

    return Dataset("stl10", split("train"), split("test"), classes={"label": CLASSES})


def read_part(images: Path, numbers: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images (N, 3, 96, 96), memory-mapped, and the labels (0 to 9) of binary files."""
    size, each = images.stat().st_size, math.prod(_SHAPE)
    if size == 0 or size % each:
        raise DataError(f"{images} should contain images of {each:,} bytes, but has {size:,}.")
    labels, count = np.fromfile(numbers, np.uint8), size // each
    low, high = (labels.min(), labels.max()) if len(labels) else (0, 0)
    if len(labels) != count or low < 1 or high > len(CLASSES):
        raise DataError(
            f"{numbers} should contain {count:,} labels from 1 to {len(CLASSES)}, but contains "
            f"{len(labels):,} from {low} to {high}."
        )
    # The format is column-major within a channel.
    pixels = np.memmap(images, np.uint8, "r").reshape(-1, *_SHAPE).swapaxes(2, 3)
    return pixels, labels.astype(np.int64) - 1


def resnet50(device: Device) -> Network:
    """The pooled layer of torchvision's ResNet-50, 2,048 features, trained on ImageNet."""
    try:
        models = importlib.import_module("torchvision.models")
        weights = models.ResNet50_Weights.IMAGENET1K_V1
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
        model = models.resnet50()
        model.load_state_dict(state)
    except Exception as error:  # a torchvision for another torch raises many types
        raise DataError(
            f"The pretrained network is not available ({reason(error)}): install torchvision with "
            "pip install 'drpm[vision]'."
        ) from error
    model.fc = nn.Identity()  # leaves the pooled layer
    return Network("resnet50-imagenet1k-v1", model.eval().to(device))


@torch.inference_mode()
def extract(images: NDArray[np.uint8], network: Network, device: Device) -> NDArray[np.float32]:
    """The features (N, F) of images (N, 3, H, W) of bytes, resized but not normalized."""
    features = []
    starts = range(0, len(images), _BATCH)
    for start in track(starts, f"Features of {network.name}", len(starts)):
        batch = torch.from_numpy(np.ascontiguousarray(images[start : start + _BATCH]))
        pixels = batch.to(device).float().div_(255)
        # Antialiasing selects the kernel of pillow.
        resized = interpolate(pixels, (SIDE, SIDE), mode="bicubic", antialias=True)
        # Bicubic interpolation overshoots at edges.
        features.append(network.extract(resized.clamp_(0, 1)).float().cpu())
    return torch.cat(features).numpy()
