"""CelebA: faces with forty attributes each."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field

from drpm.data.catalogue import DATASETS
from drpm.data.files import cached_array, obtain, track
from drpm.data.own import decode
from drpm.data.types import DataError, Dataset, Device, Split, reason

SIDE = 64

_PARTS = {"train": 0, "validation": 1, "test": 2}


def load(
    *,
    device: Device = "cpu",
    num_tasks: Annotated[int, Field(ge=1, le=40)] = 40,
    evaluate_on: Literal["validation", "test"] = "validation",
) -> Dataset:
    """Faces (3, 64, 64) of the official split, the channels' means subtracted; 0/1 targets.

    The images are resized, not cropped. Pixels are scaled to [0, 1], and the means of the training
    split, ``mean`` (3, 1, 1) in ``preprocessing``, are subtracted.

    Args:
        device: Where the tensors are stored.
        num_tasks: The number of attributes to use, in alphabetical order.
        evaluate_on: The test split: "validation" or "test".
    """
    attributes, parts, folder = read_listing()
    tasks, splits = list(attributes)[:num_tasks], []
    for part in ("train", evaluate_on):
        rows = attributes[parts == _PARTS[part]]
        if rows.empty:
            raise DataError(f"list_eval_partition.txt assigns no image to the {part} part.")
        pixels = _read_images([folder / image for image in rows.index], part)
        if part == "train":
            total = pixels.sum((0, 2, 3), dtype=np.int64)  # exact
            channels = torch.from_numpy(total / (255 * len(pixels) * SIDE**2)).float()
            mean = channels.reshape(3, 1, 1).to(device)
        inputs = torch.from_numpy(pixels).to(device).float().div_(255).sub_(mean)
        targets = {task: torch.tensor(rows[task].to_numpy()).to(device) for task in tasks}
        splits.append(Split(inputs, targets))
    classes = dict.fromkeys(tasks, ("no", "yes"))
    train, test = splits
    return Dataset("celeba", train, test, classes=classes, preprocessing={"mean": mean})


def read_listing() -> tuple[pd.DataFrame, "pd.Series[int]", Path]:
    """The sorted attributes (0 or 1) and the split of every image, and the folder of the images."""
    spec = DATASETS["celeba"]
    found = obtain(spec.files, instructions=spec.instructions)
    folder, attributes, partition = found.values()
    try:
        # The number of images, the names of the attributes, and a row for each image.
        names = pd.read_csv(attributes, skiprows=1, nrows=0, sep=r"\s+").columns
        columns = ["image", *names]
        values = pd.read_csv(attributes, sep=r"\s+", skiprows=2, names=columns, index_col="image")
        parts = pd.read_csv(partition, sep=r"\s+", names=["image", "part"], index_col="image")
        joined = values.join(parts)  # NaN where an image is not in the partition
        available = set(os.listdir(folder))
    except (OSError, ValueError) as error:
        raise DataError(f"The files of CelebA cannot be read ({reason(error)}).") from error
    if not values.isin([-1, 1]).all(axis=None):
        raise DataError(f"{attributes} should contain 1 or -1 for each attribute of each image.")
    if not joined["part"].isin(_PARTS.values()).all():
        listing = attributes.name
        raise DataError(f"{partition} should contain 0, 1 or 2 for each image of {listing}.")
    if missing := sorted({*values.index} - available):
        raise DataError(f"{folder / missing[0]} is listed but missing.")
    return (values[sorted(values)] == 1).astype(np.int64), joined["part"], folder


def _read_images(paths: list[Path], part: str) -> NDArray[np.uint8]:
    """Read or load from the cache the images (N, 3, 64, 64)."""

    def decode_all() -> NDArray[np.uint8]:
        pixels = np.empty((len(paths), 3, SIDE, SIDE), np.uint8)
        # Pillow releases the interpreter lock.
        with ThreadPoolExecutor() as pool:
            decoded = pool.map(lambda path: decode(path, (SIDE, SIDE)), paths)
            for index, image in enumerate(track(decoded, f"CelebA, {part}", len(paths))):
                pixels[index] = np.rint(255 * image)
        return pixels

    identity = "".join(f"{path.name} {path.stat().st_size}\n" for path in paths)
    return cached_array(f"celeba/cache/{part}-{SIDE}x{SIDE}", identity, decode_all)
