"""Folders of images, whose subfolders, if there are any, are the classes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from drpm.data.files import track
from drpm.data.types import DataError, Dataset, Split, reason

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

_GREY_MODES = frozenset({"1", "L"})
# Pillow clips these at 255 when it converts them.
_DEEP_GREY_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I"})
_DEEPEST = 65535


def load_folder(folder: Path, image_size: int | tuple[int, int] | None = None) -> Dataset:
    """Images (channels, H, W) in [0, 1]: one channel if all of them are grey, else three.

    Args:
        folder: Holds the images, or one folder of images for each class.
        image_size: The height and width to resize to; if None, all must have one size.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if size is not None and min(size) < 1:
        raise DataError(f"image_size must be one or two whole numbers above 0, not {image_size}.")
    paths, labels, classes = _list(folder)
    decoded = [_floats(decode(path, size)) for path in track(paths, "Images", len(paths))]
    first = decoded[0]
    for path, image in zip(paths, decoded, strict=True):
        if image.shape[:2] != first.shape[:2]:
            raise DataError(
                f"{path} is {image.shape[1]}x{image.shape[0]} pixels large, but {paths[0].name} is "
                f"{first.shape[1]}x{first.shape[0]}: set image_size to resize them all (on the "
                "command line -o image_size=N, or --image-size N of drpm factors)."
            )
    if any(image.ndim == 3 for image in decoded):
        pixels = np.stack([_channels_first(image) for image in decoded])
    else:
        pixels = np.stack(decoded)[:, None]
    whole = Split(torch.from_numpy(pixels), {"label": torch.tensor(labels)} if labels else {})
    return Dataset(str(folder), whole, whole, {"label": classes} if labels else {})


def image_paths(folder: Path) -> list[Path]:
    """The files that :func:`load_folder` reads, in its order."""
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
    if len(paths) < 2:
        raise DataError(
            f"{folder} should hold at least two images ({', '.join(sorted(SUFFIXES))}), or folders "
            f"of images, but holds {len(paths)}."
        )
    return paths, labels, classes


def images_in(folder: Path) -> list[Path]:
    """The images directly in a folder, sorted by name."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def decode(
    path: Path, size: tuple[int, int] | None = None, mode: str | None = None
) -> NDArray[Any]:
    """Grey (H, W) or RGB (H, W, 3) bytes; floats in [0, 1] for grey images of 16 bits.

    Args:
        path: The image.
        size: The height and width to resize to.
        mode: "RGB" to convert grey images as well.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            deep = image.mode in _DEEP_GREY_MODES and mode is None
            if image.mode == "F":
                raise ValueError("it should have 8 or 16 bits per pixel, but holds floats")
            if deep:
                values = np.asarray(image)
                if values.min() < 0 or values.max() > _DEEPEST:
                    raise ValueError("it should have 8 or 16 bits per pixel, but has more")
                decoded = Image.fromarray(values.astype(np.float32) / np.float32(_DEEPEST))
            else:
                decoded = image.convert(mode or ("L" if image.mode in _GREY_MODES else "RGB"))
            if size is not None:
                decoded = decoded.resize(size[::-1], Image.Resampling.BILINEAR)
            pixels = np.asarray(decoded)
    except Exception as error:  # pillow's decoders raise many kinds on damaged files
        raise DataError(f"{path} cannot be read as an image ({reason(error)}).") from error
    return pixels.clip(0, 1) if deep else pixels


def _floats(image: NDArray[Any]) -> NDArray[np.float32]:
    return image.astype(np.float32) / np.float32(255) if image.dtype == np.uint8 else image


def _channels_first(image: NDArray[Any]) -> NDArray[Any]:
    return image.transpose(2, 0, 1) if image.ndim == 3 else np.repeat(image[None], 3, axis=0)
