"""A data set at a glance, as one picture."""

from pathlib import Path

import torch

from drpm.data.files import atomic_write
from drpm.data.types import DataError, Dataset


def contact_sheet(dataset: Dataset, path: Path, *, part: str = "train", title: str = "") -> None:
    """Draw the first images of a data set, or histograms of the first columns of a table.

    Args:
        dataset: What to show.
        path: The PNG file to write; its folder is created.
        part: "train" or "test".
        title: Above the picture; by default the name of the data set.
    """
    from matplotlib.figure import Figure

    if part not in ("train", "test"):
        raise DataError(f"part must be 'train' or 'test', not '{part}'.")
    split = dataset.train if part == "train" else dataset.test
    shape = tuple(dataset.input_shape)
    is_table = len(shape) == 1
    if is_table:
        columns, count = 4, min(24, shape[0])
        captions = dataset.columns or [f"column {number + 1}" for number in range(count)]
    elif len(shape) == 3 and shape[0] in (1, 3):
        columns, count = 10, min(60, len(split))
        targets = dataset.classes if len(dataset.classes) <= 2 else {}
        captions = [
            ", ".join(names[int(split.targets[target][index])] for target, names in targets.items())
            for index in range(count)
        ]
        images = split.inputs[:count].detach().cpu()
        images = images * dataset.preprocessing.get("std", torch.ones(())).cpu()
        images = images + dataset.preprocessing.get("mean", torch.zeros(())).cpu()
        pixels = images.clamp(0, 1).permute(0, 2, 3, 1).numpy()
    else:
        raise DataError(
            f"{dataset.name} cannot be drawn: its inputs of the shape {shape} are neither images "
            "of 1 or 3 channels nor rows of a table."
        )
    rows = -(-count // columns)
    side = 10 / columns
    figure = Figure(figsize=(10, 0.5 + 1.2 * side * rows), layout="constrained")
    figure.suptitle(f"{title or dataset.name}, {part}")
    for index in range(count):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_title(captions[index], size=8)
        if is_table:
            axes.hist(split.inputs[:, index].detach().cpu().numpy(), bins=30)
            axes.tick_params(labelsize=6)
        else:
            axes.imshow(pixels[index], cmap="gray", vmin=0, vmax=1)
            axes.axis("off")
    try:
        with atomic_write(path) as out:
            figure.savefig(out, format="png", dpi=100)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}).") from error
