"""The arrays of a finished network with several tasks: what its figures are drawn from."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data import mosaic, multimnist
from drpm.multitask.evaluation import (
    ACCURACIES,
    SIZES,
    TaskScores,
    chance_correlation,
    rank_correlation,
)
from drpm.multitask.sweeps import NOISE
from drpm.multitask.tasks import TaskData, by_noise, read_tasks, shown_tasks
from drpm.report.figure_data import MAX_BARS, MAX_LINES, pack_arrays
from drpm.report.numbers import format_distinct

SHOWN: Final = 6  # images
_MAX_CELLS: Final = 100


def draw_arrays(
    data: TaskData, scores: TaskScores, width: int, records: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """What the figures need, as an archive of plain arrays.

    Tasks are in the order of their noise ratios, where these are known.

    Arguments:
        data: What the network was judged on.
        scores: What it is worth.
        width: How many neurons its tasks share.
        records: The metrics of its run, of which some are looks at the test part.
    """
    arrays: dict[str, NDArray[Any]] = {}
    arrays |= _noisy_images() if data.name == "multimnist" else _images(data)
    order = by_noise(len(data.tasks), data.noise_ratios)
    tasks = tuple(shown_tasks(data.tasks, data.noise_ratios).values())
    noisy = " (in brackets its noise ratio)" if data.noise_ratios else ""
    arrays |= _bars(
        "accuracy",
        scores.accuracies[order],
        tasks,
        "accuracy",
        "Accuracy of every task",
        f"The part of the test images that each task{noisy} tells rightly",
    )
    if scores.sizes is not None and scores.shares is not None:
        sizes = scores.sizes[order]
        having = f"How many of {width} neurons each task{noisy} has, on average over test images"
        if data.noise_ratios:
            ratios = [data.noise_ratios[task] for task in order]
            arrays |= _by_noise(sizes, tasks, ratios, having)
        else:
            arrays |= _bars(
                "sizes-by-task", sizes, tasks, "neurons", "Neurons of every task", having
            )
        arrays |= _owners(tasks, scores.shares[order])
    for name, key in (("accuracy", ACCURACIES), ("neurons", SIZES)):
        arrays |= _course(name, [record for record in records if key in record], key, order, tasks)
    return pack_arrays(arrays)


def _course(
    name: str,
    looks: Sequence[Mapping[str, Any]],
    key: str,
    order: Sequence[int],
    tasks: tuple[str, ...],
) -> dict[str, NDArray[Any]]:
    """How tasks change in the course of training, if it was looked at more than once."""
    by_epoch = {float(look["epoch"]): look[key] for look in looks}
    epochs = sorted(by_epoch)
    if len(epochs) < 2:
        return {}
    values = np.array([by_epoch[epoch] for epoch in epochs], dtype=np.float64)
    lines = values[:, order].T[:MAX_LINES]
    if not np.isfinite(lines).all():
        return {}
    shown = name.capitalize()
    part = "" if len(lines) == len(tasks) else f" Of {len(tasks)} the first {len(lines)} are shown."
    return {
        f"lines__{name}-over-training": lines,
        f"lines_names__{name}-over-training": np.array(tasks[: len(lines)]),
        f"lines_epochs__{name}-over-training": np.array(epochs),
        f"title__{name}-over-training": np.array(f"{shown} of every task over training"),
        f"about__{name}-over-training": np.array(
            f"{shown} of every task, a line each, on the test part after so many epochs.{part}"
        ),
    }


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
    about = "Some images of the test part."
    if data.name == "mosaic":
        about = f"{about} {_tiles(data.noise_ratios)}"
    return {
        "grid__images": data.test_images[None, :SHOWN].cpu().numpy(),
        "title__images": np.array("Test images"),
        "about__images": np.array(about),
    }


def _tiles(ratios: tuple[float, ...]) -> str:
    """Which tile of a mosaic is how noisy, in words."""
    _, columns = mosaic.grid_shape(len(ratios))
    texts = [f"{ratio:.2f}" for ratio in ratios]
    rows = [", ".join(texts[start : start + columns]) for start in range(0, len(texts), columns)]
    return (
        "Tasks are the tiles, row by row from the upper left; the part of its pixels that a tile "
        f"loses is {'; in the next row '.join(rows)}."
    )


def _bars(
    name: str, values: Tensor, groups: tuple[str, ...], unit: str, title: str, about: str
) -> dict[str, NDArray[Any]]:
    """One bar for each task; of more than fit, some from the first to the last."""
    count = len(groups)
    places = np.linspace(0, count - 1, min(count, MAX_BARS)).round().astype(int).tolist()
    shown, names = values[places].tolist(), [groups[place] for place in places]
    if len(places) < count:
        title = f"{title} ({len(places)} of {count} tasks shown)"
        about = f"{about}, for {len(places)} of {count} tasks, evenly from the first to the last"
    texts = zip(names, format_distinct(shown), strict=True)
    listed = ", ".join(f"{task} {value}" for task, value in texts)
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
    left_out = zip(("tasks", "neurons"), shown.shape, shares.shape, strict=True)
    part = "".join(
        f" Of {count} {what} the first {some} are shown."
        for what, some, count in left_out
        if some < count
    )
    # By the tasks that have them, and those that a task has most often first.
    order = np.lexsort((-shown.numpy().max(0), shown.numpy().argmax(0))).tolist()
    return {
        "matrix__neurons": shown[:, order].numpy(),
        "matrix_rows__neurons": np.array(tasks[:_MAX_CELLS]),
        "matrix_columns__neurons": np.array([str(neuron) for neuron in order]),
        "title__neurons": np.array("Which task has which neuron"),
        "about__neurons": np.array(
            "The part of the test images for which a task, a row, has more of a neuron, a column, "
            "than any other; neurons are in the order of the tasks that have them. Where the "
            f"partition is soft these need not be as many as the sizes say.{part}"
        ),
    }


def _by_noise(
    sizes: Tensor, tasks: tuple[str, ...], ratios: Sequence[float], about: str
) -> dict[str, NDArray[Any]]:
    """Sizes of tasks that are in the order of how noisy they are."""
    found = rank_correlation(sizes.tolist(), ratios)
    title = "Neurons against the noise ratio of the task"
    about = f"{about}, in the order of the noise ratios"
    if math.isfinite(found):
        title = f"{title}, rank correlation {found:.2f}"
        about = (
            f"{about} (by chance alone the rank correlation would be about as far from zero as "
            f"{chance_correlation(len(ratios)):.2f})"
        )
    return _bars("sizes-by-noise", sizes, tasks, "neurons", title, about)
