"""The variational autoencoder of pairs, its objective, and methods to find shared dimensions."""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drpm.distributions.orders import best_order_log_prob
from drpm.distributions.partitions import RandomPartition, partition_kl
from drpm.distributions.relaxed import RelaxedFisherHypergeometric, RelaxedRandomPartition
from drpm.distributions.size_tables import list_pair
from drpm.factors.config import SIDES, Averaging, FactorsConfig
from drpm.factors.pairs import require_views
from drpm.nn.encoders import Posterior, standard_divergence, symmetric_divergence
from drpm.relaxation.operators import permuted, sort_descending, straight_through
from drpm.training import config as configs
from drpm.training.checkpoint import described, load_model, load_modules, save_model
from drpm.training.config import require_classes
from drpm.training.devices import seeded
from drpm.training.errors import ConfigError
from drpm.training.program import Batch

# For images of 64 x 64 pixels; smaller images use the first layers. Every layer halves the side.
CHANNELS = (32, 32, 64, 64)
KERNELS = (4, 4, 2, 2)
_SMALLEST = 4  # the side of the last feature map
_BATCH_SIZE = 1024  # of pairs, in evaluation


class ConvolutionalAutoencoder(nn.Module):
    """From images (..., C, H, W) with values in [0, 1] to latent Gaussians, and back.

    References:
        Locatello et al., "Weakly-supervised disentanglement without compromises", 2020.
    """

    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__()
        colors, height, width = shape
        if height != width or height not in SIDES:
            raise ConfigError(
                "images must be squares with a side of 8, 16, 32 or 64 pixels, but got "
                f"{height} x {width}; load_pairs resizes them to its image_size, and drpm factors "
                "to --image-size."
            )
        depth = SIDES.index(height) + 1
        widths = (colors, *CHANNELS[:depth])
        layers: list[nn.Module] = []
        for (inputs, outputs), kernel in zip(pairwise(widths), KERNELS[:depth], strict=True):
            padding = (kernel - 2) // 2
            layers += [nn.Conv2d(inputs, outputs, kernel, stride=2, padding=padding), nn.ReLU()]
        deepest = widths[-1] * _SMALLEST**2
        layers += [_FlattenPixels(), nn.Linear(deepest, 256), nn.ReLU()]
        self.encoder = nn.Sequential(*layers)
        self.heads = nn.Linear(256, 2 * latent)  # means and log-variances
        dense = [nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, deepest), nn.ReLU()]
        self.dense = nn.Sequential(*dense, nn.Unflatten(-1, (_SMALLEST, _SMALLEST, widths[-1])))
        back: list[nn.Module] = []
        for inputs, outputs in pairwise((*widths[:0:-1], colors)):
            back += [nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1), nn.ReLU()]
        self.decoder = nn.Sequential(*back[:-1])
        # As in the reference; with torch's smaller weights, codes stay unused for long.
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def posterior(self, images: Tensor) -> Posterior:
        # Pairs are float32, also for float64 models.
        flat = images.flatten(0, -4).to(self.heads.weight.dtype)
        if flat.is_cuda:
            flat = flat.contiguous(memory_format=torch.channels_last)
        mean, log_variance = self.heads(self.encoder(flat)).chunk(2, -1)
        leading = images.shape[:-3]
        return Posterior(mean.unflatten(0, leading), log_variance.unflatten(0, leading))

    def logits(self, codes: Tensor) -> Tensor:
        """Logits of the pixels, (..., C, H, W)."""
        # The channels are last in memory.
        features = self.dense(codes.flatten(0, -2)).permute(0, 3, 1, 2)
        if not features.is_cuda:
            features = features.contiguous()
        images: Tensor = self.decoder(features).unflatten(0, codes.shape[:-1])
        return images


