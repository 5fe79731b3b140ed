"""The network that tasks share, and its objective."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.multitask.config import MultitaskConfig
from drpm.multitask.methods import METHODS, SharedFeatures, SharingInput
from drpm.multitask.networks import TaskHeads, build_encoder
from drpm.training.program import Batch

Terms = dict[str, Tensor]

# The losses of at most so many tasks are logged one by one.
_MOST_CURVES = 4


class Outputs(NamedTuple):
    """The outputs of a network.

    Args:
        logits: (T, B, classes).
        shared: The features of each task.
    """

    logits: Tensor
    shared: SharedFeatures


class MultitaskNetwork(nn.Module):
    """A shared encoder, a method of sharing its features, and a head for each task.

    Args:
        shape: Of an image: C, H and W.
        classes: Number of classes of each task.
        config: The settings.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, shape: tuple[int, int, int], classes: Sequence[int], config: MultitaskConfig
    ) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean", torch.zeros(shape[0], 1, 1))
        self.register_buffer("std", torch.ones(shape[0], 1, 1))
        self.encoder = build_encoder(shape, config.network)
        self.method = METHODS[config.method](shape, len(classes), config)
        self.heads = TaskHeads(classes, config.network)

    def forward(
        self, images: Tensor, temperature: Tensor, generator: torch.Generator | None = None
    ) -> Outputs:
        """Logits of every task.

        Args:
            images: (B, C, H, W), bytes.
            temperature: Of the partition, if there is one.
            generator: Source of the noise of dropout.
        """
        pixels = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        features = self.encoder(pixels, generator)
        shared = self.method.share(SharingInput(pixels, features, temperature, generator))
        return Outputs(self.heads(shared.features, generator), shared)


class MultitaskObjective:
    """The weighted cross-entropies of the tasks, and the penalty of the method.

    Args:
        tasks: Their names.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks = tuple(tasks)

    def __call__(
        self,
        model: MultitaskNetwork,
        batch: Batch,
        schedule: Mapping[str, Tensor],
        generator: torch.Generator | None,
    ) -> Terms:
        outputs = model(batch["images"], schedule["temperature"], generator)
        losses = task_losses(outputs.logits, batch["targets"])
        terms = {}
        if len(self.tasks) <= _MOST_CURVES:
            each = losses.detach()
            terms = {f"loss_{task}": each[index] for index, task in enumerate(self.tasks)}
        loss = model.method.weigh(losses).sum()
        penalty = model.method.penalty(outputs.shared)
        if penalty is not None:
            loss, terms["penalty"] = loss + penalty, penalty.detach()
        return {"loss": loss, **terms}


def task_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of every task, (T,).

    Args:
        logits: (T, B, classes).
        targets: (B, T).
    """
    each = F.cross_entropy(logits.flatten(0, 1), targets.mT.flatten(), reduction="none")
    losses: Tensor = each.unflatten(0, logits.shape[:2]).mean(1)
    return losses
