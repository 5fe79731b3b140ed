"""Which latent dimensions two views share: the one thing in which the methods differ.

A new method is one class with one function: it says, from the divergence of the two views in every
dimension, which dimensions are shared, and what that costs.
"""

import math
from abc import ABC, abstractmethod
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from drpm.distributions.divergences import partition_kl
from drpm.distributions.orders import best_order_log_prob
from drpm.distributions.partitions import RandomPartition
from drpm.distributions.relaxed_partitions import RelaxedRandomPartition
from drpm.distributions.relaxed_sizes import RelaxedFisherHypergeometric
from drpm.distributions.size_tables import list_pair
from drpm.factors.config import FactorsConfig
from drpm.relaxation.reparameterization import straight_through
from drpm.relaxation.sorting import permuted, sort_descending
from drpm.training.errors import ConfigError
from drpm.training.program import Batch

# In nats: codes that differ by no more than rounding are nearer than this, and those of different
# images by far not.
_ROUNDING: Final = 1e-9


class AggregationInput(NamedTuple):
    """What a method may go by.

    Arguments:
        divergence: (B, l), between the two views' posteriors.
        batch: The pairs, with whatever is known of them.
        temperature: Of what is relaxed.
        generator: Where noise comes from.
        noise: Whether there is any; without it a random choice is the likeliest one.
    """

    divergence: Tensor
    batch: Batch
    temperature: Tensor
    generator: torch.Generator | None
    noise: bool


class Shared(NamedTuple):
    """What the views of every pair share.

    Arguments:
        mask: (B, l), one where a dimension is shared, else zero; it carries a gradient where the
            method learns it.
        terms: What is added to the loss, by name; a number for each pair, (B,).
    """

    mask: Tensor
    terms: dict[str, Tensor]


class Aggregation(nn.Module, ABC):
    """How a method finds the shared dimensions.

    Arguments:
        config: The settings.
    """

    def __init__(self, config: FactorsConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, given: AggregationInput) -> Shared:
        """Say what is shared."""


class LabelAggregation(Aggregation):
    """One factor is known to differ: the dimension of its number is independent, all others shared.

    References:
        Bouchacourt et al., "Multi-level variational autoencoder", 2018. Hosoya, "Group-based
        learning of disentangled representations with generalizability for novel contents", 2019.
    """

    def forward(self, given: AggregationInput) -> Shared:
        label, divergence = given.batch.get("label"), given.divergence
        if label is None:
            raise ConfigError(
                "method must be one that needs no labels for pairs without them, but got 'label'."
            )
        dimensions = torch.arange(divergence.shape[-1], device=divergence.device)
        return Shared((dimensions != label[:, None]).to(divergence.dtype), {})


class AdaptiveAggregation(Aggregation):
    """Shared is what differs less than the middle between the least and the most of a pair, and
    whatever does not differ at all: two views of one image have no range of divergences.

    References:
        Locatello et al., "Weakly-supervised disentanglement without compromises", 2020.
    """

    def forward(self, given: AggregationInput) -> Shared:
        known = given.divergence.detach()
        middle = 0.5 * (known.amin(-1, keepdim=True) + known.amax(-1, keepdim=True))
        mask = (known < middle) | (known <= _ROUNDING)
        return Shared(mask.to(known.dtype), {})


class _Weighed(Aggregation):
    """A method that learns how many dimensions are shared: one linear layer to two log-weights."""

    prior: Tensor

    def __init__(self, config: FactorsConfig) -> None:
        super().__init__(config)
        self.weights = nn.Linear(config.latent, 2)
        self.register_buffer("prior", torch.tensor(config.prior_log_weights))

    def size_divergence(self, log_weights: Tensor, costs: Tensor | float = 0.0) -> Tensor:
        """KL of the law of sizes from its prior, (B,).

        Arguments:
            log_weights: (B, 2).
            costs: (l + 1,), numbers that go with the sizes; their mean under the law is added.
        """
        # Two subsets have so few sizes that all of them are listed.
        log_probs, prior = (
            list_pair(self.config.latent, x.double()).log_masses.log_softmax(-1)
            for x in (log_weights, self.prior)
        )
        return (log_probs.exp() * (log_probs - prior + costs)).sum(-1).to(log_weights.dtype)

    def log_orders(self) -> Tensor:
        """(l + 1,): the logarithm of how many orders lead to the same partition, by the number of
        independent dimensions."""
        n = self.config.latent
        independent = torch.arange(n + 1, dtype=torch.float64, device=self.prior.device)
        return torch.lgamma(independent + 1) + torch.lgamma(n - independent + 1)


class HypergeometricAggregation(_Weighed):
    """How many are shared is random; which, the divergences say: the smallest.

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
        # Of the dimensions in descending order of their divergence, the independent ones first.
        _, order, ranks = sort_descending(divergence.detach())
        independent = sizes.survival[..., 0, :].to(divergence.dtype)
        count = torch.arange(divergence.shape[-1], device=divergence.device)
        hard = (count < sizes.hard[..., :1]).to(divergence.dtype)
        mask = 1 - permuted(straight_through(hard, independent), ranks, order)
        # The divergences settle which of all sets of that size is shared; a prior to which they are
        # alike pays the logarithm of their number.
        exact = self.config.objective == "exact"
        costs = math.lgamma(self.config.latent + 1) - self.log_orders() if exact else 0.0
        return Shared(mask, {"sizes": self.config.gamma * self.size_divergence(log_weights, costs)})


class PartitionAggregation(_Weighed):
    """A random partition: how many are shared, and which.

    Scores are the divergences, so that what differs most comes first: the first subset is the
    independent one, the second is shared.
    """

    def forward(self, given: AggregationInput) -> Shared:
        log_weights = self.weights(given.divergence)
        # The logarithm tells little from very little, where the order's term would hold codes back
        # that have only begun to say something.
        log_scores = (given.divergence + self.config.smallest_divergence).log()
        law = RelaxedRandomPartition(
            given.temperature, log_scores, log_weights, validate_args=False
        )
        partition = law.rsample(generator=given.generator) if given.noise else law.mode
        if self.config.objective == "exact":
            sizes, order = self._exact_terms(log_scores, log_weights, given.generator)
        else:
            sizes, order = self._bound_terms(log_scores, log_weights)
        terms = {"sizes": self.config.gamma * sizes, "order": self.config.delta * order}
        return Shared(partition[..., 1, :], terms)

    def _bound_terms(self, log_scores: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
        """The paper's bound on the divergence from the prior, whose scores are all equal.

        The paper draws sizes for its first part; two subsets have so few that we take the mean.
        """
        best = best_order_log_prob(log_scores) + math.lgamma(self.config.latent + 1)
        return self.size_divergence(log_weights, self.log_orders()), best

    def _exact_terms(
        self, log_scores: Tensor, log_weights: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        law = RandomPartition(log_scores, log_weights, validate_args=False)
        prior = RandomPartition(
            torch.zeros_like(log_scores), self.prior.expand_as(log_weights), validate_args=False
        )
        whole = partition_kl(law, prior, num_samples=self.config.draws, generator=generator)
        sizes = self.size_divergence(log_weights)
        return sizes, whole - sizes


AGGREGATIONS: dict[str, type[Aggregation]] = {
    "label": LabelAggregation,
    "ada": AdaptiveAggregation,
    "hg": HypergeometricAggregation,
    "drpm": PartitionAggregation,
}
