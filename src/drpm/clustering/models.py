"""Variational autoencoders with a Gaussian mixture prior, and their objectives."""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.clustering.config import AutoencoderConfig, ClusteringConfig
from drpm.clustering.mixtures import Mixture
from drpm.data.types import column_scales
from drpm.distributions.affinities import AffinityPartition, RelaxedAffinityPartition
from drpm.distributions.orders import best_order_log_prob
from drpm.distributions.partitions import Parts, RandomPartition, leave_one_out_surrogate
from drpm.distributions.relaxed import RelaxedRandomPartition
from drpm.distributions.sizes import FisherHypergeometric
from drpm.nn.encoders import Posterior, dense_layers
from drpm.training.config import require_unit_interval
from drpm.training.program import Batch, Objective, Terms

AnyPartition = RandomPartition | AffinityPartition
_PARTS = ("means", "log_variances", "log_weights")
BERNOULLI = " if likelihood is 'bernoulli'"  # ends a requirement in an error message


class Autoencoder(nn.Module):
    """From rows (..., d) to Gaussian posteriors of latent codes, and from codes to rows."""

    def __init__(self, columns: int, config: AutoencoderConfig, likelihood: str) -> None:
        super().__init__()
        self.likelihood, self.deviation = likelihood, config.deviation
        self.encoder = dense_layers([columns, *config.encoder])
        self.mean = nn.Linear(config.encoder[-1], config.latent)
        self.log_variance = nn.Linear(config.encoder[-1], config.latent)
        self.decoder = nn.Sequential(
            dense_layers([config.latent, *config.decoder]), nn.Linear(config.decoder[-1], columns)
        )

    def posterior(self, features: Tensor) -> Posterior:
        """The posterior given the output of the encoder's layers."""
        # One product for both heads: narrow products are as slow as wider ones.
        heads = (self.mean, self.log_variance)
        weight, bias = torch.cat([x.weight for x in heads]), torch.cat([x.bias for x in heads])
        return Posterior(*F.linear(features, weight, bias).chunk(2, -1))

    def decode(self, codes: Tensor) -> Tensor:
        """The mean row of every code."""
        raw: Tensor = self.decoder(codes)
        return torch.sigmoid(raw) if self.likelihood == "bernoulli" else raw

    def log_likelihood(self, rows: Tensor, codes: Tensor) -> Tensor:
        """log p(row | code), summed over columns; up to a constant if Gaussian."""
        raw: Tensor = self.decoder(codes)
        rows = rows.expand_as(raw)
        if self.likelihood == "bernoulli":
            return -F.binary_cross_entropy_with_logits(raw, rows, reduction="none").sum(-1)
        return -0.5 * ((raw - rows) / self.deviation).square().sum(-1)

    def reset_variance(self, log_variance: float = -2.0) -> None:
        """Set the same posterior variance for every row."""
        nn.init.zeros_(self.log_variance.weight)
        nn.init.constant_(self.log_variance.bias, log_variance)


class MixturePrior(nn.Module):
    """A Gaussian mixture as the prior of latent codes; its Gaussians may share their variances."""

    detached: Tensor

    def __init__(self, clusters: int, latent: int, *, shared_variances: bool = False) -> None:
        super().__init__()
        self.shared_variances = shared_variances
        self.means = nn.Parameter(torch.zeros(clusters, latent))
        self.log_variances = nn.Parameter(torch.zeros(clusters, latent))
        self.log_weights = nn.Parameter(torch.full((clusters,), -math.log(clusters)))
        self.register_buffer("detached", torch.zeros(()))
        for name in _PARTS:
            self.register_buffer(f"fixed_{name}", torch.zeros_like(getattr(self, name)))

    def mixture(self) -> Mixture:
        # Not a branch, so that it can change within a captured step.
        means, log_variances, log_weights = (
            torch.where(self.detached > 0.5, getattr(self, f"fixed_{name}"), getattr(self, name))
            for name in _PARTS
        )
        if self.shared_variances:
            log_variances = log_variances.mean(-2, keepdim=True).expand_as(log_variances)
        return Mixture(log_weights.log_softmax(-1), means, log_variances.exp())

    @torch.no_grad()
    def set_mixture(self, mixture: Mixture, *, detached: bool = False) -> None:
        """Replace the mixture; if detached, by a constant without training."""
        values = (mixture.means, mixture.variances.log(), mixture.log_weights)
        for name, value in zip(_PARTS, values, strict=True):
            getattr(self, f"fixed_{name}" if detached else name).copy_(value)
        self.detached.fill_(float(detached))


