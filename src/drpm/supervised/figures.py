"""The arrays of a finished model: what its figures are drawn from."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.report.figure_data import pack_arrays
from drpm.supervised.evaluation import confusion
from drpm.supervised.fitted import JudgedBatches

SHOWN: Final = 16  # elements of a subset
BATCHES: Final = 8  # whose sizes are shown

# What a page can show at most.
_MOST_ROWS: Final = 40


def figure_data(
    judged: JudgedBatches, elements: Tensor, labels: Tensor, names: Sequence[str]
) -> bytes:
    """What the figures need, as an archive of plain arrays.

    Arguments:
        judged: The test set in its subsets.
        elements: (N, *shape), the test set.
        labels: (N,), its classes.
        names: Those of the classes.
    """
    labels = labels.cpu()[judged.order]
    arrays: dict[str, NDArray[Any]] = {}
    if len(names) <= _MOST_ROWS:
        if elements.dim() == 4:
            arrays |= _batch(judged, elements, names)
        arrays |= _classes(judged, labels, names)
        arrays |= _sizes(judged, labels, names)
    return pack_arrays(arrays)


def _batch(judged: JudgedBatches, images: Tensor, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The first batch, one row for each subset."""
    first = judged.batch == 0
    order, subsets = judged.order[first], judged.subsets[first]
    members = [order[subsets == subset] for subset in range(len(names))]
    most = min(SHOWN, max(map(len, members)))
    rows = torch.ones(len(names), most, *images.shape[1:])  # as white as the page
    for row, own in zip(rows, members, strict=True):
        shown = images[own[:most].to(images.device)]
        row[: len(shown)] = shown.cpu()
    compact = (255 * rows.clamp(0, 1)).round().to(torch.uint8)
    return {
        "grid__subsets": (compact.squeeze(2) if compact.shape[2] == 1 else compact).numpy(),
        "grid_rows__subsets": np.array(
            [f"{name}: {len(own)}" for name, own in zip(names, members, strict=True)]
        ),
        "title__subsets": np.array("A test batch in its subsets"),
        "about__subsets": np.array(
            f"One test batch of {len(order)} images as the model partitions it, a row for each "
            f"subset with its predicted size, of which up to {SHOWN} images are shown."
        ),
    }


def _classes(
    judged: JudgedBatches, labels: Tensor, names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    table = confusion(labels, judged.subsets, len(names)).double()
    shares = table / table.sum(1, keepdim=True).clamp_min(1)
    return {
        "matrix__classes": shares.numpy(),
        "matrix_rows__classes": np.array(list(names)),
        "matrix_columns__classes": np.array(list(names)),
        "title__classes": np.array("Where the elements of every class are put"),
        "about__classes": np.array(
            "The part of every class, one a row, that is put into every subset, over all test "
            f"batches: {judged.scores.accuracy:.1%} of the elements are in the right one."
        ),
    }


def _sizes(judged: JudgedBatches, labels: Tensor, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Predicted less true sizes of some batches."""
    batches = min(BATCHES, int(judged.batch.max()) + 1)
    counts = [
        torch.stack(
            [torch.bincount(x[judged.batch == b], minlength=len(names)) for b in range(batches)]
        )
        for x in (judged.subsets, labels)
    ]
    return {
        "matrix__sizes-error": (counts[0] - counts[1]).double().numpy(),
        "matrix_rows__sizes-error": np.array([f"batch {b}" for b in range(batches)]),
        "matrix_columns__sizes-error": np.array(list(names)),
        "title__sizes-error": np.array("Predicted less true sizes"),
        "about__sizes-error": np.array(
            "By how much the predicted size of every subset is larger than the true one, in some "
            "test batches; over all of them the two are "
            f"{judged.scores.size_error:.2f} apart on average."
        ),
    }
