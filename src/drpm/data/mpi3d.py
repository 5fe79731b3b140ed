"""MPI3D: a robot arm with an object at its tip, one image for every factor vector."""

import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.catalogue import DATASETS, RemoteFile
from drpm.data.files import obtain
from drpm.data.types import DataError, Dataset, Split, reason

# In the order of the images: the last factor changes fastest.
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

Variant = Literal["toy", "realistic", "real"]


def check_factors(factors: Tensor) -> None:
    """Raise unless factors are integers (..., 7) within their sizes."""
    kind, shape = factors.dtype, tuple(factors.shape)
    is_integer = not (kind.is_floating_point or kind.is_complex or kind == torch.bool)
    if not is_integer or shape[-1:] != (len(FACTOR_SIZES),):
        raise DataError(f"factors must be integers of shape (..., 7), but got {kind}, {shape}.")
    wrong = (factors < 0) | (factors >= torch.tensor(FACTOR_SIZES, device=factors.device))
    if wrong.any():
        place, value = int(wrong.nonzero()[0, -1]), int(factors[wrong][0])
        name, last = FACTOR_NAMES[place], FACTOR_SIZES[place] - 1
        raise DataError(f"The factor '{name}' must be from 0 to {last}, but got {value}.")


def index_of(factors: Tensor) -> Tensor:
    """The index (...) of the image of each factor vector (..., 7).

    Example:
        >>> index_of(torch.tensor([[0, 0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0]])).tolist()
        [1, 172800]
    """
    check_factors(factors)
    strides = [prod(FACTOR_SIZES[place + 1 :]) for place in range(len(FACTOR_SIZES))]
    return (factors * torch.tensor(strides, device=factors.device)).sum(-1)


def factors_of(indices: Tensor) -> Tensor:
    """The factor vector (..., 7) of the image at each index (...).

    Example:
        >>> factors_of(torch.tensor(172801)).tolist()
        [1, 0, 0, 0, 0, 0, 1]
    """
    low, high = map(int, indices.aminmax()) if indices.numel() else (0, 0)
    if low < 0 or high >= NUM_IMAGES:
        raise DataError(f"An index must be from 0 to {NUM_IMAGES - 1}, but got {low} to {high}.")
    return torch.stack(torch.unravel_index(indices.long(), FACTOR_SIZES), dim=-1)


def draw_indices(seed: int, num_train: int, num_test: int) -> tuple[Tensor, Tensor]:
    """The indices of a training and a test split, sampled without replacement."""
    if min(num_train, num_test) < 1 or num_train + num_test > NUM_IMAGES:
        raise DataError(
            f"num_train and num_test must be at least 1 and together at most {NUM_IMAGES:,}, "
            f"not {num_train:,} and {num_test:,}."
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(NUM_IMAGES, generator=generator)[: num_train + num_test]
    return drawn[:num_train], drawn[num_train:]


def factor_targets(factors: Tensor) -> dict[str, Tensor]:
    """The factors (N, 7) as targets by name."""
    return {name: factors[:, place].contiguous() for place, name in enumerate(FACTOR_NAMES)}


def open_images(variant: Variant = "toy") -> NDArray[np.uint8]:
    """All images (1,036,800, 64, 64, 3) as bytes, memory-mapped; downloaded if not on disk."""
    (file,) = DATASETS["mpi3d"].files
    if variant != "toy":
        # The second mirror has served damaged photographs, which have no published hash.
        urls = file.urls[:1] if variant == "real" else file.urls
        served = tuple(url.replace("toy", variant) for url in urls)
        file = RemoteFile(f"mpi3d/mpi3d_{variant}.npz", served)
    (path,) = obtain([file]).values()
    try:
        pixels = _map_images(path)
    except Exception as error:  # damaged files raise many types
        raise DataError(f"{path} cannot be read ({reason(error)}).") from error
    expected = (NUM_IMAGES, 64, 64, 3)
    if pixels.shape != expected or pixels.dtype != np.uint8:
        raise DataError(
            f"{path} should contain bytes of shape {expected} under 'images', but contains "
            f"{pixels.dtype} of shape {pixels.shape}."
        )
    return pixels


def _map_images(path: Path) -> NDArray[Any]:
    """Memory-map the array ``images`` of an npz file, or load it if it is compressed."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        member = archive.getinfo("images.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            with archive.open(member) as stream:
                return npy.read_array(stream, allow_pickle=False)
        # The array follows a zip header of unknown length.
        file.seek(member.header_offset)
        file.seek(member.header_offset + file.read(4096).index(npy.MAGIC_PREFIX))
        npy.read_magic(file)
        shape, fortran, dtype = npy.read_array_header_1_0(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def load(
    *,
    seed: int = 0,
    variant: Variant = "toy",
    num_train: int = 10_000,
    num_test: int = 5_000,
) -> Dataset:
    """Images (3, 64, 64) in [0, 1] sampled without replacement; the targets are the factors."""
    pixels = open_images(variant)

    def split(indices: Tensor) -> Split:
        ordered, order = indices.sort()  # for sequential reads
        images = torch.from_numpy(pixels[ordered.numpy()]).permute(0, 3, 1, 2)[order.argsort()]
        return Split(images.float().div_(255), factor_targets(factors_of(indices)))

    train, test = map(split, draw_indices(seed, num_train, num_test))
    return Dataset("mpi3d", train, test, classes=dict(FACTORS))
