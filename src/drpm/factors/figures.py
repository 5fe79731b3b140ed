"""The figures of a run."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.factors.models import FactorVAE, SharedFactors
from drpm.report.plots import MAX_BARS, FigureSpec, pack_figures

PAIRS: Final = 8  # shown
STEPS: Final = 9  # of a traversal
REACH: Final = 2.0  # of a traversal, in standard deviations of the prior
DIMENSIONS: Final = 50  # shown


def figure_data(model: FactorVAE, batch: Mapping[str, Tensor], found: SharedFactors) -> bytes:
    """All figures, as an npz archive.

    Args:
        model: The model.
        batch: The test pairs.
        found: Their shared dimensions.
    """
    latent = found.mask.shape[-1]
    specs = [_pairs(model, batch, found), _traversals(model, batch["first"][0])]
    if latent < MAX_BARS:
        dimensions = [str(i) for i in range(latent)]
        rates = found.mask.double().mean(0)[:, None].cpu().numpy()
        title = "Fraction of pairs that share"
        specs.append(FigureSpec("bars", "rates", rates, dimensions, (), f"{title} each dimension"))
        number = found.number.cpu()
        counts = number.long().bincount(minlength=latent + 1)[:, None].numpy() / len(number)
        groups = [*dimensions, str(latent)]
        specs.append(
            FigureSpec("bars", "count", counts, groups, (), f"{title} this many dimensions")
        )
    true = batch["is_shared"].sum(-1).cpu() if "is_shared" in batch else torch.zeros(0)
    if len(groups := true.unique().tolist()) > 1:
        means = [[n, found.number.cpu()[true == n].mean().item()] for n in groups]
        title, bars = "Number of shared factors, and mean of its estimate", ("true", "estimated")
        named = [f"n_s = {n}" for n in groups]
        specs.append(FigureSpec("bars", "estimates", means, named, bars, title))
    return pack_figures(specs)


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
    title = "Pairs, reconstructed and with other shared dimensions"
    about = (
        "Pairs of images, one per column; their reconstructions with shared dimensions averaged; "
        "reconstructions with the shared dimensions of both images swapped, which change nothing "
        "if the model is right or these dimensions are unused; and with the shared dimensions of "
        "the next column's first image, which change both images in the same way unless unused."
    )
    values = _compact(torch.stack([*rows.values()]))
    return FigureSpec("grid", "pairs", values, list(rows), (), title, about)


def _traversals(model: FactorVAE, image: Tensor) -> FigureSpec:
    values = torch.linspace(-REACH, REACH, STEPS)
    images = model.traverse(image, values)[:DIMENSIONS]
    rows = [f"dimension {i}" for i in range(len(images))]
    columns = [f"{value:.1f}" for value in values.tolist()]
    title = "An image with one latent dimension set to other values"
    return FigureSpec("grid", "traversals", _compact(images), rows, columns, title)


def _compact(images: Tensor) -> NDArray[Any]:
    """Images in [0, 1] as bytes."""
    whole = (255 * images.detach().clamp(0, 1)).round().to(torch.uint8).cpu()
    return (whole.squeeze(-3) if whole.shape[-3] == 1 else whole).numpy()