class MixtureVAE(nn.Module):
    """An autoencoder with a mixture prior."""

    def __init__(
        self,
        columns: int,
        config: ClusteringConfig,
        likelihood: str,
        *,
        shared_variances: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.autoencoder = Autoencoder(columns, config.network, likelihood)
        self.prior = MixturePrior(
            config.clusters, config.network.latent, shared_variances=shared_variances
        )
        # The logarithm keeps the scale of the scores positive. Affinities start at the odds.
        self.log10_scale = nn.Parameter(torch.tensor(1.0 if config.partition == "order" else 0.0))

    def features(self, batch: Batch) -> Tensor:
        """The output of the encoder's layers, precomputed for a frozen encoder."""
        known = batch.get("features")
        return self.autoencoder.encoder(batch["rows"]) if known is None else known


def divergences(posterior: Posterior, mixture: Mixture) -> Tensor:
    """The KL divergence of every posterior from every Gaussian of the prior, (..., n, K)."""
    gaps = posterior.mean[..., :, None, :] - mixture.means[..., None, :, :]
    spread = posterior.log_variance.exp()[..., :, None, :] + gaps.square()
    ratio = (spread / mixture.variances[..., None, :, :]).sum(-1)
    logs = mixture.variances.log().sum(-1)[..., None, :] - posterior.log_variance.sum(-1)[..., None]
    return 0.5 * (ratio + logs - posterior.mean.shape[-1])


def partition_objective(
    model: MixtureVAE,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> Terms:
    """The loss of DRPM-VC, which partitions a whole batch."""
    config, n = model.config, len(batch["rows"])
    posterior = model.autoencoder.posterior(model.features(batch))
    codes = posterior.sample((config.codes,), generator)
    fit = model.autoencoder.log_likelihood(batch["rows"], codes).sum() / config.codes
    mixture = model.prior.mixture()
    distance = divergences(posterior, mixture)
    log_scores, log_weights = partition_parameters(model, posterior, mixture, distance)
    relaxed = RelaxedRandomPartition if config.partition == "order" else RelaxedAffinityPartition
    law = relaxed(schedule["temperature"], log_scores, log_weights, validate_args=False)
    if config.partition == "order":
        parts = law.rsample_parts((config.partitions,), noise="order", generator=generator)
        latent = (parts.Y.mean(0) * distance.mT).sum()
    else:
        # The score function is cheaper than soft subsets, since only the scale has a gradient.
        with torch.no_grad():
            parts = law.rsample_parts((config.partitions,), noise="order", generator=generator)
        log_probs = law.discrete.order_log_prob(parts.Y, parts.order).to(distance.dtype)
        latent = leave_one_out_surrogate((parts.Y * distance.mT).sum((-2, -1)), log_probs)
    few = Parts(*(part[: config.exact_partitions].detach() for part in parts))
    terms_of = bound_terms if config.objective == "bounds" else exact_terms
    size_term, order_term = terms_of(few, law.discrete, mixture)
    # As in the authors' code: terms are divided by the batch size (the order term twice), and
    # negative size terms, which the bounds allow, are set to zero.
    terms = {
        "reconstruction": -fit / n,
        "latent": schedule["beta"] * latent / n,
        "sizes": config.gamma * torch.relu(size_term) / n,
        "order": config.delta * order_term / n**2,
    }
    return {"loss": torch.stack(list(terms.values())).sum(), **terms}


def partition_parameters(
    model: MixtureVAE, posterior: Posterior, mixture: Mixture, distance: Tensor
) -> tuple[Tensor, Tensor]:
    """The log-scores and log-weights (K,) of the partition of a batch, from divergences (n, K).

    By order, scores (n,) decrease with the index of the nearest cluster. By affinity, scores (K, n)
    are the odds of a cluster against all later ones: with divergences alone, rows far from all
    clusters would go to the last ones. Weights are the mean responsibilities of the batch or their
    odds. Only the scale has a gradient: that of the divergences would vanish where the partition
    follows its posterior.
    """
    distance, clusters = distance.detach(), distance.shape[-1]
    scale = (math.log(10) * model.log10_scale).exp()
    if model.config.partition == "order":
        log_scores = scale * (clusters - distance.argmin(-1)).to(distance.dtype)
    else:
        later = (-distance).flip(-1).logcumsumexp(-1).flip(-1)[..., 1:]
        odds = -distance[..., :-1] - later
        log_scores = scale * F.pad(odds, (0, 1)).mT  # the last cluster takes the rest
    responsibilities = mixture.log_densities(posterior.mean).detach().softmax(-1)
    shares = responsibilities.mean(-2)
    log_weights = (shares + 1e-6).log()
    if model.config.weights == "odds":
        log_weights = log_weights - (1 - shares + 1e-6).log()
    return log_scores, log_weights


def bound_terms(parts: Parts, law: AnyPartition, mixture: Mixture) -> tuple[Tensor, Tensor]:
    r"""The paper's bound on the divergence of the partition from its prior: sizes and order.

    .. math:: \log\frac{q(Y)}{p(Y)} \le \log\frac{q(n)}{p(n)} + \sum_k \log n_k!
              + \max_\pi \log q(\pi \mid n) + \log n!

    The scores of p are equal. The maximum is over all orders or, by affinity, over those that lead
    to Y, averaged over the given partitions.
    """
    sizes, n = parts.sizes[0], law.event_shape[-1]
    if isinstance(law, RandomPartition):
        best = best_order_log_prob(law.log_scores)
    else:
        # With a score-function term, because the partitions depend on the affinities.
        log_probs = law.order_log_prob(parts.Y, parts.order)
        best = leave_one_out_surrogate(law.best_order_log_prob(parts.Y), log_probs)
    orders = torch.lgamma(sizes + 1).sum()  # log of the number that leads to the same partition
    return orders + _size_divergence(sizes, law, mixture), best + math.lgamma(n + 1)


def exact_terms(parts: Parts, law: AnyPartition, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """The log-ratio of the partition and its prior: sizes, and the partition given the sizes."""
    sizes, n = parts.sizes[0], law.event_shape[-1]
    fills = law.fill_log_prob(parts.Y)
    # With a score-function term: the gradient of samples' log-mass has mean zero.
    fill = leave_one_out_surrogate(fills, fills)
    orders = torch.lgamma(sizes + 1).sum()
    return _size_divergence(sizes, law, mixture), fill - (orders - math.lgamma(n + 1))


def _size_divergence(sizes: Tensor, law: AnyPartition, mixture: Mixture) -> Tensor:
    """log q(sizes) - log p(sizes), with a gradient in the prior's weights only."""
    with torch.no_grad():
        # Both distributions in one batch.
        both = torch.stack([law.log_weights, mixture.log_weights])
        laws = FisherHypergeometric(law.event_shape[-1], both, validate_args=False)
        log_normalizers, means = laws.exact_mean()
        # The binomial coefficients cancel.
        gap = (sizes * (both[0] - both[1]).double()).sum(-1)
        value = (gap - log_normalizers[0] + log_normalizers[1]).to(both.dtype)
        # The closed-form gradient of an exponential family.
        slope = means[1].to(both.dtype) - sizes
    linear = (slope * mixture.log_weights).sum(-1)
    return value + (linear - linear.detach())


def vade_objective(
    model: MixtureVAE,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> Terms:
    """The negative evidence lower bound of VaDE, with independent clusters."""
    n = len(batch["rows"])
    posterior = model.autoencoder.posterior(model.features(batch))
    codes = posterior.sample((), generator)
    fit = model.autoencoder.log_likelihood(batch["rows"], codes).sum()
    mixture = model.prior.mixture()
    log_probs = (mixture.log_densities(codes) + mixture.log_weights).log_softmax(-1)
    probs = log_probs.exp()
    latent = (probs * divergences(posterior, mixture)).sum()
    clusters = (probs * (log_probs - mixture.log_weights)).sum()
    terms = {"reconstruction": -fit / n, "latent": latent / n, "clusters": clusters / n}
    return {"loss": torch.stack(list(terms.values())).sum(), **terms}


OBJECTIVES: dict[str, Objective] = {"drpm-vc": partition_objective, "vade": vade_objective}


def in_batches(function: Callable[[Tensor], Tensor], rows: Tensor, size: int = 8192) -> Tensor:
    """Apply a function to batches of rows."""
    return torch.cat([function(part) for part in rows.split(size)])


def choose_likelihood(rows: Tensor, likelihood: str) -> str:
    """Resolve ``"auto"``: Bernoulli if all values lie in [0, 1], else Gaussian."""
    if likelihood != "auto":
        return likelihood
    return "bernoulli" if bool(((rows >= 0) & (rows <= 1)).all()) else "gaussian"


def standardization(
    rows: Tensor, shape: tuple[int, ...], likelihood: str
) -> tuple[str, Tensor | None, Tensor | None]:
    """The likelihood of rows (n, d), and their shift and scale (d,): None if Bernoulli."""
    rows = rows.double()
    likelihood = choose_likelihood(rows, likelihood)
    if likelihood == "bernoulli":
        require_unit_interval("X", rows, BERNOULLI)
        return likelihood, None, None
    # Columns of a table have their own units; pixels share one.
    is_table = len(shape) == 1
    some = rows if is_table else rows.reshape(-1, 1)
    deviation = some.std(0, correction=0)
    # Constant columns differ from their mean by rounding only.
    noise = 10 * torch.finfo(torch.float32).eps * some.abs().amax(0)
    scale = torch.where(deviation > noise, column_scales(rows) if is_table else deviation, 1.0)
    shift, scale = (x.expand(rows.shape[1]).clone() for x in (some.mean(0), scale))
    return likelihood, shift, scale
