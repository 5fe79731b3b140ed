"""The arrays of a finished clustering: what its figures are drawn from."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.clustering.columns import telling_columns
from drpm.clustering.examples import nearest_rows, shrunk
from drpm.clustering.fitted import FittedClustering
from drpm.data.preprocessing import class_labels, class_names
from drpm.data.types import Dataset
from drpm.report.figure_data import pack_arrays

# How much of everything a page shows.
SAMPLES: Final = 32
ROW_SAMPLES: Final = 100  # of tables, whose quantiles are drawn
COLUMNS: Final = 40  # of wide tables, those that tell clusters apart
EXAMPLES: Final = 10
EXAMPLE_SIDE: Final = 48  # pixels
PARTITION: Final = 128
POINTS: Final = 4000


def draw_arrays(
    fitted: FittedClustering, data: Dataset, seed: int, images: Tensor | None = None
) -> bytes:
    """What the figures need, as an archive of plain arrays.

    Arguments:
        fitted: The clustering.
        data: What was clustered.
        seed: Settles what is generated.
        images: (N, C, H, W), those that the rows of the test part were made of.
    """
    return pack_arrays({**_generated(fitted, data, seed, images), **_judged(fitted, data)})


def _generated(
    fitted: FittedClustering, data: Dataset, seed: int, images: Tensor | None
) -> dict[str, NDArray[Any]]:
    """Samples of every cluster and of a partition."""
    device, clusters = fitted.device, fitted.clusters
    generator = torch.Generator(device).manual_seed(seed)
    count = ROW_SAMPLES if len(data.input_shape) == 1 else SAMPLES
    each = torch.arange(clusters, device=device).repeat_interleave(count)
    samples = fitted.sample(each, generator)
    members = fitted.draw_partition(PARTITION, generator).sort().values
    points = fitted.sample(members, generator)
    arrays = {"partition_clusters": _plain(members)}
    if images is not None:
        rows = data.test.inputs.flatten(1)
        nearest = nearest_rows(samples.unflatten(0, (clusters, count))[:, :EXAMPLES], rows)
        arrays["examples"] = _compact(_squeeze(shrunk(images[nearest.cpu()], EXAMPLE_SIDE)))
    undo = unstandardiser(data)
    samples = undo(samples).reshape(clusters, count, *data.input_shape)
    points = undo(points).reshape(-1, *data.input_shape)
    if len(data.input_shape) > 1:
        arrays["samples"] = _compact(_squeeze(samples))
        arrays["partition_points"] = _compact(_squeeze(points))
        return arrays
    names = data.columns
    if (width := data.input_shape[0]) > COLUMNS:
        deviations = undo(data.test.inputs).std(0, correction=0)
        chosen = telling_columns(samples, deviations, COLUMNS).to(samples.device)
        samples, points = samples[..., chosen], points[..., chosen]
        names = tuple(names[i] if names else f"column {i + 1}" for i in chosen.tolist())
        arrays["num_columns"] = np.array(width)
    if names:
        arrays["column_names"] = np.array(names)
    return {**arrays, "samples": _plain(samples), "partition_points": _plain(points)}


def _judged(fitted: FittedClustering, data: Dataset) -> dict[str, NDArray[Any]]:
    """Where real rows lie."""
    rows = data.test.inputs.flatten(1)
    chosen = fitted.predict(rows)
    held = fitted.predict(data.train.inputs.flatten(1))
    arrays = {
        "latent": _plain(_flatten_map(fitted.embed(rows[:POINTS]).double()).float()),
        "latent_clusters": _plain(chosen[:POINTS]),
        "sizes": _plain(torch.bincount(held, minlength=fitted.clusters)),
    }
    labels, names = class_labels(data, data.test), class_names(data)
    if labels is not None:
        confusion = torch.zeros(len(names), fitted.clusters, dtype=torch.int64)
        confusion.index_put_(
            (labels.cpu(), chosen.cpu()), torch.ones(len(labels), dtype=torch.int64), True
        )
        arrays["latent_labels"] = _plain(labels[:POINTS])
        arrays["confusion"] = _plain(confusion)
        arrays["label_names"] = np.array(names)
    return arrays


def _plain(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _compact(images: Tensor) -> NDArray[Any]:
    """Images in the usual range as bytes, any others as they are."""
    usual = bool(((images >= 0) & (images <= 1)).all())
    return _plain((images * 255).round().to(torch.uint8) if usual else images)


def unstandardiser(data: Dataset) -> Callable[[Tensor], Tensor]:
    """What gives rows of a data set back as they were before they were standardised.

    On the CPU and in double precision, where they were: float32 would lose minutes of a time stamp.
    """
    mean, std = data.preprocessing.get("mean"), data.preprocessing.get("std")
    if mean is None or std is None:
        return lambda rows: rows
    shift, scale = (x.cpu().double() for x in (mean, std))
    return lambda rows: rows.cpu().double() * scale + shift


def _squeeze(images: Tensor) -> Tensor:
    """Grey images without their one channel."""
    return images.squeeze(-3) if images.dim() >= 4 and images.shape[-3] == 1 else images


def _flatten_map(codes: Tensor) -> Tensor:
    """Codes in the plane: their two main directions."""
    centred = codes - codes.mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh
    plane: Tensor = centred @ directions[:2].mT
    # A single code, or codes of one number, have only one direction.
    return torch.nn.functional.pad(plane, (0, 2 - plane.shape[-1]))
