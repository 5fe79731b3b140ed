"""A small model of a few rows of zeros and ones."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from drpm.clustering.config import AutoencoderConfig, ClusteringConfig
from drpm.clustering.mixtures import Mixture
from drpm.clustering.models import MixtureVAE
from drpm.nn.encoders import Posterior
from drpm.training.program import Batch
from tests.oracles import generator, normal

COLUMNS = 5
CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def settings(clusters: int = 3, **changes: Any) -> ClusteringConfig:
    chosen = {"partitions": 4, "network": AutoencoderConfig(2, (6,), (7,)), **changes}
    return ClusteringConfig(clusters=clusters, **chosen)


def make_model(
    config: ClusteringConfig, likelihood: str = "bernoulli", seed: int = 1
) -> MixtureVAE:
    """A small model whose clusters are neither alike nor far apart."""
    torch.manual_seed(seed)
    model = MixtureVAE(COLUMNS, config, likelihood).double()
    k, latent = config.clusters, config.network.latent
    model.prior.set_mixture(
        Mixture(
            normal(k, seed=seed).log_softmax(-1),
            normal(k, latent, seed=seed + 1),
            normal(k, latent, seed=seed + 2).exp(),
        )
    )
    with torch.no_grad():
        model.log10_scale.fill_(-0.3)  # random orders
        model.autoencoder.mean.weight.mul_(6)
    return model


def make_batch(n: int = 4, seed: int = 0) -> Batch:
    """Different rows of zeros and ones."""
    numbers = torch.randperm(2**COLUMNS, generator=generator(seed))[:n]
    return {"rows": (numbers[:, None] >> torch.arange(COLUMNS) & 1).double()}


def place_on_rows(model: MixtureVAE, batch: Batch, log_weights: Tensor | None = None) -> None:
    """Put cluster k on the code of row k, so that each is the nearest one of some row."""
    means = posterior_of(model, batch).mean[: len(model.prior.mixture().means)]
    gap = torch.pdist(means).min() if len(means) > 1 else torch.ones((), dtype=means.dtype)
    # Clusters are four deviations apart or more, and codes as uncertain as clusters are wide.
    variance = (gap / 4).square()
    model.autoencoder.reset_variance(float(variance.log()))
    weights = model.prior.mixture().log_weights.detach() if log_weights is None else log_weights
    model.prior.set_mixture(Mixture(weights, means, variance.expand_as(means).clone()))


def schedule(temperature: float = 1.0, beta: float = 0.7) -> dict[str, Tensor]:
    values = {"temperature": temperature, "beta": beta}
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in values.items()}


@torch.no_grad()
def posterior_of(model: MixtureVAE, batch: Batch) -> Posterior:
    return model.autoencoder.posterior(model.autoencoder.encoder(batch["rows"]))


def divergence_table(posterior: Posterior, mixture: Mixture) -> Tensor:
    """KL of every row's posterior from every cluster, (..., n, K)."""
    means, deviations = posterior.mean, (posterior.log_variance / 2).exp()
    rows = Normal(means[..., :, None, :], deviations[..., :, None, :])
    clusters = Normal(mixture.means[..., None, :, :], mixture.variances.sqrt()[..., None, :, :])
    return kl_divergence(rows, clusters).sum(-1).detach()
