"""The network that tasks share, and what it minimises."""

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

# The losses of so many tasks are told apart; those of more would be a page of curves.
_MOST_CURVES = 4


class Outputs(NamedTuple):
    """What a network makes of images.

    Arguments:
        logits: (T, B, classes).
        shared: What the tasks saw.
    """

    logits: Tensor
    shared: SharedFeatures


class MultitaskNetwork(nn.Module):
    """A shared encoder, a way to share its features, and a head for every task.

    In training mode channels and hidden neurons are dropped.

    Arguments:
        shape: Of an image: C, H and W.
        classes: How many each task has.
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

        Arguments:
            images: (B, C, H, W), bytes.
            temperature: Of the partition, where there is one.
            generator: Where the noise of dropout comes from.
        """
        pixels = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        features = self.encoder(pixels, generator)
        shared = self.method.share(SharingInput(pixels, features, temperature, generator))
        return Outputs(self.heads(shared.features, generator), shared)


class MultitaskObjective:
    """The tasks' cross-entropies, weighed, and what the method adds.

    Arguments:
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
            # Nobody differentiates these. Here the compiler learns it in time: it would fill their
            # gradients with zeros.
            told = losses.detach()
            terms = {f"loss_{task}": told[index] for index, task in enumerate(self.tasks)}
        loss = model.method.weigh(losses).sum()
        penalty = model.method.penalty(outputs.shared)
        if penalty is not None:
            loss, terms["penalty"] = loss + penalty, penalty.detach()
        return {"loss": loss, **terms}


def task_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of every task, (T,).

    Arguments:
        logits: (T, B, classes).
        targets: (B, T).
    """
    each = F.cross_entropy(logits.flatten(0, 1), targets.mT.flatten(), reduction="none")
    losses: Tensor = each.unflatten(0, logits.shape[:2]).mean(1)
    return losses
