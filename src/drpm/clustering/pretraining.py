"""Pretraining by twin-contrastive learning and reconstruction.

References:
    Li et al., "Twin contrastive learning for online clustering", 2022.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.clustering.config import PretrainingConfig
from drpm.clustering.models import Autoencoder
from drpm.clustering.views import View
from drpm.training.program import Batch


def projector(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))


class ContrastiveModel(nn.Module):
    """An autoencoder with the instance head and the cluster head of contrastive learning.

    Args:
        autoencoder: The networks to pretrain.
        clusters: The number of clusters of the cluster head.
    """

    def __init__(self, autoencoder: Autoencoder, clusters: int) -> None:
        super().__init__()
        self.autoencoder = autoencoder
        width = autoencoder.mean.in_features
        self.instances = projector(width, autoencoder.mean.out_features)
        self.clusters = projector(width, clusters)

    def untrained_modules(self, kind: str) -> list[nn.Module]:
        """The modules without a gradient in a kind of pretraining."""
        heads = [self.instances, self.clusters] if kind == "reconstruction" else []
        return [self.autoencoder.log_variance, *heads]

    def predict_proba(self, rows: Tensor) -> Tensor:
        """The cluster probabilities of the cluster head, (..., K)."""
        logits: Tensor = self.clusters(self.autoencoder.encoder(rows))
        return logits.softmax(-1)


def contrastive_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """The cross-entropy of identifying the other view of each row among all rows."""
    both = F.normalize(torch.cat([first, second]), dim=-1)
    count = len(first)
    similarity = both @ both.mT / temperature
    itself = torch.eye(2 * count, dtype=torch.bool, device=both.device)
    partner = torch.arange(2 * count, device=both.device).roll(count)
    return F.cross_entropy(similarity.masked_fill(itself, -torch.inf), partner)


def imbalance(probs: Tensor) -> Tensor:
    """The KL divergence of a batch's mean assignment (n, K) from the uniform distribution."""
    mean = probs.mean(0)
    return math.log(probs.shape[-1]) + (mean * mean.clamp_min(1e-12).log()).sum()


def reconstruction_error(autoencoder: Autoencoder, features: Tensor, rows: Tensor) -> Tensor:
    """The mean squared error of every row."""
    return (autoencoder.decode(autoencoder.mean(features)) - rows).square().mean(-1)


class ContrastiveObjective:
    """Contrastive losses between instances and between clusters, with reconstruction.

    Args:
        config: The hyperparameters.
        view: Makes the second view of a batch.
        shape: The shape of an input; rows are flattened inputs.
    """

    def __init__(self, config: PretrainingConfig, view: View, shape: torch.Size) -> None:
        self.config, self.view, self.shape = config, view, shape

    def __call__(
        self,
        model: ContrastiveModel,
        batch: Batch,
        schedule: Mapping[str, Tensor],
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        first = batch["rows"]
        second = self.view(first.unflatten(-1, self.shape), generator).flatten(1)
        # Both views in one pass.
        rows = torch.cat([first, second])
        features = model.autoencoder.encoder(rows)
        one, other = model.instances(features).chunk(2)
        left, right = model.clusters(features).softmax(-1).chunk(2)
        errors = reconstruction_error(model.autoencoder, features, rows)
        terms = {
            "instances": contrastive_loss(one, other, self.config.instance_temperature),
            "clusters": contrastive_loss(left.mT, right.mT, self.config.cluster_temperature),
            "imbalance": imbalance(left) + imbalance(right),
            "reconstruction": errors.sum() / 2,
        }
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}


def reconstruction_objective(
    model: ContrastiveModel,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """The mean squared error only: an ablation."""
    features = model.autoencoder.encoder(batch["rows"])
    return {"loss": reconstruction_error(model.autoencoder, features, batch["rows"]).mean()}
