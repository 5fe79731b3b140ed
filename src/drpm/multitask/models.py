"""Images with several tasks, and their shared network: objective, predictions, scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drpm.data.types import Dataset, Split
from drpm.distributions.validation import describe
from drpm.multitask.config import MultitaskConfig
from drpm.multitask.networks import METHODS, TaskHeads, build_encoder
from drpm.nn import TaskSplit, size_penalty
from drpm.training import config as configs
from drpm.training.checkpoint import described, load_model, load_modules, save_model
from drpm.training.config import require_classes, require_unit_interval
from drpm.training.devices import seeded
from drpm.training.errors import ConfigError
from drpm.training.program import Batch

_BATCH_SIZE = 500  # in evaluation
COMMON = "common"
"""The name of the subset of neurons that all tasks see."""

_ROUNDING = 1e-5  # of pixels outside [0, 1]


@dataclass(frozen=True)
class TaskData:
    """Training and test images of several tasks.

    Args:
        name: Name of the data set.
        images: (N, C, H, W), bytes.
        targets: (N, T), classes.
        test_images: The same for the test split.
        test_targets: Likewise.
        classes: Maps the name of each task to its number of classes.
        mean: (C, 1, 1), mean of the pixels in [0, 1].
        std: (C, 1, 1), their standard deviation.
        noise_ratios: (T,), the noise ratio of each task, if known.
        content_hash: Content hash of your own data; empty for a named data set.
    """

    name: str
    images: Tensor
    targets: Tensor
    test_images: Tensor
    test_targets: Tensor
    classes: Mapping[str, int]
    mean: Tensor
    std: Tensor
    noise_ratios: tuple[float, ...] = ()
    content_hash: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.classes)

    def labels(self, *, common: bool = False) -> dict[int, str]:
        """Maps task indices to display names, by noise ratio; the common subset comes first."""
        first = {len(self.tasks): COMMON} if common else {}
        if not self.noise_ratios:
            return first | dict(enumerate(self.tasks))
        noisy = sorted(enumerate(self.noise_ratios), key=lambda each: each[1])
        return first | {index: f"{self.tasks[index]} ({ratio:.2f})" for index, ratio in noisy}


def read_tasks(
    data: Dataset, *, train_examples: int | None = None, test_examples: int | None = None
) -> TaskData:
    """The tasks of a data set of images: one for each target that has classes.

    Pixels are normalized by the constants of the data set, or else by the mean and standard
    deviation of each channel of the training split.

    Args:
        data: The data set. Its inputs are bytes, or floats in [0, 1] before normalization; its
            targets are classes from 0 on.
        train_examples: Number of training examples, the first ones; None for all.
        test_examples: The same for the test split.
    """
    shape = tuple(data.input_shape)
    if len(shape) != 3:
        raise ConfigError(
            f"data must contain images for several tasks, but {data.name} has inputs of shape "
            f"{shape}."
        )
    if not data.classes:
        raise ConfigError(f"data must have targets with classes, but {data.name} has none.")
    mean, std = (
        data.preprocessing.get(name, torch.tensor(default, device=data.train.inputs.device))
        .reshape(-1, 1, 1)
        .expand(shape[0], 1, 1)
        for name, default in (("mean", 0.0), ("std", 1.0))
    )
    images, targets = _read(data, "train", train_examples, mean, std)
    test = _read(data, "test", test_examples, mean, std)
    if "mean" not in data.preprocessing:
        mean, std = _moments(images)
    classes = {task: len(names) for task, names in data.classes.items()}
    ratios = data.preprocessing.get("noise_ratios")
    noise = () if ratios is None else tuple(ratios.tolist())
    return TaskData(data.name, images, targets, *test, classes, mean.clone(), std.clone(), noise)


def _read(
    data: Dataset, part: str, examples: int | None, mean: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """The first images of a split, before normalization, and their classes (N, T)."""
    split: Split = getattr(data, part)
    name = f"{part}.inputs before normalization"
    images = [
        as_bytes(name, x * std + mean if x.is_floating_point() else x, data.input_shape)
        for x in split.inputs[:examples].split(10_000)  # to save memory
    ]
    columns = []
    for task, names in data.classes.items():
        column = split.targets[task][:examples]
        require_classes(f"{part}.targets[{task!r}]", column, len(column), len(names))
        columns.append(column.long())
    return torch.cat(images), torch.stack(columns, -1)


def as_bytes(name: str, images: Any, shape: Sequence[int]) -> Tensor:
    """Convert images (N, C, H, W), bytes or floats in [0, 1], to bytes; raise for others."""
    if (
        not isinstance(images, Tensor)
        or not (images.dtype == torch.uint8 or images.is_floating_point())
        or images.shape[1:] != tuple(shape)
        or len(images) == 0
    ):
        raise ConfigError(
            f"{name} must be bytes, or floats in [0, 1], of shape "
            f"(N, {', '.join(map(str, shape))}), but got {describe(images)}."
        )
    if images.dtype == torch.uint8:
        return images
    require_unit_interval(name, images, tolerance=_ROUNDING)
    return (255 * images).round_().clamp_(0, 255).to(torch.uint8)


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the pixels of each channel, in [0, 1], from bytes."""
    counts = torch.stack([x.flatten().bincount(minlength=256) for x in images.unbind(1)]).double()
    probs = counts / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64, device=images.device) / 255
    mean = (probs * values).sum(1, keepdim=True)
    std = (probs * (values - mean).square()).sum(1, keepdim=True).sqrt()
    # Constant channels are not scaled.
    std = torch.where(std > 1e-6, std, torch.ones_like(std))
    return mean.float()[..., None], std.float()[..., None]


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
        mean, each = self.accuracies.mean().item(), self.accuracies.tolist()
        sizes = {} if self.sizes is None else {"test_sizes": self.sizes.tolist()}
        return {"test_accuracy": mean, "test_accuracies": each, **sizes}


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
        self, images: Tensor, temperature: Tensor, generator: Generator | None = None
    ) -> tuple[Tensor, TaskSplit]:
        """The logits (T, B, classes) and the task split, from byte images (B, C, H, W)."""
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
        """The number of neurons of each task for every image, (N, T); common ones last, if any."""
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
        config, shape = configs.dumps(self.config), list(self.shape)
        tasks = {"tasks": list(self.tasks), "classes": list(self.classes.values())}
        description = {"kind": "multitask", "config": config, "shape": shape, **tasks}
        save_model(Path(folder), self.state_dict(), description)


