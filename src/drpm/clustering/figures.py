"""The data of a clustering's figures."""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from drpm.clustering.fitted import FittedClustering
from drpm.data import DataError, load
from drpm.data.preprocessing import class_labels, class_names
from drpm.data.registry import DATASETS
from drpm.data.types import Dataset
from drpm.report.figure_data import pack_arrays

SAMPLES: Final = 32  # per cluster
ROW_SAMPLES: Final = 100  # per cluster of a table, for quantiles
COLUMNS: Final = 40  # of wide tables
EXAMPLES: Final = 10
EXAMPLE_SIDE: Final = 48  # pixels
PARTITION: Final = 128
POINTS: Final = 4000


def figure_data(
    fitted: FittedClustering, data: Dataset, seed: int, images: Tensor | None = None
) -> bytes:
    """The arrays of all figures, as a packed archive.

    Args:
        fitted: The clustering.
        data: The data set.
        seed: The random seed of the samples.
        images: (N, C, H, W), the images from which the rows of the test part were computed.
    """
    return pack_arrays({**_samples(fitted, data, seed, images), **_predictions(fitted, data)})


def _samples(
    fitted: FittedClustering, data: Dataset, seed: int, images: Tensor | None
) -> dict[str, NDArray[Any]]:
    """Samples of every cluster and of a partition."""
    device, clusters = fitted.device, fitted.clusters
    generator = torch.Generator(device).manual_seed(seed)
    count = ROW_SAMPLES if len(data.input_shape) == 1 else SAMPLES
    each = torch.arange(clusters, device=device).repeat_interleave(count)
    samples = fitted.sample(each, generator)
    members = fitted.draw_partition(PARTITION, generator).sort().values
    points = fitted.from_rows(fitted.sample(members, generator))
    arrays = {"partition_clusters": _array(members)}
    if images is not None:
        rows = data.test.inputs.flatten(1)
        nearest = nearest_rows(samples.unflatten(0, (clusters, count))[:, :EXAMPLES], rows)
        arrays["examples"] = _image_array(resize(images[nearest.cpu()], EXAMPLE_SIDE))
    samples = fitted.from_rows(samples).unflatten(0, (clusters, count))
    if len(data.input_shape) > 1:
        arrays["samples"], arrays["partition_points"] = _image_array(samples), _image_array(points)
        return arrays
    names = data.columns
    if (width := data.input_shape[0]) > COLUMNS:
        deviations = fitted.from_rows(data.test.inputs).std(0, correction=0)
        chosen = discriminative_columns(samples, deviations, COLUMNS).to(samples.device)
        samples, points = samples[..., chosen], points[..., chosen]
        names = tuple(names[i] if names else f"column {i + 1}" for i in chosen.tolist())
        arrays["num_columns"] = np.array(width)
    if names:
        arrays["column_names"] = np.array(names)
    return {**arrays, "samples": _array(samples), "partition_points": _array(points)}


def _predictions(fitted: FittedClustering, data: Dataset) -> dict[str, NDArray[Any]]:
    """Clusters and codes of the data."""
    rows = data.test.inputs.flatten(1)
    predicted = fitted.predict(rows)
    sizes = torch.bincount(fitted.predict(data.train.inputs.flatten(1)), minlength=fitted.clusters)
    arrays = {
        "latent": _array(_principal_plane(fitted.embed(rows[:POINTS]).double()).float()),
        "latent_clusters": _array(predicted[:POINTS]),
        "sizes": _array(sizes),
    }
    labels, names = class_labels(data, data.test), class_names(data)
    if labels is not None:
        confusion = torch.zeros(len(names), fitted.clusters, dtype=torch.int64)
        ones = torch.ones(len(labels), dtype=torch.int64)
        confusion.index_put_((labels.cpu(), predicted.cpu()), ones, accumulate=True)
        arrays["latent_labels"] = _array(labels[:POINTS])
        arrays["confusion"] = _array(confusion)
        arrays["label_names"] = np.array(names)
    return arrays


def source_images(name: str, data: Dataset) -> Tensor | None:
    """The images (N, C, H, W) from which the rows of the test part were computed, if available.

    Args:
        name: The name of the data set, or a path.
        data: The data set.
    """
    spec = DATASETS.get(name)
    if spec is None or not spec.sheet_options or len(data.input_shape) != 1:
        return None
    options: dict[str, Any] = dict(spec.sheet_options)
    try:
        images = load(name, **options).test.inputs
    except DataError:
        return None
    return images if images.dim() == 4 and len(images) == len(data.test) else None


def nearest_rows(samples: Tensor, rows: Tensor) -> Tensor:
    """The nearest row of each sample, (K, m), without repetition in a cluster.

    Args:
        samples: (K, m, d), samples of every cluster.
        rows: (N, d); if N is less than m, only N samples count.
    """
    count = min(samples.shape[1], len(rows))
    found = torch.empty(len(samples), count, dtype=torch.int64, device=rows.device)
    for cluster, own in enumerate(samples):
        distances = torch.cdist(own[:count], rows)
        for place in range(count):
            found[cluster, place] = distances[place].argmin()
            distances[:, found[cluster, place]] = torch.inf
    return found


def discriminative_columns(samples: Tensor, deviations: Tensor, count: int) -> Tensor:
    """Select columns that distinguish the clusters.

    Clusters take turns: each selects the column in which its mean is furthest above the mean of the
    others, in standard deviations. A heat map of the columns then has the clusters on its diagonal.

    Args:
        samples: (K, m, d), m rows of every cluster.
        deviations: (d,), the standard deviation of every column.
        count: The number of columns.

    Returns:
        Their indices, those of the first cluster first.

    Example:
        >>> means = torch.tensor([[0.0, 9, 0, 0], [0, 0, 1, 0], [0, 0, 0, 5]])
        >>> discriminative_columns(means[:, None], torch.ones(4), 3)
        tensor([1, 2, 3])
    """
    means = samples.double().mean(1)
    clusters, columns = means.shape
    others = (means.sum(0) - means) / max(clusters - 1, 1)
    spread = deviations.double()
    distance = torch.where(spread > 0, (means - others) / spread, 0.0)
    chosen: list[list[int]] = [[] for _ in range(clusters)]
    for turn in range(min(count, columns)):
        column = int(distance[turn % clusters].argmax())
        chosen[turn % clusters].append(column)
        distance[:, column] = -torch.inf
    return torch.tensor([column for own in chosen for column in own])


def resize(images: Tensor, side: int) -> Tensor:
    """Shrink images (..., C, H, W) to at most ``side`` pixels."""
    height, width = images.shape[-2:]
    factor = side / max(height, width)
    if factor >= 1:
        return images
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    small: Tensor = interpolate(images.flatten(0, -4), size=size, mode="area")
    return small.reshape(*images.shape[:-2], *size)


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _image_array(images: Tensor) -> NDArray[Any]:
    """Images without a single channel; as bytes if their values lie in [0, 1]."""
    if images.dim() >= 4 and images.shape[-3] == 1:
        images = images.squeeze(-3)
    in_range = bool(((images >= 0) & (images <= 1)).all())
    return _array((images * 255).round().to(torch.uint8) if in_range else images)


def _principal_plane(codes: Tensor) -> Tensor:
    """Codes projected to their first two principal components."""
    centered = codes - codes.mean(0)
    directions = torch.linalg.svd(centered, full_matrices=False).Vh
    plane: Tensor = centered @ directions[:2].mT
    # A single code, or codes of one number, have only one component.
    return pad(plane, (0, 2 - plane.shape[-1]))
