"""Variational autoencoders with a mixture for a prior, and what they minimise."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from drpm.clustering.config import ClusteringConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.networks import Autoencoder
from drpm.clustering.prior import MixturePrior, divergences, log_densities
from drpm.distributions.estimators import leave_one_out_surrogate
from drpm.distributions.orders import best_order_log_prob
from drpm.distributions.partitions import RandomPartition
from drpm.distributions.relaxed_partitions import RelaxedRandomPartition
from drpm.distributions.sizes import FisherHypergeometric
from drpm.nn.gaussians import Posterior
from drpm.training.errors import ConfigError
from drpm.training.program import Batch

Terms = dict[str, Tensor]


class MixtureVAE(nn.Module):
    """An autoencoder with a mixture of Gaussians as the prior of its codes.

    Arguments:
        columns: The length of a row.
        config: The settings.
        likelihood: ``"bernoulli"`` or ``"gaussian"``.
    """

    def __init__(self, columns: int, config: ClusteringConfig, likelihood: str) -> None:
        super().__init__()
        self.autoencoder = Autoencoder(columns, config.network, likelihood)
        self.prior = MixturePrior(config.clusters, config.network.latent)
        # The scores' scale is a power of ten, and so stays positive.
        self.log10_scale = nn.Parameter(torch.ones(()))

    def features(self, batch: Batch) -> Tensor:
        """What the encoder's layers make of a batch; those of a frozen encoder come with it."""
        known = batch.get("features")
        return self.autoencoder.encoder(batch["rows"]) if known is None else known

    def posterior(self, rows: Tensor) -> Posterior:
        return self.autoencoder.posterior(self.autoencoder.encoder(rows))


