"""Pairs of images of your own."""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from drpm.data import image_folder, own
from drpm.data.types import DataError, Device

Size = int | tuple[int, int] | None


@dataclass(frozen=True)
class OwnPairs:
    """Given pairs.

    Args:
        first: The first images, (P, C, H, W) in [0, 1].
        second: The second images, likewise.
        names: Names of the pairs; by default their numbers, from 0 on.
    """

    first: Tensor
    second: Tensor
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count, shapes = len(self.first), [tuple(x.shape) for x in (self.first, self.second)]
        if count == 0 or len(shapes[0]) != 4 or shapes[0][1:] != shapes[1][1:]:
            raise ValueError(
                "first and second must be images (P, C, H, W) of one size, of one pair or more, "
                f"but got {shapes[0]} and {shapes[1]}."
            )
        if not self.names:
            object.__setattr__(self, "names", tuple(map(str, range(count))))
        if len(self.names) != count:
            raise ValueError(
                f"names must be {count}, one for each pair, but got {len(self.names)}."
            )


@final
class OwnSampler:
    """The ``augment`` of a training program: random given pairs in place of a batch.

    Args:
        pairs: The pairs.
        device: Where they go.
    """

    def __init__(self, pairs: OwnPairs, device: Device = "cpu") -> None:
        self.first, self.second = pairs.first.to(device), pairs.second.to(device)

    def __call__(
        self, batch: Mapping[str, Tensor], generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        rows = next(iter(batch.values())).shape[0]
        place: dict[str, Any] = {"generator": generator, "device": self.first.device}
        chosen = torch.randint(len(self.first), (rows,), **place)
        return {"first": self.first[chosen], "second": self.second[chosen]}


def require_views(first: Tensor, second: Tensor) -> None:
    """Refuse tensors that are not images (P, C, H, W) of pairs, with values in [0, 1]."""
    for name, images in (("first", first), ("second", second)):
        if not isinstance(images, Tensor):
            raise ValueError(f"{name} must be a tensor, but got {type(images).__name__}.")
        if not images.is_floating_point():
            raise ValueError(f"{name} must hold floating numbers, but got {images.dtype}.")
        if images.dim() != 4 or len(images) == 0:
            raise ValueError(
                f"{name} must have the shape (P, C, H, W), but got {tuple(images.shape)}."
            )
        # Written so that NaN is refused.
        if not ((images >= 0) & (images <= 1)).all():
            raise ValueError(
                f"{name} must have values from 0 to 1, but they go from {images.min():g} to "
                f"{images.max():g}."
            )
    if len(first) != len(second):
        raise ValueError(
            f"second must hold {len(first)} images as first does, but got {len(second)}."
        )


def load_pairs(path: str | Path, image_size: Size = None) -> OwnPairs:
    """Read pairs of images.

    Args:
        path: A folder of images named `<name>-1.png` and `<name>-2.png` (or `_1` and `_2`, or
            jpg); a folder of two folders `first` and `second` that hold images of the same names;
            or an npz file of the arrays `first` and `second`.
        image_size: Height and width to resize to; if None, all images must have one size.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(
            f"{path} does not exist; pairs come from arm, mpi3d, a folder of images or an npz file."
        )
    if path.is_dir():
        return _read_folder(path, image_size)
    if path.suffix.lower() == ".npz":
        return _read_arrays(path, image_size)
    raise DataError(f"{path} should be a folder of images or an npz file.")


def _read_folder(folder: Path, image_size: Size) -> OwnPairs:
    files = image_folder.images_in(folder)
    if files:
        views = [_name_and_view(file) for file in files]
    else:
        inner = {x.name: image_folder.images_in(x) for x in sorted(folder.iterdir()) if x.is_dir()}
        if [name for name, images in inner.items() if images] != ["first", "second"]:
            raise DataError(
                f"{folder} should hold pairs of images ({', '.join(sorted(image_folder.SUFFIXES))})"
                ", or two folders `first` and `second` of images, but does not."
            )
        files = [*inner["first"], *inner["second"]]
        views = [(file.stem, int(file.parent.name == "second")) for file in files]
    rows: dict[tuple[str, int], int] = {}
    for row, key in enumerate(views):
        if key in rows:
            raise DataError(f"{files[row]} has the name and number of {files[rows[key]].name}.")
        rows[key] = row
    for (name, view), row in rows.items():
        if (name, 1 - view) not in rows:
            other = ("first", "second")[1 - view]
            raise DataError(
                f"{files[row]} should have a partner, but its pair has no {other} image."
            )
    names = tuple(sorted({name for name, _ in rows}))
    # Read in the order of `images_in`.
    images = image_folder.load_folder(folder, image_size).train.inputs
    first, second = (images[[rows[name, view] for name in names]] for view in (0, 1))
    return OwnPairs(first, second, names)


def _name_and_view(file: Path) -> tuple[str, int]:
    found = re.fullmatch(r"(.+)[-_]([12])", file.stem)
    if found is None:
        raise DataError(
            f"{file} should be named as one of a pair, such as {file.stem}-1{file.suffix} or "
            f"{file.stem}-2{file.suffix}."
        )
    return found[1], int(found[2]) - 1


def _read_arrays(path: Path, image_size: Size) -> OwnPairs:
    arrays = _read_npz(path)
    if not {"first", "second"} <= set(arrays):
        raise DataError(
            f"{path} should hold the arrays `first` and `second`, but holds "
            f"{', '.join(arrays) or 'nothing'}."
        )
    first, second = arrays["first"], arrays["second"]
    if first.shape != second.shape or first.dtype != second.dtype or first.ndim < 3:
        raise DataError(
            f"{path} should hold images in two arrays of one shape and type, but `first` is "
            f"{first.dtype} of the shape {first.shape} and `second` {second.dtype} of the shape "
            f"{second.shape}."
        )
    # Together, because a single image would be refused.
    images = own.image_tensor(str(path), np.concatenate([first, second]))
    if image_size is not None:
        images = interpolate(images, image_size, mode="bilinear", antialias=True).clamp_(0, 1)
    return OwnPairs(images[: len(first)], images[len(first) :])


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opened here, because numpy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (AttributeError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a whole npz file of numbers.") from error
