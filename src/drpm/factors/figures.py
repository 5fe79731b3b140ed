"""The figures of a run."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.factors.models import FactorVAE, SharedFactors
from drpm.report.figure_data import MAX_BARS, FigureSpec, pack_figures

PAIRS: Final = 8  # shown
STEPS: Final = 9  # of a traversal
REACH: Final = 2.0  # of a traversal, in standard deviations of the prior
DIMENSIONS: Final = 50  # shown


def figure_data(
    model: FactorVAE,
    batch: Mapping[str, Tensor],
    found: SharedFactors,
    names: Sequence[str] = (),
) -> bytes:
    """All figures, as an npz archive.

    Args:
        model: The model.
        batch: The test pairs.
        found: Their shared dimensions.
        names: Names of the pairs, if they have any.
    """
    shown = found.mask[:PAIRS, :DIMENSIONS]
    specs = [
        _pairs(model, batch, found),
        _traversals(model, batch["first"][0]),
        FigureSpec(
            "matrix",
            "shared",
            shown.long().cpu().numpy(),
            tuple(names[:PAIRS]) or tuple(f"pair {i}" for i in range(len(shown))),
            tuple(map(str, range(shown.shape[-1]))),
            "Shared dimensions",
            "Shared latent dimensions of some pairs: 1.",
        ),
        FigureSpec(
            "bars",
            "rates",
            found.mask.double().mean(0)[:, None].cpu().numpy(),
            tuple(map(str, range(found.mask.shape[-1]))),
            (),
            "How often each dimension is shared",
            "The fraction of pairs that share each latent dimension.",
        ),
        _counts(found, batch),
    ]
    return pack_figures(x for x in specs if x.kind != "bars" or len(x.rows) <= MAX_BARS)


def _pairs(model: FactorVAE, batch: Mapping[str, Tensor], found: SharedFactors) -> FigureSpec:
    """Pairs, their reconstructions, and the same with other shared dimensions."""
    mask, averaged = found.mask[:PAIRS], found.averaged[:PAIRS]
    rows = {view: batch[view][:PAIRS].to(mask) for view in ("first", "second")}
    made = {
        "reconstructed": model.decode(averaged),
        "swapped": model.swap(found.codes[:PAIRS], mask),
    }
    if len(averaged) > 1:
        shared = mask[:, None, :]
        lent = shared * averaged.roll(-1, 0)[:, :1] + (1 - shared) * averaged
        made["next pair's"] = model.decode(lent)
    for name, images in made.items():
        rows |= {f"{view}, {name}": images[:, i] for i, view in enumerate(("first", "second"))}
    return FigureSpec(
        "grid",
        "pairs",
        _compact(torch.stack([*rows.values()])),
        tuple(rows),
        (),
        "Pairs, reconstructed and with other shared dimensions",
        "Pairs of images, one per column; their reconstructions with shared dimensions averaged; "
        "reconstructions with the shared dimensions of both images exchanged, which change nothing "
        "if the model is right or the shared dimensions are empty; and with the shared dimensions "
        "of the next column's first image, which change both images alike unless they are empty.",
    )


def _traversals(model: FactorVAE, image: Tensor) -> FigureSpec:
    values = torch.linspace(-REACH, REACH, STEPS)
    images = model.traverse(image, values)[:DIMENSIONS]
    return FigureSpec(
        "grid",
        "traversals",
        _compact(images),
        tuple(f"dimension {i}" for i in range(len(images))),
        tuple(f"{value:.1f}" for value in values.tolist()),
        "Latent traversals",
        "One image; in each row one latent dimension is set to the values above.",
    )


def _counts(found: SharedFactors, batch: Mapping[str, Tensor]) -> FigureSpec:
    """How many dimensions are shared, next to how many factors are if pairs differ in that."""
    number = found.number.cpu()
    true = batch["is_shared"].sum(-1).cpu() if "is_shared" in batch else torch.zeros(1)
    counts = sorted(set(true.tolist()))
    if len(counts) > 1:
        means = [[float(count), number[true == count].mean().item()] for count in counts]
        return FigureSpec(
            "bars",
            "count",
            torch.tensor(means, dtype=torch.float64).numpy(),
            tuple(f"n_s = {count}" for count in counts),
            ("true", "estimated"),
            "Number of shared factors",
            "The true number of shared factors, and the mean number of shared dimensions.",
        )
    rates = number.long().bincount(minlength=found.mask.shape[-1] + 1).double() / len(number)
    return FigureSpec(
        "bars",
        "count",
        rates[:, None].numpy(),
        tuple(map(str, range(len(rates)))),
        (),
        "Number of shared dimensions",
        "The fraction of pairs that share 0, 1, ... latent dimensions.",
    )


def _compact(images: Tensor) -> NDArray[Any]:
    """Images in [0, 1] as bytes."""
    whole = (255 * images.detach().clamp(0, 1)).round().to(torch.uint8).cpu()
    return (whole.squeeze(-3) if whole.shape[-3] == 1 else whole).numpy()
