"""The arrays of a finished network with several tasks: what its figures are drawn from."""

import math
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data import multimnist
from drpm.multitask.evaluation import TaskScores, chance_correlation, rank_correlation
from drpm.multitask.sweeps import NOISE
from drpm.multitask.tasks import TaskData, read_tasks
from drpm.report.archive import pack_arrays

SHOWN: Final = 6  # images
_MAX_BARS: Final = 40
_MAX_CELLS: Final = 80


def draw_arrays(data: TaskData, scores: TaskScores, width: int) -> bytes:
    """What the figures need, as an archive of plain arrays.

    Arguments:
        data: What the network was judged on.
        scores: What it is worth.
        width: How many neurons its tasks share.
    """
    arrays: dict[str, NDArray[Any]] = {}
    arrays |= _noisy_images() if data.name == "multimnist" else _images(data)
    arrays |= _bars(
        "accuracy",
        scores.accuracies,
        data.tasks,
        "accuracy",
        "Accuracy of every task",
        "The part of the test images that each task tells rightly",
    )
    if scores.sizes is not None and scores.shares is not None:
        arrays |= _bars(
            "sizes-by-task",
            scores.sizes,
            data.tasks,
            "neurons",
            "Neurons of every task",
            f"How many of {width} neurons each task has, on average over test images",
        )
        arrays |= _owners(data.tasks, scores.shares)
        if data.noise_ratios:
            arrays |= _by_noise(scores.sizes, data.noise_ratios)
    return pack_arrays(arrays)


def _noisy_images() -> dict[str, NDArray[Any]]:
    return {
        "grid__images": _noisy_grid(),
        "grid_columns__images": np.array([f"{ratio:.1f}" for ratio in NOISE]),
        "title__images": np.array("Images at growing noise ratios"),
        "about__images": np.array(
            "Test images, one a row; the right digit loses more of its pixels from column to "
            "column."
        ),
    }


# The same for every run, and ten times all of MNIST is read for it.
@cache
def _noisy_grid() -> NDArray[np.uint8]:
    """The same images at growing noise ratios, which are the columns."""
    columns = [
        read_tasks(multimnist.load(noise=ratio, num_train=1, num_test=SHOWN)).test_images
        for ratio in NOISE
    ]
    return torch.stack(columns, 1).numpy()


def _images(data: TaskData) -> dict[str, NDArray[Any]]:
    return {
        "grid__images": data.test_images[None, :SHOWN].cpu().numpy(),
        "title__images": np.array("Test images"),
        "about__images": np.array("Some images of the test part."),
    }


def _bars(
    name: str, values: Tensor, groups: tuple[str, ...], unit: str, title: str, about: str
) -> dict[str, NDArray[Any]]:
    """One bar for each task, as far as they fit."""
    shown, names = values.tolist()[:_MAX_BARS], groups[:_MAX_BARS]
    listed = ", ".join(f"{task} {value:.3g}" for task, value in zip(names, shown, strict=True))
    return {
        f"bars__{name}": np.array(shown)[:, None],
        f"bars_groups__{name}": np.array(names),
        f"bars_names__{name}": np.array([unit]),
        f"title__{name}": np.array(title),
        f"about__{name}": np.array(f"{about}: {listed}."),
    }


def _owners(tasks: tuple[str, ...], shares: Tensor) -> dict[str, NDArray[Any]]:
    """Which neurons go to which task."""
    shown = shares[:_MAX_CELLS, :_MAX_CELLS]
    neurons = shown.shape[1]
    part = "" if neurons == shares.shape[1] else f" Of the neurons the first {neurons} are shown."
    # By their owners, and those that a task has most often first.
    owner, most = shown.argmax(0).tolist(), shown.amax(0).tolist()
    order = sorted(range(neurons), key=lambda neuron: (owner[neuron], -most[neuron]))
    return {
        "matrix__neurons": shown[:, order].numpy(),
        "matrix_rows__neurons": np.array(tasks[:_MAX_CELLS]),
        "matrix_columns__neurons": np.array([str(neuron) for neuron in order]),
        "title__neurons": np.array("Which task has which neuron"),
        "about__neurons": np.array(
            "The part of the test images for which a task, a row, has more of a neuron, a column, "
            f"than any other; neurons are in the order of the tasks that have them.{part}"
        ),
    }


def _by_noise(sizes: Tensor, ratios: tuple[float, ...]) -> dict[str, NDArray[Any]]:
    """Sizes in the order of how noisy the tasks are."""
    order = sorted(range(len(ratios)), key=ratios.__getitem__)
    found = rank_correlation(sizes.tolist(), ratios)
    title = "Neurons against the noise ratio of the task"
    about = "How many neurons tasks have, on average, in the order of their noise ratios"
    if math.isfinite(found):
        title = f"{title}, rank correlation {found:.2f}"
        about = (
            f"{about} (by chance alone the rank correlation would be about as far from zero as "
            f"{chance_correlation(len(ratios)):.2f})"
        )
    return _bars(
        "sizes-by-noise",
        sizes[order],
        tuple(f"{ratios[task]:.2f}" for task in order),
        "neurons",
        title,
        about,
    )
