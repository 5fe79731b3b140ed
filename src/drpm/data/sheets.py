"""Contact sheets: a data set at a glance, as one picture."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from drpm.data.errors import DataError
from drpm.data.folders import atomic_write
from drpm.data.table_sheets import INK, shorten, table_figure
from drpm.data.types import Dataset, Split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 10
_MAX_CAPTIONED = 3  # targets whose values still fit under an image
_DPI = 130
_SUFFIX = ".png"


def contact_sheet(
    dataset: Dataset, path: Path, *, part: str = "train", title: str | None = None
) -> Path:
    """Draw examples of a data set into a PNG file.

    Images come in one row for each class where there is a single target with classes, and in a
    grid with their targets underneath otherwise. A table shows the distribution of each column,
    class by class, or, where it has many, its rows as lines of colour.

    Args:
        dataset: what to show.
        path: the file to write, which ends in .png; its folder is made.
        part: "train" or "test".
        title: what stands above; the name of the set where it is None.
    """
    if part not in ("train", "test"):
        raise DataError(f"part must be 'train' or 'test', not '{part}'.")
    refuse_other_formats(path)
    split = dataset.train if part == "train" else dataset.test
    shape = tuple(dataset.input_shape)
    if len(shape) == 3 and shape[0] in (1, 3):
        figure = _images(dataset, split)
        facts = f"images of {'x'.join(map(str, shape))}"
    elif len(shape) == 1:
        figure = table_figure(dataset, split)
        facts = f"{len(split):,} rows, {shape[0]:,} columns"
    else:
        raise DataError(
            f"{dataset.name} cannot be drawn: its inputs of the shape {shape} are neither images "
            "of 1 or 3 channels nor rows of a table."
        )
    heading = f"{title or dataset.name}, {part}: {facts}"
    # A fixed distance from the top, whatever the height of the sheet.
    figure.text(
        0.5, 1 - 0.1 / figure.get_figheight(), heading, ha="center", va="top", color=INK, size=10
    )
    content = BytesIO()
    figure.savefig(content, format="png", dpi=_DPI, facecolor="white")
    try:
        with atomic_write(path) as out:
            out.write(content.getvalue())
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}).") from error
    return path


def refuse_other_formats(path: Path) -> None:
    """Refuse to write a picture under a name that says it is something else."""
    if path.suffix.lower() != _SUFFIX:
        raise DataError(f"The picture is a PNG file, so {path} should end in {_SUFFIX}.")


def _images(dataset: Dataset, split: Split) -> "Figure":
    targets = {name: target for name, target in split.targets.items() if name in dataset.classes}
    if len(targets) == 1:
        (name, target) = next(iter(targets.items()))
        return _rows_of_classes(dataset, split, target.cpu(), dataset.classes[name])
    return _grid(dataset, split)


def _num_columns(width: int) -> int:
    """How many images of a width stand in a row: fewer of large ones, so that all can be seen."""
    return 12 if width <= 32 else 8 if width <= 64 else 6


def _rows_of_classes(
    dataset: Dataset, split: Split, target: torch.Tensor, classes: tuple[str, ...]
) -> "Figure":
    """One row for each of the first classes that occur, the first examples in it."""
    present = [index for index in range(len(classes)) if bool((target == index).any())][:_ROWS]
    num_columns = _num_columns(split.inputs.shape[-1])
    rows = [(target == index).nonzero().flatten()[:num_columns] for index in present]
    chosen = torch.cat(rows)
    pixels = _displayable(dataset, split.inputs[chosen.to(split.inputs.device)])
    height, width = pixels.shape[1:3]
    gap = max(1, height // 14)
    canvas = np.ones(
        (len(rows) * (height + gap) - gap, num_columns * (width + gap) - gap, 3), np.float32
    )
    start = 0
    for row, members in enumerate(rows):
        for column in range(len(members)):
            top, left = row * (height + gap), column * (width + gap)
            canvas[top : top + height, left : left + width] = pixels[start + column]
        start += len(members)
    names = [shorten(classes[index]) for index in present]
    figure, axes = _sheet(canvas, left=0.25 + 0.08 * max(map(len, names)))
    middles = [row * (height + gap) + height / 2 - 0.5 for row in range(len(rows))]
    axes.set_yticks(middles, names, size=9, color=INK)
    return figure


def _grid(dataset: Dataset, split: Split) -> "Figure":
    """The first images, with their targets underneath where these are few."""
    num_columns = _num_columns(split.inputs.shape[-1])
    count = min(len(split), num_columns * (_ROWS // 2))
    pixels = _displayable(dataset, split.inputs[:count])
    height, width = pixels.shape[1:3]
    captions = _captions(dataset, split, count)
    gap = max(1, height // 14)
    below = height // 3 if captions else gap
    num_rows = -(-count // num_columns)
    canvas = np.ones(
        (num_rows * (height + below), num_columns * (width + gap) - gap, 3), np.float32
    )
    for index in range(count):
        row, column = divmod(index, num_columns)
        top, left = row * (height + below), column * (width + gap)
        canvas[top : top + height, left : left + width] = pixels[index]
    figure, axes = _sheet(canvas, left=0.15)
    axes.set_yticks([])
    for index, caption in enumerate(captions):
        row, column = divmod(index, num_columns)
        axes.text(
            column * (width + gap) + width / 2 - 0.5,
            row * (height + below) + height + below * 0.42,
            caption,
            ha="center",
            va="center",
            size=7,
            color=INK,
        )
    return figure


def _captions(dataset: Dataset, split: Split, count: int) -> list[str]:
    names = [name for name in split.targets if name in dataset.classes]
    if not 1 <= len(names) <= _MAX_CAPTIONED:
        return []
    values = [split.targets[name][:count].tolist() for name in names]
    return [
        ", ".join(dataset.classes[name][v] for name, v in zip(names, of_one, strict=True))
        for of_one in zip(*values, strict=True)
    ]


def _sheet(canvas: NDArray[np.float32], *, left: float) -> "tuple[Figure, Any]":
    """A figure that holds the canvas at one size per image, and its axes. `left` is in inches."""
    from matplotlib.figure import Figure

    width = 8.0
    height = width * canvas.shape[0] / canvas.shape[1]
    top, edge = 0.42, 0.15
    full_width, full_height = left + width + edge, top + height + edge
    figure = Figure(figsize=(full_width, full_height))
    axes = figure.add_axes(
        (left / full_width, edge / full_height, width / full_width, height / full_height)
    )
    # Small images keep their pixels; large ones are drawn smaller than they are.
    axes.imshow(canvas, interpolation="nearest" if canvas.shape[1] < 800 else "antialiased")
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure, axes


def _displayable(dataset: Dataset, inputs: torch.Tensor) -> NDArray[np.float32]:
    """Images (N, H, W, 3) in [0, 1], whatever was done to them when they were loaded."""
    images = inputs.detach().float().cpu()
    if "std" in dataset.preprocessing:
        images = images * dataset.preprocessing["std"].cpu()
    if "mean" in dataset.preprocessing:
        images = images + dataset.preprocessing["mean"].cpu()
    low, high = float(images.min()), float(images.max())
    if low < -1e-3 or high > 1 + 1e-3:
        images = (images - low) / (high - low)
    images = images.clamp(0, 1).permute(0, 2, 3, 1)
    if images.shape[-1] == 1:
        images = images.expand(-1, -1, -1, 3)
    return images.numpy()