class PartitionObjective:
    """The loss of DRPM-VC: a whole batch is partitioned at once.

    The partition's parameters are those that suit the latent divergences best, and carry no
    gradient but that of the scores' scale: scores fall with the index of the nearest cluster, and
    weights are the batch's mean responsibilities.

    Arguments:
        config: The settings.
    """

    def __init__(self, config: ClusteringConfig) -> None:
        self.config = config

    def __call__(
        self,
        model: MixtureVAE,
        batch: Batch,
        schedule: Mapping[str, Tensor],
        generator: torch.Generator | None,
    ) -> Terms:
        config, n = self.config, len(batch["rows"])
        posterior = model.autoencoder.posterior(model.features(batch))
        codes = posterior.sample((config.codes,), generator)
        fit = model.autoencoder.log_likelihood(batch["rows"], codes).sum() / config.codes
        mixture = model.prior.mixture()
        distance = divergences(posterior, mixture)
        log_scores, log_weights = self.parameters(model, posterior, mixture, distance)
        law = RelaxedRandomPartition(
            schedule["temperature"], log_scores, log_weights, validate_args=False
        )
        parts = law.rsample_parts((config.partitions,), noise="order", generator=generator)
        latent = (parts.Y.mean(0) * distance.mT).sum()
        sizes = parts.sizes[0].detach()
        if config.objective == "bounds":
            size_term, order_term = bound_terms(sizes, log_scores, log_weights, mixture)
        else:
            few = parts.Y[: config.exact_partitions]
            size_term, order_term = exact_terms(few, sizes, log_scores, log_weights, mixture)
        # Every term by the batch size; that of the order twice, and a negative one of the sizes,
        # which the bounds allow, counts as none: so it is in the authors' code.
        terms = {
            "reconstruction": -fit / n,
            "latent": schedule["beta"] * latent / n,
            "sizes": config.gamma * torch.relu(size_term) / n,
            "order": config.delta * order_term / n**2,
        }
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    def parameters(
        self, model: MixtureVAE, posterior: Posterior, mixture: Mixture, distance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-scores (n,) and log-weights (K,) of the partition of a batch."""
        clusters = distance.shape[-1]
        nearest = distance.detach().argmin(-1)
        scale = (math.log(10) * model.log10_scale).exp()
        log_scores = scale * (clusters - nearest).to(distance.dtype)
        responsibilities = log_densities(posterior.mean, mixture).detach().softmax(-1)
        return log_scores, (responsibilities.mean(-2) + 1e-6).log()


def bound_terms(
    sizes: Tensor, log_scores: Tensor, log_weights: Tensor, mixture: Mixture
) -> tuple[Tensor, Tensor]:
    """The paper's bound on the divergence of the partition from its prior, in two parts.

    The prior knows no order: all its scores are equal.
    """
    n = log_scores.shape[-1]
    size_divergence = _size_divergence(sizes, n, log_weights, mixture)
    orders = torch.lgamma(sizes + 1).sum()  # log of how many lead to the same partition
    return orders + size_divergence, best_order_log_prob(log_scores) + math.lgamma(n + 1)


def exact_terms(
    partitions: Tensor, sizes: Tensor, log_scores: Tensor, log_weights: Tensor, mixture: Mixture
) -> tuple[Tensor, Tensor]:
    """The log-ratio itself at the given sizes, in the same two parts: of these, and who is where.

    Sizes are not drawn but the most likely ones, here as in the bounds: what is exact is the mass.
    """
    n = log_scores.shape[-1]
    size_divergence = _size_divergence(sizes, n, log_weights, mixture)
    law = RandomPartition(log_scores, log_weights, validate_args=False)
    fills = law.fill_log_prob(partitions.detach())
    # The mass of given draws has a gradient of mean zero: what counts is that others are drawn.
    fill = leave_one_out_surrogate(fills, fills)
    orders = torch.lgamma(sizes + 1).sum()
    return size_divergence, fill - (orders - math.lgamma(n + 1))


def _size_divergence(sizes: Tensor, n: int, log_weights: Tensor, mixture: Mixture) -> Tensor:
    """log q(sizes) - log p(sizes), with a gradient in the prior's weights alone.

    The law of sizes is an exponential family: the gradient is the mean minus the sizes, and needs
    no pass back through the normaliser.
    """
    with torch.no_grad():
        # Both laws at once, for half the operations.
        both = torch.stack([log_weights, mixture.log_weights])
        log_normalizers, means = FisherHypergeometric(n, both, validate_args=False).exact_mean()
        # The binomial coefficients of both are the same.
        gap = (sizes * (both[0] - both[1]).double()).sum(-1)
        value = (gap - log_normalizers[0] + log_normalizers[1]).to(both.dtype)
        slope = means[1].to(both.dtype) - sizes
    pull = (slope * mixture.log_weights).sum(-1)
    return value + (pull - pull.detach())


def vade_objective(
    model: MixtureVAE,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> Terms:
    """The evidence lower bound of VaDE: every example has a cluster of its own."""
    n = len(batch["rows"])
    posterior = model.autoencoder.posterior(model.features(batch))
    codes = posterior.sample((), generator)
    fit = model.autoencoder.log_likelihood(batch["rows"], codes).sum()
    mixture = model.prior.mixture()
    log_weights = mixture.log_weights
    log_chances = (log_densities(codes, mixture) + log_weights).log_softmax(-1)
    chances = log_chances.exp()
    latent = (chances * divergences(posterior, mixture)).sum()
    clusters = (chances * (log_chances - log_weights)).sum()
    terms = {"reconstruction": -fit / n, "latent": latent / n, "clusters": clusters / n}
    return {"loss": torch.stack(list(terms.values())).sum(), **terms}


def choose_likelihood(rows: Tensor, asked: str) -> str:
    """Bernoulli where all values lie in [0, 1], unless something else is asked for."""
    if asked == "bernoulli":
        require_chances("The rows", rows)
    if asked != "auto":
        return asked
    return "bernoulli" if _are_chances(rows) else "gaussian"


def require_chances(name: str, rows: Tensor) -> None:
    """Refuse what cannot be the means of Bernoulli variables.

    Arguments:
        name: What the sentence calls it.
        rows: The values.
    """
    if not _are_chances(rows):
        raise ConfigError(
            f"{name} must lie in [0, 1] where likelihood is 'bernoulli', "
            f"but got values from {rows.min().item():g} to {rows.max().item():g}."
        )


def _are_chances(rows: Tensor) -> bool:
    return bool(((rows >= 0) & (rows <= 1)).all())


def build_objective(config: ClusteringConfig) -> Any:
    return vade_objective if config.method == "vade" else PartitionObjective(config)
