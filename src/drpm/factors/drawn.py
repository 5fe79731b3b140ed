"""The arrays of a finished model of factors: what its figures are drawn from."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.factors.fitted import FittedFactors, SharedFactors
from drpm.report.figure_data import MAX_BARS, pack_arrays

SHOWN: Final = 8  # pairs
STEPS: Final = 9  # of a traversal
REACH: Final = 2.0  # of a traversal, in standard deviations of the prior
DIMENSIONS: Final = 50  # as many as fit on a page


def draw_arrays(
    fitted: FittedFactors,
    batch: Mapping[str, Tensor],
    found: SharedFactors,
    names: Sequence[str] = (),
) -> bytes:
    """What the figures need, as an archive of plain arrays.

    Arguments:
        fitted: The model.
        batch: The pairs it was judged on.
        found: What it found in them.
        names: What pairs are called, where they have names.
    """
    arrays: dict[str, NDArray[Any]] = {}
    arrays |= _pairs(fitted, batch, found)
    arrays |= _traversals(fitted, batch)
    arrays |= _shares(found, names or [f"pair {i}" for i in range(len(found.mask))])
    arrays |= _rates(found)
    arrays |= _counts(found, batch)
    return pack_arrays(arrays)


def _pairs(
    fitted: FittedFactors, batch: Mapping[str, Tensor], found: SharedFactors
) -> dict[str, NDArray[Any]]:
    """Pairs, what they become when they are decoded, and with shared parts of others."""
    first, second = (batch[name][:SHOWN].to(fitted.device) for name in ("first", "second"))
    mask, averaged = found.mask[:SHOWN], found.averaged[:SHOWN]
    rows = {
        "first": first,
        "second": second,
        **_both(fitted.decode(averaged), "again"),
        **_both(fitted.swap(found.codes[:SHOWN], mask), "swapped"),
    }
    about = (
        "At the top pairs of images, one a column. Below them what the model makes of them, with "
        "what they share averaged, and the same after both images of a pair have exchanged their "
        "shared parts: nothing changes where the model is right, or where what is shared is empty."
    )
    if len(averaged) > 1:
        rows |= _both(fitted.decode(_lend(averaged, mask)), "next pair's")
        about += (
            " At the bottom both images have their shared dimensions from the first image of the "
            "next column (the last column from that of the first): where these dimensions hold "
            "anything, both change, and alike; where they are empty, neither does."
        )
    return {
        "grid__pairs": _compact(torch.stack([*rows.values()])),
        "grid_rows__pairs": np.array([*rows]),
        "title__pairs": np.array("Pairs, reconstructed and with shared parts of others"),
        "about__pairs": np.array(about),
    }


def _both(images: Tensor, what: str) -> dict[str, Tensor]:
    """The images of pairs (P, 2, C, H, W) as two rows."""
    return {f"{view}, {what}": images[:, i] for i, view in enumerate(("first", "second"))}


def _lend(codes: Tensor, mask: Tensor) -> Tensor:
    """Codes of pairs (P, 2, l) whose shared dimensions are those of the next pair's first image."""
    lent = mask[:, None, :]
    return lent * codes.roll(-1, 0)[:, :1] + (1 - lent) * codes


def _traversals(fitted: FittedFactors, batch: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    values = torch.linspace(-REACH, REACH, STEPS)
    images = fitted.traverse(batch["first"][0], values)[:DIMENSIONS]
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


def _shares(found: SharedFactors, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Which dimensions are shared, pair by pair."""
    shown = found.mask[:SHOWN, :DIMENSIONS]
    return {
        # Whole numbers, which are written without decimals.
        "matrix__shared": shown.long().cpu().numpy(),
        "matrix_rows__shared": np.array(names[:SHOWN]),
        "matrix_columns__shared": np.array([str(i) for i in range(shown.shape[-1])]),
        "title__shared": np.array("Dimensions taken as shared"),
        "about__shared": np.array("Which latent dimensions some pairs share: 1 where they do."),
    }


def _rates(found: SharedFactors) -> dict[str, NDArray[Any]]:
    """How often each dimension is shared."""
    latent = [str(i) for i in range(found.mask.shape[-1])]
    if len(latent) > MAX_BARS:
        return {}
    return {
        "bars__rates": found.mask.double().mean(0)[:, None].cpu().numpy(),
        "bars_groups__rates": np.array(latent),
        "title__rates": np.array("How often each dimension is shared"),
        "about__rates": np.array("The part of all pairs that share each latent dimension."),
    }


def _counts(found: SharedFactors, batch: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """How many dimensions are shared, beside how many factors are where pairs differ in that."""
    true = batch["is_shared"].sum(-1).cpu() if "is_shared" in batch else None
    if true is None or (true == true[0]).all():
        number = found.number.long().cpu()
        rates = number.bincount(minlength=found.mask.shape[-1] + 1).double() / len(number)
        if len(rates) > MAX_BARS:
            return {}
        known = "" if true is None else f" In truth they share {true[0]} factors."
        return {
            "bars__count": rates[:, None].numpy(),
            "bars_groups__count": np.array([str(i) for i in range(len(rates))]),
            "title__count": np.array("How many dimensions pairs share"),
            "about__count": np.array(
                f"The part of all pairs that share 0, 1, and so on, latent dimensions.{known}"
            ),
        }
    counts = sorted(set(true.tolist()))
    means = [found.number.cpu()[true == count].mean().item() for count in counts]
    said = "; ".join(f"{c}: {m:.2f}" for c, m in zip(counts, means, strict=True))
    return {
        "bars__count": np.array([[float(c), m] for c, m in zip(counts, means, strict=True)]),
        "bars_groups__count": np.array([f"n_s = {count}" for count in counts]),
        "bars_names__count": np.array(["true", "estimated"]),
        "title__count": np.array("How many factors are shared"),
        "about__count": np.array(
            "The number of factors that pairs share, and the mean of what the model estimates: "
            f"{said}."
        ),
    }


def _compact(images: Tensor) -> NDArray[Any]:
    """Images in [0, 1] as bytes."""
    whole = (255 * images.detach().clamp(0, 1)).round().to(torch.uint8).cpu()
    return (whole.squeeze(-3) if whole.shape[-3] == 1 else whole).numpy()
