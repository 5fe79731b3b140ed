"""A folder of images, whose folders within, where it has them, are the classes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from drpm.data.errors import DataError
from drpm.data.pictures import picture, without_warnings
from drpm.data.progress import track
from drpm.data.types import Dataset, Split

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

_GREY_MODES = frozenset({"1", "L"})
# Pillow cuts these off at 255 where it is asked for colours. The last is how its older versions
# open grey images of 16 bits.
_DEEP_GREY_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I"})
_DEEPEST = 65535


def load_folder(folder: Path, image_size: int | tuple[int, int] | None = None) -> Dataset:
    """Images (channels, H, W) in [0, 1]: one channel where all of them are grey, three otherwise.

    Args:
        folder: holds the images, or one folder of images for each class.
        image_size: the height and width to resize to; all must have one size where it is None.
    """
    size = _height_and_width(image_size)
    paths, labels, classes = _list(folder)
    with without_warnings():
        decoded = [_decode(path, size) for path in track(paths, "Images", len(paths))]
    first = decoded[0]
    for path, image in zip(paths, decoded, strict=True):
        if image.shape[:2] != first.shape[:2]:
            raise DataError(
                f"{path} is {image.shape[1]}x{image.shape[0]} pixels large, but {paths[0].name} is "
                f"{first.shape[1]}x{first.shape[0]}: set image_size to resize them all (on the "
                "command line -o image_size=N, or --image-size N of drpm factors)."
            )
    if any(image.dtype != np.uint8 for image in decoded):
        decoded = [_as_fractions(image) for image in decoded]
    if any(image.ndim == 3 for image in decoded):
        pixels = np.stack([_coloured(image) for image in decoded]).transpose(0, 3, 1, 2)
    else:
        pixels = np.stack(decoded)[:, None]
    inputs = torch.from_numpy(np.ascontiguousarray(pixels))
    if pixels.dtype == np.uint8:
        inputs = inputs.float().div_(255)
    targets = {"label": torch.tensor(labels)} if labels else {}
    everything = Split(inputs, targets)
    return Dataset(str(folder), everything, everything, {"label": classes} if labels else {})


def image_paths(folder: Path) -> list[Path]:
    """The files of the images that :func:`load_folder` reads, in its order."""
    return _list(folder)[0]


def _list(folder: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    paths = images_in(folder)
    labels: list[int] = []
    classes: tuple[str, ...] = ()
    if not paths:
        within = [inner for inner in sorted(folder.iterdir()) if inner.is_dir()]
        found = {inner.name: images for inner in within if (images := images_in(inner))}
        classes = tuple(found)
        paths = [path for images in found.values() for path in images]
        labels = [label for label, images in enumerate(found.values()) for _ in images]
    if not paths:
        raise DataError(
            f"{folder} should hold images ({', '.join(sorted(SUFFIXES))}), or folders of images, "
            "but holds none."
        )
    if len(paths) < 2:
        raise DataError(f"{folder} should hold at least two images, but holds one.")
    return paths, labels, classes


def images_in(folder: Path) -> list[Path]:
    """The images that lie in a folder itself, by their names."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def _decode(path: Path, size: tuple[int, int] | None) -> NDArray[Any]:
    """Grey (H, W) or colours (H, W, 3): bytes, or fractions of one where a byte is too little."""
    from PIL import Image

    with picture(path) as image:
        if image.mode == "F":
            raise DataError(f"{path} should have 8 or 16 bits a pixel, but holds fractions.")
        deep = image.mode in _DEEP_GREY_MODES
        if deep:
            decoded = Image.fromarray(_fractions(path, np.asarray(image)))
        else:
            decoded = image.convert("L" if image.mode in _GREY_MODES else "RGB")
        if size is not None:
            decoded = decoded.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        pixels = np.asarray(decoded)
    return pixels.clip(0, 1) if deep else pixels


def _fractions(path: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.min() < 0 or values.max() > _DEEPEST:
        raise DataError(
            f"{path} should have 8 or 16 bits a pixel, but holds numbers from {values.min()} to "
            f"{values.max()}."
        )
    return values.astype(np.float32) / np.float32(_DEEPEST)


def _as_fractions(image: NDArray[Any]) -> NDArray[np.float32]:
    if image.dtype == np.uint8:
        return image.astype(np.float32) / np.float32(255)
    return image


def _coloured(image: NDArray[Any]) -> NDArray[Any]:
    return image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)


def _height_and_width(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    sides: list[Any] = [image_size] * 2 if isinstance(image_size, int) else list(image_size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise DataError(f"image_size must be one or two whole numbers above 0, not {image_size}.")
    return sides[0], sides[1]
