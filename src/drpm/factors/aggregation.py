"""Which latent dimensions two views share: the only difference between the methods.

A new method is one class with one function, from the divergence of the two views in every dimension
to the mask of shared dimensions and further loss terms.
"""

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from drpm.distributions.orders import best_order_log_prob
from drpm.distributions.partitions import RandomPartition, partition_kl
from drpm.distributions.relaxed import RelaxedFisherHypergeometric, RelaxedRandomPartition
from drpm.distributions.size_tables import list_pair
from drpm.factors.config import FactorsConfig
from drpm.relaxation.operators import permuted, sort_descending, straight_through
from drpm.training.program import Batch

# In nats: a divergence that is no more than rounding error.
_ROUNDING: Final = 1e-9


class AggregationInput(NamedTuple):
    """The input of a method."""

    divergence: Tensor  # (B, l), between the posteriors of the two views
    batch: Batch  # the pairs, and their labels if there are any
    temperature: Tensor  # of the relaxation
    generator: torch.Generator | None
    noise: bool  # whether to sample; if not, the mode is taken


class Shared(NamedTuple):
    """The shared dimensions of every pair."""

    mask: Tensor  # (B, l), 1 for a shared dimension, else 0; with gradients if it is learned
    terms: dict[str, Tensor]  # further loss terms, (B,) each


class Aggregation(nn.Module):
    """A method of finding the shared dimensions: from an input to what is shared."""

    def __init__(self, config: FactorsConfig) -> None:
        super().__init__()
        self.config = config


class LabelAggregation(Aggregation):
    """A label names a factor that differs: that dimension is independent, all others are shared.

    References:
        Bouchacourt et al., "Multi-level variational autoencoder", 2018. Hosoya, "Group-based
        learning of disentangled representations with generalizability for novel contents", 2019.
    """

    def forward(self, given: AggregationInput) -> Shared:
        label, divergence = given.batch["label"], given.divergence
        dimensions = torch.arange(divergence.shape[-1], device=divergence.device)
        return Shared((dimensions != label[:, None]).to(divergence.dtype), {})


class AdaptiveAggregation(Aggregation):
    """Shared dimensions differ less than the midpoint of the smallest and largest divergence of a
    pair, or not at all.

    References:
        Locatello et al., "Weakly-supervised disentanglement without compromises", 2020.
    """

    def forward(self, given: AggregationInput) -> Shared:
        divergence = given.divergence.detach()
        midpoint = 0.5 * (divergence.amin(-1, keepdim=True) + divergence.amax(-1, keepdim=True))
        mask = (divergence < midpoint) | (divergence <= _ROUNDING)
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
    """A random number of dimensions is shared, those of the smallest divergences.

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
    """A random partition, whose scores are the divergences.

    The dimensions that differ most come first: the first subset is independent, the second shared.
    """

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
        self, log_scores: Tensor, log_weights: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Divergences of sizes and order from the prior, whose scores are all equal, (B,) each.

        Their sum is the exact divergence of the partition or the paper's bound on it. The paper
        samples the sizes; here their expectation is exact.
        """
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
