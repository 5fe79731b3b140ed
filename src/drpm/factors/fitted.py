"""A finished model of shared factors: what it says of pairs, and what it can make."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drpm.distributions.validation import describe
from drpm.factors.config import FactorsConfig
from drpm.factors.models import FactorVAE
from drpm.factors.own_pairs import require_views
from drpm.training import config as configs
from drpm.training.checkpoint import load_model, load_modules, save_model
from drpm.training.checks import require_classes
from drpm.training.errors import RunError
from drpm.training.turns import unseeded

_PAIRS_AT_ONCE = 1024


class SharedFactors(NamedTuple):
    """What pairs have in common.

    Arguments:
        number: (P,), how many latent dimensions the two images of a pair share.
        mask: (P, l), one for the dimensions that they share, else zero.
        codes: (P, 2, l), the mean codes of both images, each by itself.
        averaged: (P, 2, l), the same with what they share averaged, as images are made of them.
    """

    number: Tensor
    mask: Tensor
    codes: Tensor
    averaged: Tensor


@dataclass(frozen=True)
class FittedFactors:
    """A trained model.

    Arguments:
        model: The model.
        shape: Of an image: C, H and W.
    """

    model: FactorVAE
    shape: tuple[int, int, int]

    @property
    def config(self) -> FactorsConfig:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.no_grad()
    def share(self, first: Tensor, second: Tensor, *, label: Tensor | None = None) -> SharedFactors:
        """Find what pairs of images share: the likeliest answer, without noise.

        Arguments:
            first: (P, C, H, W), values in [0, 1].
            second: The same.
            label: (P,), for the method that is told a factor that differs.
        """
        found = []
        temperature = torch.tensor(self.config.temperature[1], device=self.device)
        for batch in self.batches(first, second, label):
            views = self.model.compare(batch, temperature, noise=False)
            means = (x.mean.movedim(0, 1) for x in (views.posterior, views.aggregated))
            found.append((views.shared.mask.round(), *means))
        mask, codes, averaged = (torch.cat(parts) for parts in zip(*found, strict=True))
        return SharedFactors(mask.sum(-1), mask, codes, averaged)

    def batches(
        self, first: Tensor, second: Tensor, label: Tensor | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Pairs as the model takes them, on its device, and no more at once than fit there.

        Arguments:
            first: (P, C, H, W), values in [0, 1].
            second: The same.
            label: (P,), for the method that is told a factor that differs.
        """
        require_views(first, second)
        for name, images in (("first", first), ("second", second)):
            if images.shape[1:] != self.shape:
                raise ValueError(
                    f"{name} must have the shape (P, {', '.join(map(str, self.shape))}), "
                    f"but got {tuple(images.shape)}."
                )
        if label is not None:
            self._require_label(label, len(first))
        like = next(self.model.parameters())
        for start in range(0, len(first), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            batch = {"first": first[part].to(like), "second": second[part].to(like)}
            if label is not None:
                batch["label"] = label[part].to(self.device)
            yield batch

    def _require_label(self, label: Any, pairs: int) -> None:
        if not isinstance(label, Tensor) or label.shape != (pairs,):
            raise ValueError(
                f"label must be a tensor of the shape ({pairs},), a number for each pair, "
                f"but got {describe(label)}."
            )
        # Other methods do not look at it, and a factor may have a number beyond their dimensions.
        if self.config.method == "label":
            require_classes("label", label, pairs, self.config.latent)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The mean image of every code (..., l)."""
        return self.model.autoencoder.decode(codes.to(self.device))

    @torch.no_grad()
    def traverse(self, image: Tensor, values: Tensor) -> Tensor:
        """(l, V, C, H, W): an image with one dimension after the other set to some values."""
        posterior = self.model.autoencoder.posterior(image[None].to(self.device))
        codes = posterior.mean[0].repeat(self.config.latent, len(values), 1)
        for dimension in range(self.config.latent):
            codes[dimension, :, dimension] = values.to(codes)
        return self.decode(codes)

    @torch.no_grad()
    def swap(self, codes: Tensor, mask: Tensor) -> Tensor:
        """(P, 2, C, H, W): images of pairs whose shared parts have changed places.

        Where a pair is understood, what changes places is the same, and each image stays as it was.

        Arguments:
            codes: (P, 2, l), as :meth:`share` finds them for each image by itself.
            mask: (P, l), likewise.
        """
        exchanged = mask[:, None, :]
        return self.decode(exchanged * codes.flip(1) + (1 - exchanged) * codes)

    def to(self, device: torch.device | str) -> "FittedFactors":
        """The same on another device."""
        return replace(self, model=copy.deepcopy(self.model).to(device))

    def save(self, folder: Path | str) -> None:
        """Write it to a folder, as numbers and text."""
        tensors = {name: x.contiguous() for name, x in self.model.state_dict().items()}
        description = {
            "kind": "factors",
            "config": configs.dumps(self.config),
            "shape": list(self.shape),
        }
        save_model(Path(folder), tensors, description)


def load_factors(folder: Path | str, device: torch.device | str = "cpu") -> FittedFactors:
    """Read what :meth:`FittedFactors.save` wrote; nothing is unpickled."""
    tensors, description = load_model(Path(folder))
    if description.get("kind") != "factors":
        raise RunError(f"The folder {folder} holds another kind of model than one of factors.")
    colours, height, width = description["shape"]
    shape = (colours, height, width)
    with unseeded():
        model = FactorVAE(shape, configs.loads(FactorsConfig, description["config"]))
    load_modules(folder, tensors, {"": model})
    return FittedFactors(model.to(device), shape)
