"""The variational autoencoder of pairs, and what it minimises."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.factors.aggregation import AGGREGATIONS, AggregationInput, Shared
from drpm.factors.config import Averaging, FactorsConfig
from drpm.factors.networks import ConvolutionalAutoencoder
from drpm.nn.gaussians import Posterior, standard_divergence, symmetric_divergence
from drpm.training.program import Batch

Terms = dict[str, Tensor]


class Views(NamedTuple):
    """What a model makes of pairs.

    Arguments:
        posterior: Of both views before they are compared, (2, B, l).
        aggregated: Of both views, with what is shared averaged, (2, B, l).
        shared: What is shared.
    """

    posterior: Posterior
    aggregated: Posterior
    shared: Shared


class FactorVAE(nn.Module):
    """An autoencoder of pairs of images that share some of their latent dimensions.

    Arguments:
        shape: Of an image: C, H and W.
        config: The settings.
    """

    def __init__(self, shape: tuple[int, int, int], config: FactorsConfig) -> None:
        super().__init__()
        self.config = config
        self.autoencoder = ConvolutionalAutoencoder(shape, config.latent)
        self.aggregation = AGGREGATIONS[config.method](config)

    def compare(
        self,
        batch: Batch,
        temperature: Tensor,
        generator: torch.Generator | None = None,
        *,
        noise: bool = True,
    ) -> Views:
        """Encode both views of every pair, find what they share, and average that."""
        posterior = self.autoencoder.posterior(torch.stack([batch["first"], batch["second"]]))
        one, other = (Posterior(*(x[view] for x in posterior)) for view in range(2))
        divergence = symmetric_divergence(one, other)
        shared = self.aggregation(
            AggregationInput(divergence, batch, temperature, generator, noise)
        )
        mean, log_variance = average(one, other, self.config.averaging)
        mask = shared.mask
        variances = mask * log_variance.exp() + (1 - mask) * posterior.log_variance.exp()
        means = mask * mean + (1 - mask) * posterior.mean
        return Views(posterior, Posterior(means, variances.log()), shared)

    def errors(self, batch: Batch, codes: Tensor) -> Tensor:
        """(2, B): how unlikely both views are given their codes (2, B, l), in nats."""
        images = torch.stack([batch["first"], batch["second"]])
        logits = self.autoencoder.logits(codes)
        error = F.binary_cross_entropy_with_logits(logits, images, reduction="none")
        return error.flatten(2).sum(-1)


def average(one: Posterior, other: Posterior, kind: Averaging) -> Posterior:
    """What two views together say of a dimension.

    References:
        Hosoya, 2019 (``group``); Bouchacourt et al., 2018 (``multi-level``).
    """
    variances = torch.stack([one.log_variance, other.log_variance]).exp()
    if kind == "group":
        mean = 0.5 * (one.mean + other.mean)
        return Posterior(mean, variances.mean(0).log())
    # A product of both Gaussians, of twice its variance: alike views leave it as it is.
    total = variances.sum(0)
    mean = (one.mean * variances[1] + other.mean * variances[0]) / total
    return Posterior(mean, (2 * variances.prod(0) / total).log())


class FactorObjective:
    """Reconstruction, latent divergence, and what the method adds; means over views and pairs.

    Arguments:
        config: The settings.
    """

    def __init__(self, config: FactorsConfig) -> None:
        self.config = config

    def __call__(
        self,
        model: FactorVAE,
        batch: Batch,
        schedule: Mapping[str, Tensor],
        generator: torch.Generator | None,
    ) -> Terms:
        views = model.compare(batch, schedule["temperature"], generator)
        codes = views.aggregated.sample((), generator)
        divergence = standard_divergence(views.aggregated).mean(0)
        if self.config.shared_divergence == "once":
            # Of what is shared both views have the same.
            divergence = (1 - 0.5 * views.shared.mask) * divergence
        terms = {
            "reconstruction": model.errors(batch, codes).mean(),
            "latent": self.config.beta * divergence.sum(-1).mean(),
            **{name: term.mean() for name, term in views.shared.terms.items()},
        }
        # For whoever looks on: how many dimensions the views share.
        count = views.shared.mask.detach().sum(-1).mean()
        loss = torch.stack(list(terms.values())).sum()
        return {"loss": loss, **terms, "shared": count}
