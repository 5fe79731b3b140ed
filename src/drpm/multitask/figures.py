"""The arrays that the figures of a run are drawn from."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data import multimnist
from drpm.multitask.evaluation import ACCURACIES, SIZES, TaskScores
from drpm.multitask.tasks import TaskData, display_names, read_tasks, sort_by_noise
from drpm.report.figure_data import MAX_BARS, MAX_LINES, pack_arrays
from drpm.studies.sweeps import NOISE

SHOWN: Final = 6  # images
_MAX_CELLS: Final = 100

Arrays = dict[str, NDArray[Any]]


def figure_data(
    data: TaskData, scores: TaskScores, width: int, records: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """The arrays of all figures, as an npz archive; tasks are ordered by noise ratio, if known.

    Args:
        data: The data.
        scores: Those after the last epoch.
        width: Number of neurons that the tasks share.
        records: The logged metrics.
    """
    order = sort_by_noise(len(data.tasks), data.noise_ratios)
    tasks = tuple(display_names(data.tasks, data.noise_ratios).values())
    arrays = _noisy_images() if data.name == "multimnist" else _images(data)
    arrays |= _bars(
        "accuracy", scores.accuracies[order], tasks, "accuracy", "Accuracy of each task"
    )
    if scores.sizes is not None and scores.shares is not None:
        name = "sizes-by-noise" if data.noise_ratios else "sizes-by-task"
        title = f"Neurons of each task, out of {width}"
        arrays |= _bars(name, scores.sizes[order], tasks, "neurons", title)
        arrays |= _owners(tasks, scores.shares[order])
    for name, key in (("accuracy", ACCURACIES), ("neurons", SIZES)):
        arrays |= _curves(name, [record for record in records if key in record], key, order, tasks)
    return pack_arrays(arrays)


def _curves(
    name: str,
    records: Sequence[Mapping[str, Any]],
    key: str,
    order: Sequence[int],
    tasks: tuple[str, ...],
) -> Arrays:
    """The values of each task over the epochs, if there are two or more."""
    by_epoch = {float(record["epoch"]): record[key] for record in records}
    epochs = sorted(by_epoch)
    values = np.array([by_epoch[epoch] for epoch in epochs], dtype=np.float64)
    if len(epochs) < 2 or not np.isfinite(values).all():
        return {}
    lines = values[:, order].T[:MAX_LINES]
    place = f"{name}-over-training"
    return {
        f"lines__{place}": lines,
        f"lines_names__{place}": np.array(tasks[: len(lines)]),
        f"lines_epochs__{place}": np.array(epochs),
        **_texts(
            place,
            f"{name.capitalize()} of each task during training",
            f"{name.capitalize()} of each of {len(lines)} tasks on the test part.",
        ),
    }


def _noisy_images() -> Arrays:
    return {
        "grid__images": _noisy_grid(),
        "grid_columns__images": np.array([f"{ratio:.1f}" for ratio in NOISE]),
        **_texts(
            "images",
            "Images by noise ratio",
            "Test images, one per row; from left to right the right digit loses more pixels.",
        ),
    }


# The same for every run, and it reads MNIST ten times.
@cache
def _noisy_grid() -> NDArray[np.uint8]:
    columns = [
        read_tasks(multimnist.load(noise=ratio, num_train=1, num_test=SHOWN)).test_images
        for ratio in NOISE
    ]
    return torch.stack(columns, 1).numpy()


def _images(data: TaskData) -> Arrays:
    return {
        "grid__images": data.test_images[None, :SHOWN].cpu().numpy(),
        **_texts("images", "Test images", "Some images of the test part."),
    }


def _bars(name: str, values: Tensor, tasks: tuple[str, ...], unit: str, title: str) -> Arrays:
    """A bar for each task; if there are too many, for evenly spaced ones."""
    count = len(tasks)
    places = np.linspace(0, count - 1, min(count, MAX_BARS)).round().astype(int).tolist()
    if len(places) < count:
        title = f"{title} ({len(places)} of {count} tasks)"
    return {
        f"bars__{name}": values[places].double().numpy()[:, None],
        f"bars_groups__{name}": np.array([tasks[place] for place in places]),
        f"bars_names__{name}": np.array([unit]),
        **_texts(name, title, f"{title}, on the test part; noise ratios in brackets, if known."),
    }


def _owners(tasks: tuple[str, ...], shares: Tensor) -> Arrays:
    """Which task has which neuron."""
    shown = shares[:_MAX_CELLS, :_MAX_CELLS].numpy()
    # By the task that has a neuron most often.
    order = np.lexsort((-shown.max(0), shown.argmax(0)))
    return {
        "matrix__neurons": shown[:, order],
        "matrix_rows__neurons": np.array(tasks[:_MAX_CELLS]),
        "matrix_columns__neurons": np.array([str(neuron) for neuron in order]),
        **_texts(
            "neurons",
            "Which task has which neuron",
            "The fraction of test images for which a task (row) has the largest share of a neuron "
            f"(column). At most {_MAX_CELLS} tasks and neurons are shown.",
        ),
    }


def _texts(name: str, title: str, about: str) -> Arrays:
    return {f"title__{name}": np.array(title), f"about__{name}": np.array(about)}