class _FlattenPixels(nn.Module):
    """Features (N, C, H, W) to rows (N, H W C)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.permute(0, 2, 3, 1).flatten(1)


# Methods to find shared latent dimensions: one class each.


class AggregationInput(NamedTuple):
    """The input of a method."""

    divergence: Tensor  # (B, l), between the posteriors of the two views
    batch: Batch  # the pairs, and their labels if there are any
    temperature: Tensor  # of the relaxation
    generator: Generator | None
    noise: bool  # whether to sample or to use the mode


class Shared(NamedTuple):
    """The shared dimensions of every pair."""

    mask: Tensor  # (B, l), 1 for a shared dimension, else 0; with gradients if it is learned
    terms: dict[str, Tensor]  # further loss terms, (B,) each


class Aggregation(nn.Module):
    """Base class of methods to find the shared dimensions."""

    def __init__(self, config: FactorsConfig) -> None:
        super().__init__()
        self.config = config


class LabelAggregation(Aggregation):
    """The dimension given by a label is independent, all others are shared.

    References:
        Bouchacourt et al., "Multi-level variational autoencoder", 2018. Hosoya, "Group-based
        learning of disentangled representations with generalizability for novel contents", 2019.
    """

    def forward(self, given: AggregationInput) -> Shared:
        label, divergence = given.batch["label"], given.divergence
        dimensions = torch.arange(divergence.shape[-1], device=divergence.device)
        return Shared((dimensions != label[:, None]).to(divergence.dtype), {})


class AdaptiveAggregation(Aggregation):
    """Dimensions with divergences below the midpoint of a pair's range are shared.

    References:
        Locatello et al., 2020.
    """

    def forward(self, given: AggregationInput) -> Shared:
        divergence = given.divergence.detach()
        midpoint = 0.5 * (divergence.amin(-1, keepdim=True) + divergence.amax(-1, keepdim=True))
        mask = (divergence < midpoint) | (divergence <= 1e-9)  # rounding error
        return Shared(mask.to(divergence.dtype), {})


class _LearnedCount(Aggregation):
    """Learns the number of shared dimensions: one linear layer to two log-weights."""

    prior: Tensor

    def __init__(self, config: FactorsConfig) -> None:
        super().__init__(config)
        self.weights = nn.Linear(config.latent, 2)
        self.register_buffer("prior", torch.tensor(config.prior_log_weights))

    def size_divergence(self, log_weights: Tensor, costs: Tensor | float = 0.0) -> Tensor:
        """KL divergence of the size law from its prior plus the expected cost of sizes, (B,)."""
        log_probs, prior = (
            list_pair(self.config.latent, x.double()).log_softmax(-1)
            for x in (log_weights, self.prior)
        )
        return (log_probs.exp() * (log_probs - prior + costs)).sum(-1).to(log_weights.dtype)

    def log_orders(self) -> Tensor:
        """(l + 1,): log-number of orders of one partition, by its independent dimensions."""
        n = self.config.latent
        independent = torch.arange(n + 1, dtype=torch.float64, device=self.prior.device)
        return torch.lgamma(independent + 1) + torch.lgamma(n - independent + 1)


class HypergeometricAggregation(_LearnedCount):
    """A random number of dimensions with the smallest divergences is shared.

    References:
        Sutter et al., "Learning group importance using the differentiable hypergeometric
        distribution", 2023.
    """

    def forward(self, given: AggregationInput) -> Shared:
        divergence = given.divergence
        log_weights = self.weights(divergence)
        law = RelaxedFisherHypergeometric(
            given.temperature, self.config.latent, log_weights, validate_args=False
        )
        sizes = law.draw(torch.Size(), noise=given.noise, generator=given.generator)
        # In descending order of divergence the independent dimensions come first.
        _, order, ranks = sort_descending(divergence.detach())
        independent = sizes.survival[..., 0, :].to(divergence.dtype)
        count = torch.arange(divergence.shape[-1], device=divergence.device)
        hard = (count < sizes.hard[..., :1]).to(divergence.dtype)
        mask = 1 - permuted(straight_through(hard, independent), ranks, order)
        # Under the prior all sets of a size are equally likely.
        exact = self.config.objective == "exact"
        costs = math.lgamma(self.config.latent + 1) - self.log_orders() if exact else 0.0
        return Shared(mask, {"sizes": self.config.gamma * self.size_divergence(log_weights, costs)})


class PartitionAggregation(_LearnedCount):
    """A random partition with divergences as scores; the largest are independent."""

    def forward(self, given: AggregationInput) -> Shared:
        config, log_weights = self.config, self.weights(given.divergence)
        log_scores = (given.divergence + config.smallest_divergence).log()
        law = RelaxedRandomPartition(
            given.temperature, log_scores, log_weights, validate_args=False
        )
        partition = law.rsample(generator=given.generator) if given.noise else law.mode
        sizes, order = self.divergences(log_scores, log_weights, given.generator)
        terms = {"sizes": config.gamma * sizes, "order": config.delta * order}
        return Shared(partition[..., 1, :], terms)

    def divergences(
        self, log_scores: Tensor, log_weights: Tensor, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Divergences of sizes and order from the prior, (B,) each: exact, or bounds."""
        if self.config.objective == "bounds":
            best = best_order_log_prob(log_scores) + math.lgamma(self.config.latent + 1)
            return self.size_divergence(log_weights, self.log_orders()), best
        law = RandomPartition(log_scores, log_weights, validate_args=False)
        equal, weights = torch.zeros_like(log_scores), self.prior.expand_as(log_weights)
        prior = RandomPartition(equal, weights, validate_args=False)
        whole = partition_kl(law, prior, num_samples=self.config.draws, generator=generator)
        sizes = self.size_divergence(log_weights)
        return sizes, whole - sizes


