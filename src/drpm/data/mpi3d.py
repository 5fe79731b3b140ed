"""MPI3D: a robot arm with an object at its tip, drawn or photographed for every factor vector."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.errors import DataError
from drpm.data.files import obtain
from drpm.data.npz import map_array
from drpm.data.types import Dataset, DatasetSpec, Device, RemoteFile, Split

# In the order the images are numbered in: the last factor changes fastest.
FACTORS: Mapping[str, tuple[str, ...]] = {
    "object_color": ("white", "green", "red", "blue", "brown", "olive"),
    "object_shape": ("cone", "cube", "cylinder", "hexagonal", "pyramid", "sphere"),
    "object_size": ("small", "large"),
    "camera_height": ("top", "center", "bottom"),
    "background_color": ("purple", "sea green", "salmon"),
    "horizontal_axis": tuple(map(str, range(40))),
    "vertical_axis": tuple(map(str, range(40))),
}

FACTOR_NAMES = tuple(FACTORS)
FACTOR_SIZES = tuple(len(values) for values in FACTORS.values())
NUM_IMAGES = prod(FACTOR_SIZES)

_SIDE = 64
# The first is where the authors send people now. The second served a damaged file of the
# photographs for a time, and they have no hash to tell: only drawn images are taken from there.
_AUTHORS = "https://huggingface.co/datasets/waleedgondal/mpi3d/resolve/main"
_BUCKET = "https://storage.googleapis.com/mpi3d_disentanglement_dataset/data"

VARIANTS = {
    "toy": RemoteFile(
        "mpi3d/mpi3d_toy.npz",
        (f"{_AUTHORS}/mpi3d_toy.npz", f"{_BUCKET}/mpi3d_toy.npz"),
        md5="55889cb7c7dfc655d6e0277beee88868",
    ),
    "realistic": RemoteFile(
        "mpi3d/mpi3d_realistic.npz",
        (f"{_AUTHORS}/mpi3d_realistic.npz", f"{_BUCKET}/mpi3d_realistic.npz"),
        optional=True,
    ),
    "real": RemoteFile("mpi3d/mpi3d_real.npz", (f"{_AUTHORS}/mpi3d_real.npz",), optional=True),
}


def index_of(factors: Tensor) -> Tensor:
    """The number (...) of the image of each factor vector (..., 7).

    Example:
        >>> index_of(torch.tensor([[0, 0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0]])).tolist()
        [1, 172800]
    """
    sizes = torch.tensor(FACTOR_SIZES, device=factors.device)
    wrong = (factors < 0) | (factors >= sizes)
    if wrong.any():
        place = int(wrong.nonzero()[0, -1])
        raise DataError(
            f"The factor '{FACTOR_NAMES[place]}' must be from 0 to {FACTOR_SIZES[place] - 1}."
        )
    strides = [prod(FACTOR_SIZES[place + 1 :]) for place in range(len(FACTOR_SIZES))]
    return (factors * torch.tensor(strides, device=factors.device)).sum(-1)


def factors_of(indices: Tensor) -> Tensor:
    """The factor vector (..., 7) of the image of each number (...).

    Example:
        >>> factors_of(torch.tensor(172801)).tolist()
        [1, 0, 0, 0, 0, 0, 1]
    """
    return torch.stack(torch.unravel_index(indices, FACTOR_SIZES), dim=-1)


@dataclass(frozen=True)
class FactorImages:
    """Every image of the set, read from the disk as it is asked for.

    Args:
        pixels: shape (images, 64, 64, 3), bytes.
    """

    pixels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.pixels)

    def images(self, indices: Tensor) -> Tensor:
        """The images (N, 3, 64, 64) in [0, 1] of these numbers, on the device of the numbers."""
        order = indices.argsort()  # the disk is read from front to back
        chosen = torch.from_numpy(self.pixels[indices[order].cpu().numpy()]).to(indices.device)
        back = order.argsort()
        # The bytes are moved about before they are widened: a quarter of the work.
        return chosen.permute(0, 3, 1, 2).contiguous()[back].float().div_(255)

    def render(self, factors: Tensor) -> Tensor:
        """The images (N, 3, 64, 64) in [0, 1] of these factor vectors (N, 7)."""
        return self.images(index_of(factors))


def open_images(variant: str = "toy") -> FactorImages:
    """Find or download a variant of the set: "toy", "realistic" or "real"."""
    if variant not in VARIANTS:
        raise DataError(f"mpi3d has no variant '{variant}': there are {', '.join(VARIANTS)}.")
    file = replace(VARIANTS[variant], optional=False)
    path = obtain([file])[file.path]
    pixels = map_array(path, "images")
    expected = (NUM_IMAGES, _SIDE, _SIDE, 3)
    if pixels.shape != expected or pixels.dtype != np.uint8:
        raise DataError(
            f"{path} should hold bytes of the shape {expected} under 'images', but holds "
            f"{pixels.dtype} of the shape {pixels.shape}."
        )
    return FactorImages(pixels)


def load(
    *,
    device: Device = "cpu",
    seed: int = 0,
    variant: str = "toy",
    num_train: int = 10_000,
    num_test: int = 5_000,
) -> Dataset:
    """Images (3, 64, 64) in [0, 1] drawn from the set without repetition; seven targets.

    All 1,036,800 images would fill 51 GB as floats: `open_images` gives any of them.

    Args:
        device: where the tensors go.
        seed: settles which images are drawn.
        variant: "toy", "realistic" or "real".
        num_train: how many images to learn from.
        num_test: how many further images to be judged on.
    """
    everything = open_images(variant)
    if min(num_train, num_test) < 1 or num_train + num_test > len(everything):
        raise DataError(
            f"num_train and num_test must be at least 1 and together at most {len(everything):,}, "
            f"not {num_train:,} and {num_test:,}."
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(everything), generator=generator)[: num_train + num_test]

    def split(indices: Tensor) -> Split:
        factors = factors_of(indices).to(device)
        targets = {name: factors[:, place].contiguous() for place, name in enumerate(FACTOR_NAMES)}
        return Split(everything.images(indices).to(device), targets)

    train, test = split(drawn[:num_train]), split(drawn[num_train:])
    return Dataset("mpi3d", train, test, classes=dict(FACTORS))


def inspect() -> None:
    """Check the structure of the file."""
    open_images("toy")


SPEC = DatasetSpec(
    name="mpi3d",
    title="A robot arm and its object, for every combination of seven factors",
    source="Gondal et al.: On the Transfer of Inductive Bias (2019)",
    licence="CC BY 4.0",
    shapes="1,036,800 images of 3x64x64, seven factors of 6, 6, 2, 3, 3, 40 and 40 values",
    load=load,
    files=tuple(VARIANTS.values()),
    options=("variant", "num_train", "num_test"),
    inspect=inspect,
)