def load_multitask(folder: Path | str, device: torch.device | str = "cpu") -> MultitaskNetwork:
    """Load a network saved by :meth:`MultitaskNetwork.save`, without pickle."""
    tensors, description = load_model(folder, "multitask")
    with described(folder), seeded(0):
        classes = dict(zip(description["tasks"], description["classes"], strict=True))
        config = configs.loads(MultitaskConfig, description["config"])
        network = MultitaskNetwork(tuple(description["shape"]), classes, config)
    load_modules(folder, tensors, {"": network})
    return network.eval().to(device)


def multitask_objective(
    model: MultitaskNetwork,
    batch: Batch,
    schedule: Mapping[str, Tensor],
    generator: Generator | None,
) -> dict[str, Tensor]:
    """The weighted cross-entropies of the tasks, and the penalty of the method."""
    logits, shared = model(batch["images"], schedule["temperature"], generator)
    targets = batch["targets"].mT.flatten()
    each = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    losses = each.unflatten(0, logits.shape[:2]).mean(1)  # of every task
    terms = {}
    if len(model.tasks) <= 4:  # limits the number of curves
        terms = {f"loss_{task}": x for task, x in zip(model.tasks, losses.detach(), strict=True)}
    loss = model.method.weigh(losses).sum()
    if weight := model.method.size_penalty:
        penalty = weight * size_penalty(shared.sizes).mean()
        loss, terms["penalty"] = loss + penalty, penalty.detach()
    return {"loss": loss, **terms}