AGGREGATIONS: dict[str, type[Aggregation]] = {
    "label": LabelAggregation,
    "ada": AdaptiveAggregation,
    "hg": HypergeometricAggregation,
    "drpm": PartitionAggregation,
}


class SharedFactors(NamedTuple):
    """The shared dimensions of pairs.

    Args:
        number: (P,), the number of latent dimensions that the images of a pair share.
        mask: (P, l), 1 for shared dimensions, else 0.
        codes: (P, 2, l), the posterior means of each image.
        averaged: (P, 2, l), the same with shared dimensions averaged, the input of the decoder.
    """

    number: Tensor
    mask: Tensor
    codes: Tensor
    averaged: Tensor


class FactorVAE(nn.Module):
    """An autoencoder of pairs of images that share some of their latent dimensions.

    Args:
        shape: Image shape (C, H, W).
        config: The settings.
    """

    def __init__(self, shape: tuple[int, ...], config: FactorsConfig) -> None:
        super().__init__()
        self.shape, self.config = shape, config
        self.autoencoder = ConvolutionalAutoencoder(shape, config.latent)
        self.aggregation = AGGREGATIONS[config.method](config)

    def compare(
        self,
        batch: Batch,
        temperature: Tensor,
        generator: Generator | None = None,
        *,
        noise: bool = True,
    ) -> tuple[Posterior, Posterior, Shared]:
        """Posteriors (2, B, l) of the views, averaged posteriors, and the shared dimensions."""
        posterior = self.autoencoder.posterior(torch.stack([batch["first"], batch["second"]]))
        one, other = (Posterior(*(x[view] for x in posterior)) for view in range(2))
        divergence = symmetric_divergence(one, other)
        given = AggregationInput(divergence, batch, temperature, generator, noise)
        shared = self.aggregation(given)
        mean, log_variance = average(one, other, self.config.averaging)
        mask = shared.mask
        variances = mask * log_variance.exp() + (1 - mask) * posterior.log_variance.exp()
        means = mask * mean + (1 - mask) * posterior.mean
        return posterior, Posterior(means, variances.log()), shared

    def errors(self, batch: Batch, codes: Tensor) -> Tensor:
        """(2, B): negative log-likelihood of both views given codes (2, B, l), in nats."""
        images = torch.stack([batch["first"], batch["second"]])
        logits = self.autoencoder.logits(codes)
        error = F.binary_cross_entropy_with_logits(logits, images, reduction="none")
        return error.flatten(2).sum(-1)

    def batches(
        self, first: Tensor, second: Tensor, label: Tensor | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Validate pairs, as for :meth:`share`, and move them in batches to the model's device."""
        require_views(first, second)
        if first.shape[1:] != self.shape:
            raise ValueError(
                f"first and second must have shape (P, {', '.join(map(str, self.shape))}), "
                f"but got {tuple(first.shape)}."
            )
        like = self.autoencoder.heads.weight
        columns = {"first": first.to(like), "second": second.to(like)}
        if self.config.method == "label":
            if label is None:
                raise ValueError("label must be given for the method 'label'.")
            columns["label"] = torch.as_tensor(label, device=like.device)
            require_classes("label", columns["label"], len(first), self.config.latent)
        for start in range(0, len(first), _BATCH_SIZE):
            yield {name: x[start : start + _BATCH_SIZE] for name, x in columns.items()}

    @torch.no_grad()
    def share(self, first: Tensor, second: Tensor, *, label: Tensor | None = None) -> SharedFactors:
        """Find the most likely shared dimensions of pairs, without noise.

        Args:
            first: (P, C, H, W), values in [0, 1].
            second: The same.
            label: (P,), a factor that differs, for the method ``label``.
        """
        found = []
        for batch in self.batches(first, second, label):
            *views, shared = self.compare(batch, self.last_temperature, noise=False)
            found.append((shared.mask.round(), *(x.mean.movedim(0, 1) for x in views)))
        mask, codes, averaged = (torch.cat(parts) for parts in zip(*found, strict=True))
        return SharedFactors(mask.sum(-1), mask, codes, averaged)

    @property
    def last_temperature(self) -> Tensor:
        """The temperature at the end of training."""
        like = self.autoencoder.heads.weight
        return torch.tensor(self.config.temperature[1], device=like.device)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The mean image of every code (..., l)."""
        return torch.sigmoid(self.autoencoder.logits(codes))

    @torch.no_grad()
    def traverse(self, image: Tensor, values: Tensor) -> Tensor:
        """(l, V, C, H, W): an image with one dimension at a time set to the given values."""
        posterior = self.autoencoder.posterior(image[None].to(self.autoencoder.heads.weight))
        codes = posterior.mean[0].repeat(self.config.latent, len(values), 1)
        codes.diagonal(0, 0, 2).copy_(values[:, None])
        return self.decode(codes)

    @torch.no_grad()
    def swap(self, codes: Tensor, mask: Tensor) -> Tensor:
        """(P, 2, C, H, W): images with the shared dimensions of codes (P, 2, l) swapped."""
        exchanged = mask[:, None, :]
        return self.decode(exchanged * codes.flip(1) + (1 - exchanged) * codes)

    def save(self, folder: Path | str) -> None:
        """Save to a folder, as safetensors and JSON."""
        text = configs.dumps(self.config)
        description = {"kind": "factors", "config": text, "shape": list(self.shape)}
        save_model(Path(folder), self.state_dict(), description)


def load_factors(folder: Path | str, device: torch.device | str = "cpu") -> FactorVAE:
    """Load a model saved by :meth:`FactorVAE.save`, without pickle."""
    tensors, description = load_model(folder, "factors")
    with described(folder), seeded(0):
        config = configs.loads(FactorsConfig, description["config"])
        model = FactorVAE(tuple(description["shape"]), config)
    load_modules(folder, tensors, {"": model})
    return model.to(device)


def average(one: Posterior, other: Posterior, kind: Averaging) -> Posterior:
    """The average of two posteriors (Hosoya, 2019, or Bouchacourt et al., 2018)."""
    variances = torch.stack([one.log_variance, other.log_variance]).exp()
    if kind == "group":
        mean = 0.5 * (one.mean + other.mean)
        return Posterior(mean, variances.mean(0).log())
    # The product of both Gaussians with twice its variance, which keeps equal views unchanged.
    total = variances.sum(0)
    mean = (one.mean * variances[1] + other.mean * variances[0]) / total
    return Posterior(mean, (2 * variances.prod(0) / total).log())


def factor_objective(
    model: FactorVAE, batch: Batch, schedule: Mapping[str, Tensor], generator: Generator | None
) -> dict[str, Tensor]:
    """Reconstruction, latent divergence and the terms of the method; means over views and pairs."""
    _, aggregated, shared = model.compare(batch, schedule["temperature"], generator)
    codes = aggregated.sample((), generator)
    divergence = standard_divergence(aggregated).mean(0)
    if model.config.shared_divergence == "once":
        divergence = (1 - 0.5 * shared.mask) * divergence
    terms = {
        "reconstruction": model.errors(batch, codes).mean(),
        "latent": model.config.beta * divergence.sum(-1).mean(),
        **{name: term.mean() for name, term in shared.terms.items()},
    }
    # Logged only: the number of shared dimensions.
    count = shared.mask.detach().sum(-1).mean()
    loss = torch.stack(list(terms.values())).sum()
    return {"loss": loss, **terms, "shared": count}
