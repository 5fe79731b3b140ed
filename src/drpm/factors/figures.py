"""The arrays that the figures of a run are drawn from."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.factors.fitted import FittedFactors, SharedFactors
from drpm.report.figure_data import MAX_BARS, pack_arrays

PAIRS: Final = 8  # shown
STEPS: Final = 9  # of a traversal
REACH: Final = 2.0  # of a traversal, in standard deviations of the prior
DIMENSIONS: Final = 50  # shown

Arrays = dict[str, NDArray[Any]]


def figure_data(
    fitted: FittedFactors,
    batch: Mapping[str, Tensor],
    found: SharedFactors,
    names: Sequence[str] = (),
) -> bytes:
    """The arrays of all figures, as an npz archive.

    Args:
        fitted: The model.
        batch: The test pairs.
        found: Their shared dimensions.
        names: Names of the pairs, if they have any.
    """
    arrays = _pairs(fitted, batch, found) | _traversals(fitted, batch)
    shown = found.mask[:PAIRS, :DIMENSIONS]
    arrays |= {
        "matrix__shared": shown.long().cpu().numpy(),
        "matrix_rows__shared": np.array(names[:PAIRS] or [f"pair {i}" for i in range(len(shown))]),
        "matrix_columns__shared": np.array([str(i) for i in range(shown.shape[-1])]),
        **_texts("shared", "Shared dimensions", "Shared latent dimensions of some pairs: 1."),
    }
    latent = found.mask.shape[-1]
    if latent <= MAX_BARS:
        arrays |= {
            "bars__rates": found.mask.double().mean(0)[:, None].cpu().numpy(),
            "bars_groups__rates": np.array([str(i) for i in range(latent)]),
            **_texts(
                "rates",
                "How often each dimension is shared",
                "The fraction of pairs that share each latent dimension.",
            ),
        }
    return pack_arrays(arrays | _counts(found, batch))


def _pairs(fitted: FittedFactors, batch: Mapping[str, Tensor], found: SharedFactors) -> Arrays:
    """Pairs, their reconstructions, and the same with other shared dimensions."""
    first, second = (batch[name][:PAIRS].to(fitted.device) for name in ("first", "second"))
    mask, averaged = found.mask[:PAIRS], found.averaged[:PAIRS]
    rows = {"first": first, "second": second}
    made = {
        "reconstructed": fitted.decode(averaged),
        "swapped": fitted.swap(found.codes[:PAIRS], mask),
    }
    if len(averaged) > 1:
        shared = mask[:, None, :]
        lent = shared * averaged.roll(-1, 0)[:, :1] + (1 - shared) * averaged
        made["next pair's"] = fitted.decode(lent)
    for name, images in made.items():
        rows |= {f"{view}, {name}": images[:, i] for i, view in enumerate(("first", "second"))}
    about = (
        "Pairs of images, one per column; their reconstructions with shared dimensions averaged; "
        "reconstructions with the shared dimensions of both images exchanged, which change nothing "
        "if the model is right or the shared dimensions are empty; and with the shared dimensions "
        "of the next column's first image, which change both images alike unless they are empty."
    )
    return {
        "grid__pairs": _compact(torch.stack([*rows.values()])),
        "grid_rows__pairs": np.array([*rows]),
        **_texts("pairs", "Pairs, reconstructed and with other shared dimensions", about),
    }


def _traversals(fitted: FittedFactors, batch: Mapping[str, Tensor]) -> Arrays:
    values = torch.linspace(-REACH, REACH, STEPS)
    images = fitted.traverse(batch["first"][0], values)[:DIMENSIONS]
    return {
        "grid__traversals": _compact(images),
        "grid_rows__traversals": np.array([f"dimension {i}" for i in range(len(images))]),
        "grid_columns__traversals": np.array([f"{value:.1f}" for value in values.tolist()]),
        **_texts(
            "traversals",
            "Latent traversals",
            "One image; in each row one latent dimension is set to the values above.",
        ),
    }


def _counts(found: SharedFactors, batch: Mapping[str, Tensor]) -> Arrays:
    """How many dimensions are shared, next to how many factors are if pairs differ in that."""
    number = found.number.cpu()
    true = batch["is_shared"].sum(-1).cpu() if "is_shared" in batch else torch.zeros(1)
    counts = sorted(set(true.tolist()))
    if len(counts) > 1:
        means = [[float(count), number[true == count].mean().item()] for count in counts]
        return {
            "bars__count": np.array(means),
            "bars_groups__count": np.array([f"n_s = {count}" for count in counts]),
            "bars_names__count": np.array(["true", "estimated"]),
            **_texts(
                "count",
                "Number of shared factors",
                "The true number of shared factors, and the mean number of shared dimensions.",
            ),
        }
    rates = number.long().bincount(minlength=found.mask.shape[-1] + 1).double() / len(number)
    if len(rates) > MAX_BARS:
        return {}
    return {
        "bars__count": rates[:, None].numpy(),
        "bars_groups__count": np.array([str(i) for i in range(len(rates))]),
        **_texts(
            "count",
            "Number of shared dimensions",
            "The fraction of pairs that share 0, 1, ... latent dimensions.",
        ),
    }


def _texts(name: str, title: str, about: str) -> Arrays:
    return {f"title__{name}": np.array(title), f"about__{name}": np.array(about)}


def _compact(images: Tensor) -> NDArray[Any]:
    """Images in [0, 1] as bytes."""
    whole = (255 * images.detach().clamp(0, 1)).round().to(torch.uint8).cpu()
    return (whole.squeeze(-3) if whole.shape[-3] == 1 else whole).numpy()
