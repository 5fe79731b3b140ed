"""The arrays of a finished model of factors: what its figures are drawn from."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.factors.fitted import FittedFactors, SharedFactors
from drpm.report.archive import pack_arrays

SHOWN: Final = 8  # pairs
STEPS: Final = 9  # of a traversal
REACH: Final = 2.0  # of a traversal, in standard deviations of the prior


def draw_arrays(fitted: FittedFactors, batch: Mapping[str, Tensor], found: SharedFactors) -> bytes:
    """What the figures need, as an archive of plain arrays.

    Arguments:
        fitted: The model.
        batch: The pairs it was judged on.
        found: What it found in them.
    """
    arrays: dict[str, NDArray[Any]] = {}
    arrays |= _pairs(fitted, batch, found)
    arrays |= _traversals(fitted, batch)
    arrays |= _shares(found, batch)
    return pack_arrays(arrays)


def _pairs(
    fitted: FittedFactors, batch: Mapping[str, Tensor], found: SharedFactors
) -> dict[str, NDArray[Any]]:
    """Pairs, what they become when they are decoded, and with their shared parts exchanged."""
    first, second = (batch[name][:SHOWN].to(fitted.device) for name in ("first", "second"))
    again = fitted.decode(found.averaged[:SHOWN])
    swapped = fitted.swap(found.codes[:SHOWN], found.mask[:SHOWN])
    rows = torch.stack([first, second, again[:, 0], again[:, 1], swapped[:, 0], swapped[:, 1]], 0)
    names = ["first", "second", "first again", "second again", "first, swapped", "second, swapped"]
    return {
        "grid__pairs": _compact(rows),
        "grid_rows__pairs": np.array(names),
        "title__pairs": np.array("Pairs, reconstructed and swapped"),
        "about__pairs": np.array(
            "Pairs of images, one a column; below them their reconstructions, with what they share "
            "averaged; and at the bottom with their shared parts exchanged, each image's own, "
            "which should change nothing."
        ),
    }


def _traversals(fitted: FittedFactors, batch: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    values = torch.linspace(-REACH, REACH, STEPS)
    images = fitted.traverse(batch["first"][0], values)
    return {
        "grid__traversals": _compact(images),
        "grid_rows__traversals": np.array([f"dimension {i}" for i in range(len(images))]),
        "grid_columns__traversals": np.array([f"{value:.1f}" for value in values.tolist()]),
        "title__traversals": np.array("Every latent dimension by itself"),
        "about__traversals": np.array(
            "One image, with one latent dimension a row set to values from "
            f"{-REACH:.0f} to {REACH:.0f}."
        ),
    }


def _shares(found: SharedFactors, batch: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Which dimensions are shared, pair by pair and on average, and how many."""
    latent = found.mask.shape[-1]
    rates = torch.cat([found.mask[:SHOWN], found.mask.mean(0, keepdim=True)])
    names = [*(f"pair {i}" for i in range(len(rates) - 1)), "all pairs"]
    arrays = {
        "matrix__shared": rates.double().cpu().numpy(),
        "matrix_rows__shared": np.array(names),
        "matrix_columns__shared": np.array([str(i) for i in range(latent)]),
        "title__shared": np.array("Dimensions taken as shared"),
        "about__shared": np.array(
            "Which latent dimensions some pairs share, and how often all pairs share them."
        ),
    }
    if "is_shared" in batch:
        true = batch["is_shared"].sum(-1).cpu()
        counts = sorted(set(true.tolist()))
        means = [found.number.cpu()[true == count].mean().item() for count in counts]
        arrays |= {
            "bars__count": np.array([[float(c), m] for c, m in zip(counts, means, strict=True)]),
            "bars_groups__count": np.array([f"{count} shared" for count in counts]),
            "bars_names__count": np.array(["true", "estimated"]),
            "title__count": np.array("How many factors are shared"),
            "about__count": np.array(
                "The number of factors that pairs share, and the mean of what the model estimates: "
                + "; ".join(f"{c}: {m:.2f}" for c, m in zip(counts, means, strict=True))
                + "."
            ),
        }
    return arrays


def _compact(images: Tensor) -> NDArray[Any]:
    """Images in [0, 1] as bytes."""
    whole = (255 * images.detach().clamp(0, 1)).round().to(torch.uint8).cpu()
    return (whole.squeeze(-3) if whole.shape[-3] == 1 else whole).numpy()
