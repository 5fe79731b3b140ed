"""The network that tasks share: training objective, predictions and scores."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drpm.multitask.config import MultitaskConfig
from drpm.multitask.methods import METHODS
from drpm.multitask.networks import TaskHeads, build_encoder
from drpm.multitask.tasks import as_bytes
from drpm.nn import TaskSplit, size_penalty
from drpm.training import config as configs
from drpm.training.checkpoint import load_model, load_modules, save_model
from drpm.training.devices import unseeded
from drpm.training.program import Batch

# Metrics that are logged for the test part.
ACCURACY: Final = "test_accuracy"
ACCURACIES: Final = "test_accuracies"
SIZES: Final = "test_sizes"

_BATCH_SIZE = 500  # in evaluation


class TaskScores(NamedTuple):
    """Scores on test images.

    Args:
        accuracies: (T,), of each task.
        sizes: (T,), the mean number of neurons of each task; None if all tasks have all neurons.
        shares: (T, n), the fraction of images for which a task has the largest share of a neuron.
            With a common subset, it comes last in both.
    """

    accuracies: Tensor
    sizes: Tensor | None = None
    shares: Tensor | None = None

    def record(self) -> dict[str, Any]:
        """The scores as a line of metrics."""
        found: dict[str, Any] = {
            ACCURACY: self.accuracies.mean().item(),
            ACCURACIES: self.accuracies.tolist(),
        }
        return found if self.sizes is None else {**found, SIZES: self.sizes.tolist()}


class MultitaskNetwork(nn.Module):
    """A shared encoder, a method of sharing its features, and a head for each task.

    Predictions and scores are for evaluation mode, at the last temperature of training. They take
    images (N, C, H, W), bytes or floats in [0, 1].

    Args:
        shape: Image shape (C, H, W).
        classes: Maps the name of each task to its number of classes.
        config: The settings.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, shape: tuple[int, ...], classes: Mapping[str, int], config: MultitaskConfig
    ) -> None:
        super().__init__()
        self.shape, self.classes, self.config = shape, dict(classes), config
        self.register_buffer("mean", torch.zeros(shape[0], 1, 1))
        self.register_buffer("std", torch.ones(shape[0], 1, 1))
        self.encoder = build_encoder(shape, config.network)
        self.method = METHODS[config.method](shape, len(classes), config)
        self.heads = TaskHeads([*classes.values()], config.network)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.classes)

    def forward(
        self, images: Tensor, temperature: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, TaskSplit]:
        """The logits of every task, (T, B, classes), and what each task sees.

        Args:
            images: (B, C, H, W), bytes.
            temperature: Temperature of the partition, if there is one.
            generator: Source of the noise of dropout.
        """
        pixels = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        features = self.encoder(pixels, generator)
        second = self.method.encoder
        context = None if second is None else second(pixels, generator)
        shared = self.method.share(features, context, temperature)
        return self.heads(shared.features, generator), shared

    @torch.no_grad()
    def evaluate(self, images: Tensor) -> Iterator[tuple[Tensor, TaskSplit]]:
        """The outputs for batches of images."""
        temperature = torch.tensor(self.config.temperature[1]).to(self.mean)
        for part in as_bytes("images", images, self.shape).split(_BATCH_SIZE):
            yield self(part.to(self.mean.device), temperature)

    def predict(self, images: Tensor) -> Tensor:
        """The class of every image for every task, (N, T)."""
        return torch.cat([logits.argmax(-1).T for logits, _ in self.evaluate(images)])

    def predict_proba(self, images: Tensor) -> dict[str, Tensor]:
        """The class probabilities (N, classes) of every task, by name."""
        found = torch.cat([logits.softmax(-1) for logits, _ in self.evaluate(images)], 1)
        named = zip(self.classes.items(), found, strict=True)
        return {task: each[:, :count] for (task, count), each in named}

    def sizes(self, images: Tensor) -> Tensor:
        """The number of neurons of each task for every image, (N, T), and then of the common ones
        if there are any, (N, T + 1)."""
        if self.config.method != "drpm":
            raise ValueError(
                f"sizes needs a network with the method 'drpm', but got "
                f"{self.config.method!r}, where all tasks use all neurons."
            )
        return torch.cat([shared.sizes for _, shared in self.evaluate(images)])

    def score(self, images: Tensor, targets: Tensor) -> TaskScores:
        """Accuracies and neurons of the tasks, for target classes (N, T)."""
        sums: dict[str, Tensor] = {}
        parts = targets.to(self.mean.device).split(_BATCH_SIZE)
        for (logits, shared), part in zip(self.evaluate(images), parts, strict=True):
            counts = {"accuracies": logits.argmax(-1).mT == part}
            if self.config.method == "drpm":
                masks, common = shared.masks, shared.common
                rows = masks if common is None else torch.cat([masks - common, common[None]])
                subsets = torch.arange(len(rows), device=rows.device)[:, None]
                owned = rows.argmax(0)[:, None] == subsets
                counts |= {"sizes": shared.sizes, "shares": owned}
            for name, values in counts.items():
                sums[name] = sums.get(name, 0) + values.double().sum(0)
        return TaskScores(**{name: x.cpu() / len(images) for name, x in sums.items()})

    def save(self, folder: Path | str) -> None:
        """Save to a folder, as safetensors and JSON."""
        description = {
            "kind": "multitask",
            "config": configs.dumps(self.config),
            "shape": list(self.shape),
            "tasks": list(self.tasks),
            "classes": list(self.classes.values()),
        }
        save_model(Path(folder), self.state_dict(), description)


def load_multitask(folder: Path | str, device: torch.device | str = "cpu") -> MultitaskNetwork:
    """Load a network saved by :meth:`MultitaskNetwork.save`, without pickle."""
    tensors, description = load_model(folder, "multitask")
    classes = dict(zip(description["tasks"], description["classes"], strict=True))
    config = configs.loads(MultitaskConfig, description["config"])
    with unseeded():
        network = MultitaskNetwork(tuple(description["shape"]), classes, config)
    load_modules(folder, tensors, {"": network})
    return network.eval().to(device)


def multitask_objective(
    model: MultitaskNetwork,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """The weighted cross-entropies of the tasks, and the penalty of the method."""
    logits, shared = model(batch["images"], schedule["temperature"], generator)
    targets = batch["targets"].mT.flatten()
    each = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    losses = each.unflatten(0, logits.shape[:2]).mean(1)  # of every task
    terms = {}
    if len(model.tasks) <= 4:  # more curves would fill the page
        terms = {f"loss_{task}": x for task, x in zip(model.tasks, losses.detach(), strict=True)}
    loss = model.method.weigh(losses).sum()
    if weight := model.method.size_penalty:
        penalty = weight * size_penalty(shared.sizes).mean()
        loss, terms["penalty"] = loss + penalty, penalty.detach()
    return {"loss": loss, **terms}
