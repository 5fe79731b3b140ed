"""A law over the partitions of a batch, and how it is taught the right one."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from drpm.distributions.relaxed_partitions import RelaxedRandomPartition
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.networks import ClassNetwork
from drpm.training.program import Batch

Terms = dict[str, Tensor]

# A class that nobody has and one that everybody has have infinite weights.
_SMALLEST_SHARE = 1e-6
# Elements may be at no rank at all: the columns of a relaxed sort need not sum to one.
_SMALLEST_MASS = 1e-6


class Partitioner(nn.Module):
    r"""From a batch of n rows to the law of its partition into K subsets, one for each class.

    The paper takes scores and weights from its clustering, where they have no gradient: the scores
    fall with the index of the nearest cluster, which is an argmin, and the weights are mean
    responsibilities. Here the argmin is relaxed too. A network has logits for the classes of a row,
    :math:`p_i` is their softmax at a temperature, and

    .. math:: \log s_i = u \Big(K - \sum_k k\, p_{ik}\Big), \quad
        \omega_k = \frac{\bar p_k}{1 - \bar p_k}, \quad \bar p_k = \frac1n \sum_i p_{ik}

    so that a row which is surely of one class has the paper's score, and all have gradients.
    Weights are odds, because then the mean size of a subset is the expected number
    :math:`n \bar p_k` of its members, up to a small error; with :math:`\omega = \bar p` sizes
    would be more alike.

    Arguments:
        columns: The length of a row.
        classes: K.
        config: The settings.
        size_weight: The weight of the size term. It is the model's, so that models which differ in
            it can be trained together.
    """

    size_weight: Tensor

    def __init__(
        self, columns: int, classes: int, config: SupervisedConfig, size_weight: float = 0.0
    ) -> None:
        super().__init__()
        self.config, self.classes = config, classes
        self.network = ClassNetwork(columns, config.hidden, classes)
        self.register_buffer("size_weight", torch.tensor(size_weight))

    def parameters_of(self, rows: Tensor, temperature: Tensor | float) -> tuple[Tensor, Tensor]:
        """Log-scores (n,) and log-weights (K,) of the partition of a batch (n, d)."""
        chances = (self.network(rows) / temperature).softmax(-1)
        index = torch.arange(self.classes, dtype=chances.dtype, device=chances.device)
        log_scores = self.config.scale * (self.classes - (chances * index).sum(-1))
        shares = chances.mean(-2).clamp(_SMALLEST_SHARE, 1 - _SMALLEST_SHARE)
        return log_scores, torch.logit(shares)

    def relaxed_law(self, rows: Tensor, temperature: Tensor) -> RelaxedRandomPartition:
        """For training: whole sizes with straight-through gradients, and a soft order."""
        parameters = self.parameters_of(rows, temperature)
        return RelaxedRandomPartition(temperature, *parameters, hard="sizes", validate_args=False)

    def law(self, rows: Tensor) -> RelaxedRandomPartition:
        """For prediction: partitions that are partitions."""
        parameters = self.parameters_of(rows, self.config.prediction_temperature)
        final = self.config.temperature[1]
        return RelaxedRandomPartition(final, *parameters, hard=True, validate_args=False)


class SupervisedObjective:
    """The paper's two terms: the cross-entropy of the partition, and the squared error of sizes.

    The partition is the relaxed one without noise.

    Arguments:
        config: The settings.
    """

    def __init__(self, config: SupervisedConfig) -> None:
        self.config = config

    def __call__(
        self,
        model: Partitioner,
        batch: Batch,
        schedule: Mapping[str, Tensor],
        generator: torch.Generator | None,
    ) -> Terms:
        law = model.relaxed_law(batch["rows"], schedule["temperature"])
        parts = law.rsample_parts(noise="none")
        subsets = torch.arange(model.classes, device=batch["labels"].device)
        truth = (subsets[:, None] == batch["labels"]).to(parts.Y.dtype)
        terms = {
            "assignment": cross_entropy(parts.Y, truth, self.config.smoothing),
            "sizes": model.size_weight * (parts.sizes - truth.sum(-1)).square().mean(),
        }
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}


def cross_entropy(partition: Tensor, truth: Tensor, smoothing: float) -> Tensor:
    """Of a soft partition (K, n) and the true one, as a mean over elements.

    Arguments:
        partition: Its columns are divided by their sums, which a relaxed sort leaves near one.
        truth: Columns are one-hot.
        smoothing: The part of every column that is even over all subsets.
    """
    mass = partition.sum(-2).clamp_min(_SMALLEST_MASS)
    chance = (partition * truth).sum(-2) / mass
    return -((1 - smoothing) * chance + smoothing / partition.shape[-2]).log().mean(-1)
