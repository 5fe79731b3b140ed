"""Real images beside generated rows: features of images can be generated, but not looked at."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from drpm.data import DataError, load
from drpm.data.registry import DATASETS
from drpm.data.types import Dataset


def images_behind(name: str, data: Dataset) -> Tensor | None:
    """The images (N, C, H, W) of the test part, where its rows were made of images at hand.

    Arguments:
        name: The data set, or a file.
        data: What was loaded of it.
    """
    spec = DATASETS.get(name)
    if spec is None or not spec.sheet_options or len(data.input_shape) != 1:
        return None
    # What a contact sheet shows is what can be looked at.
    options: dict[str, Any] = dict(spec.sheet_options)
    try:
        images = load(name, **options).test.inputs
    except DataError:
        return None
    return images if images.dim() == 4 and len(images) == len(data.test) else None


def nearest_rows(samples: Tensor, rows: Tensor) -> Tensor:
    """(K, m): for every sample of a cluster the row next to it, no row twice in a cluster.

    Arguments:
        samples: (K, m, d), generated rows of every cluster.
        rows: (N, d), real ones; where there are fewer of them than samples, m is N.
    """
    count = min(samples.shape[1], len(rows))
    found = torch.empty(len(samples), count, dtype=torch.int64, device=rows.device)
    for cluster, own in enumerate(samples):
        distances = torch.cdist(own[:count], rows)
        for place in range(count):
            found[cluster, place] = distances[place].argmin()
            distances[:, found[cluster, place]] = torch.inf
    return found


def shrunk(images: Tensor, side: int) -> Tensor:
    """Images (..., C, H, W) no larger than so many pixels, as means of what they cover."""
    height, width = images.shape[-2:]
    factor = side / max(height, width)
    if factor >= 1:
        return images
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    small: Tensor = interpolate(images.flatten(0, -4), size=size, mode="area")
    return small.reshape(*images.shape[:-2], *size)
