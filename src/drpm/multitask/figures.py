"""The figures of a run."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data import multimnist
from drpm.multitask.models import ACCURACIES, SIZES, TaskScores
from drpm.multitask.tasks import TaskData, read_tasks
from drpm.report.plots import MAX_BARS, MAX_LINES, FigureSpec, pack_figures
from drpm.studies.sweeps import NOISE

SHOWN: Final = 6  # images
_MAX_CELLS: Final = 100


def figure_data(
    data: TaskData, scores: TaskScores, records: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """All figures, as an npz archive; tasks are ordered by noise ratio, if known.

    Args:
        data: The data.
        scores: Those after the last epoch.
        records: The test scores during training.
    """
    order, tasks = [*data.labels()], [*data.labels().values()]
    specs = [_images(data)]
    title = "Accuracy of each task"
    specs.append(_bars("accuracy", scores.accuracies[order], tasks, "accuracy", title))
    if scores.sizes is not None and scores.shares is not None:
        name = "sizes-by-noise" if data.noise_ratios else "sizes-by-task"
        title = f"Neurons of each task, out of {scores.shares.shape[-1]}"
        specs.append(_bars(name, scores.sizes[order], tasks, "neurons", title))
        specs.append(_owners(tasks, scores.shares[order]))
    for name, key in (("accuracy", ACCURACIES), ("neurons", SIZES)):
        by_epoch = {str(record["epoch"]): record[key] for record in records if key in record}
        if len(by_epoch) > 1:
            values = np.array([*by_epoch.values()])[:, order[:MAX_LINES]].T
            title = f"{name.capitalize()} of each task during training"
            place = f"{name}-over-training"
            specs.append(FigureSpec("lines", place, values, tasks[:MAX_LINES], [*by_epoch], title))
    return pack_figures(specs)


def _images(data: TaskData) -> FigureSpec:
    if data.name == "multimnist":
        title = "Test images with increasing noise ratio of the right digit"
        ratios = [f"{ratio:.1f}" for ratio in NOISE]
        return FigureSpec("grid", "images", _noisy_images(), (), ratios, title)
    images = data.test_images[None, :SHOWN].cpu().numpy()
    return FigureSpec("grid", "images", images, (), (), "Some test images")


# The same for every run, and it reads MNIST ten times.
@cache
def _noisy_images() -> NDArray[np.uint8]:
    columns = [
        read_tasks(multimnist.load(noise=ratio, num_train=1, num_test=SHOWN)).test_images
        for ratio in NOISE
    ]
    return torch.stack(columns, 1).numpy()


def _bars(name: str, values: Tensor, tasks: Sequence[str], unit: str, title: str) -> FigureSpec:
    """A bar for each task, as many as fit."""
    shown = values[:MAX_BARS].double()[:, None].numpy()
    return FigureSpec("bars", name, shown, tasks[:MAX_BARS], [unit], title)


def _owners(tasks: Sequence[str], shares: Tensor) -> FigureSpec:
    """Which task has which neuron."""
    shown = shares[:_MAX_CELLS, :_MAX_CELLS].numpy()
    # By the task that has a neuron most often.
    order = np.lexsort((-shown.max(0), shown.argmax(0)))
    return FigureSpec(
        "matrix",
        "neurons",
        shown[:, order],
        tasks[:_MAX_CELLS],
        [str(neuron) for neuron in order],
        "Assignment of neurons to tasks",
        "The fraction of test images for which a neuron (column) is assigned to a task "
        f"(row). At most {_MAX_CELLS} tasks and neurons are shown.",
    )
