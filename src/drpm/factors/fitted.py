"""A trained model of shared factors."""

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
from drpm.nn.gaussians import standard_divergence
from drpm.training import config as configs
from drpm.training.checkpoint import load_model, load_modules, save_model
from drpm.training.config import require_classes
from drpm.training.errors import RunError
from drpm.training.torch_state import unseeded

_BATCH_SIZE = 1024


class SharedFactors(NamedTuple):
    """The shared dimensions of pairs.

    Args:
        number: (P,), the number of latent dimensions that the images of a pair share.
        mask: (P, l), 1 for shared dimensions, else 0.
        codes: (P, 2, l), the posterior means of each image by itself.
        averaged: (P, 2, l), the same with shared dimensions averaged, as the decoder sees them.
    """

    number: Tensor
    mask: Tensor
    codes: Tensor
    averaged: Tensor


class Evidence(NamedTuple):
    """Means over pairs, in nats.

    Args:
        pair_evidence: Lower bound on the log-probability of both images together: the parts of
            both views are summed, and a shared dimension, one code for both, counts once. If a
            fixed rule chooses the shared dimensions, these are taken as given.
        minus_loss: Minus the sum of the next three: minus the loss with all weights equal to 1.
        reconstruction: Negative log-likelihood of an image given its code, averaged over views.
        latent_divergence: KL divergence of the codes from their prior, averaged over views.
        partition_divergence: KL divergence of the shared dimensions, their number and choice, from
            their prior; 0 for a fixed rule.
    """

    pair_evidence: float
    minus_loss: float
    reconstruction: float
    latent_divergence: float
    partition_divergence: float


@dataclass(frozen=True)
class FittedFactors:
    """A trained model.

    Args:
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
        """Find the most likely shared dimensions of pairs, without noise.

        Args:
            first: (P, C, H, W), values in [0, 1].
            second: The same.
            label: (P,), a factor that differs, for the method ``label``.
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
        """Checked pairs in batches on the model's device, as :meth:`share` takes them."""
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
        for start in range(0, len(first), _BATCH_SIZE):
            part = slice(start, start + _BATCH_SIZE)
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
        # Other methods ignore it, and may have fewer dimensions than there are factors.
        if self.config.method == "label":
            require_classes("label", label, pairs, self.config.latent)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The mean image of every code (..., l)."""
        return self.model.autoencoder.decode(codes.to(self.device))

    @torch.no_grad()
    def traverse(self, image: Tensor, values: Tensor) -> Tensor:
        """(l, V, C, H, W): an image with each dimension in turn set to some values."""
        posterior = self.model.autoencoder.posterior(image[None].to(self.device))
        codes = posterior.mean[0].repeat(self.config.latent, len(values), 1)
        for dimension in range(self.config.latent):
            codes[dimension, :, dimension] = values.to(codes)
        return self.decode(codes)

    @torch.no_grad()
    def swap(self, codes: Tensor, mask: Tensor) -> Tensor:
        """(P, 2, C, H, W): images with the shared dimensions of codes (P, 2, l) exchanged."""
        exchanged = mask[:, None, :]
        return self.decode(exchanged * codes.flip(1) + (1 - exchanged) * codes)

    def to(self, device: torch.device | str) -> "FittedFactors":
        """A copy on another device."""
        return replace(self, model=copy.deepcopy(self.model).to(device))

    def save(self, folder: Path | str) -> None:
        """Save to a folder, as safetensors and JSON."""
        tensors = {name: x.contiguous() for name, x in self.model.state_dict().items()}
        description = {
            "kind": "factors",
            "config": configs.dumps(self.config),
            "shape": list(self.shape),
        }
        save_model(Path(folder), tensors, description)


def load_factors(folder: Path | str, device: torch.device | str = "cpu") -> FittedFactors:
    """Load what :meth:`FittedFactors.save` wrote; nothing is unpickled."""
    tensors, description = load_model(Path(folder))
    if description.get("kind") != "factors":
        raise RunError(f"The folder {folder} holds another kind of model than one of factors.")
    colours, height, width = description["shape"]
    shape = (colours, height, width)
    with unseeded():
        model = FactorVAE(shape, configs.loads(FactorsConfig, description["config"]))
    load_modules(folder, tensors, {"": model})
    return FittedFactors(model.to(device), shape)


@torch.no_grad()
def measure_evidence(
    fitted: FittedFactors,
    first: Tensor,
    second: Tensor,
    *,
    label: Tensor | None = None,
    seed: int = 0,
) -> Evidence:
    """A lower bound on the log-probability of pairs, computed without labels.

    All weights are 1 and the probability of a partition is exact, whatever the model was trained
    with, so that models with other weights of one method can be compared. Do not compare methods
    if one of them has a fixed rule, whose partition costs nothing.

    Args:
        fitted: The model.
        first: (P, C, H, W), values in [0, 1]; held-out pairs.
        second: The same.
        label: (P,), a factor that differs, for the method ``label``.
        seed: Of the partitions and codes, one sample of each per pair.
    """
    model = copy.deepcopy(fitted.model)
    model.aggregation.config = replace(model.config, gamma=1.0, delta=1.0, objective="exact")
    generator = torch.Generator(fitted.device).manual_seed(seed)
    temperature = torch.tensor(fitted.config.temperature[1], device=fitted.device)
    found = []
    for batch in fitted.batches(first, second, label):
        # Sampled, since the bound is an expectation over partitions.
        views = model.compare(batch, temperature, generator)
        errors = model.errors(batch, views.aggregated.sample((), generator))
        latent = standard_divergence(views.aggregated)
        shared = (views.shared.mask * latent).sum(-1)
        terms = [torch.zeros_like(shared[0]), *views.shared.terms.values()]
        parts = [errors.mean(0), latent.sum(-1).mean(0), torch.stack(terms).sum(0), shared.mean(0)]
        found.append(torch.stack(parts).double())
    reconstruction, latent, partition, shared = torch.cat(found, 1).mean(1)
    views_mean = reconstruction + latent
    return Evidence(
        pair_evidence=-(2 * views_mean - shared + partition).item(),
        minus_loss=-(views_mean + partition).item(),
        reconstruction=reconstruction.item(),
        latent_divergence=latent.item(),
        partition_divergence=partition.item(),
    )
