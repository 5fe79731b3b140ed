"""Pretraining: codes that keep what clusters need.

Twin-contrastive learning tells instances apart across two views, and clusters likewise, as columns
of the batch's assignment; reconstruction prepares the decoder.

References:
    Li et al., "Twin contrastive learning for online clustering", 2022.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.clustering.config import PretrainingConfig
from drpm.clustering.networks import Autoencoder
from drpm.clustering.views import View
from drpm.training.program import Batch


def projector(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))


class Pretrained(nn.Module):
    """An autoencoder with the two projectors of contrastive learning.

    Arguments:
        autoencoder: What is pretrained.
        clusters: How many columns the cluster head has.
    """

    def __init__(self, autoencoder: Autoencoder, clusters: int) -> None:
        super().__init__()
        self.autoencoder = autoencoder
        width = autoencoder.mean.in_features
        self.instances = projector(width, autoencoder.mean.out_features)
        self.clusters = projector(width, clusters)

    def idle_parts(self, kind: str) -> list[nn.Module]:
        """What a kind of pretraining makes no use of."""
        projectors = [self.instances, self.clusters] if kind == "reconstruction" else []
        return [self.autoencoder.log_variance, *projectors]

    def chances(self, rows: Tensor) -> Tensor:
        """What the cluster head says by itself, (..., K)."""
        scores: Tensor = self.clusters(self.autoencoder.encoder(rows))
        return scores.softmax(-1)


def contrast(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """How badly rows are told apart: each should be most like its own other view."""
    both = F.normalize(torch.cat([first, second]), dim=-1)
    count = len(first)
    alike = both @ both.mT / temperature
    itself = torch.eye(2 * count, dtype=torch.bool, device=both.device)
    partner = torch.arange(2 * count, device=both.device).roll(count)
    return F.cross_entropy(alike.masked_fill(itself, -torch.inf), partner)


def imbalance(chances: Tensor) -> Tensor:
    """How far the mean assignment of a batch is from using all clusters alike."""
    mean = chances.mean(0)
    return math.log(chances.shape[-1]) + (mean * mean.clamp_min(1e-12).log()).sum()


def reconstruction(autoencoder: Autoencoder, features: Tensor, rows: Tensor) -> Tensor:
    """Mean squared error of every row."""
    return (autoencoder.decode(autoencoder.mean(features)) - rows).square().mean(-1)


class ContrastiveObjective:
    """Instances, clusters and reconstruction over an image and its second view.

    Arguments:
        config: The settings.
        view: Makes the second view.
        shape: The shape of an input, which rows are the flattened form of.
    """

    def __init__(self, config: PretrainingConfig, view: View, shape: torch.Size) -> None:
        self.config, self.view, self.shape = config, view, shape

    def __call__(
        self,
        model: Pretrained,
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
        terms = {
            "instances": contrast(one, other, self.config.instance_temperature),
            "clusters": contrast(left.mT, right.mT, self.config.cluster_temperature),
            "imbalance": imbalance(left) + imbalance(right),
            "reconstruction": reconstruction(model.autoencoder, features, rows).sum() / 2,
        }
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}


def reconstruction_objective(
    model: Pretrained,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """The ablation: nothing but the mean squared error."""
    features = model.autoencoder.encoder(batch["rows"])
    return {"loss": reconstruction(model.autoencoder, features, batch["rows"]).mean()}
