"""A network that partitions a batch into classes: distribution, objective, training, scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Generator, Tensor, nn

from drpm.data.types import fingerprint_tensors, scale_shapes, scaled_rows
from drpm.distributions.relaxed import RelaxedRandomPartition
from drpm.nn.encoders import dense_layers
from drpm.supervised.config import SupervisedConfig
from drpm.training import config as configs
from drpm.training.checkpoint import described, load_model, load_modules, save_model
from drpm.training.config import require_classes
from drpm.training.devices import seeded
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory, fit_model
from drpm.training.program import Batch

Data = Tensor | NDArray[Any]

# Test batches and held-out examples are the same for every model and seed.
_BATCHES_SEED = 1_000_000
_SPLIT_SEED = 2_000_000


class PartitionScores(NamedTuple):
    """Agreement of partitions of batches with the true ones."""

    f1: float  # macro, over all batches
    accuracy: float  # the fraction of elements in the correct subset
    size_error: float  # the mean absolute error of predicted sizes, over classes and batches


def partition_scores(labels: Tensor, found: Tensor, classes: int, batch: Tensor) -> PartitionScores:
    """Scores of the predicted subsets (N,) of labeled elements, given the batch of each."""
    gaps = batch_sizes(batch, found, classes) - batch_sizes(batch, labels, classes)
    return PartitionScores(
        # A class without members that is never predicted has the score 0.
        float(f1_score(labels, found, labels=range(classes), average="macro", zero_division=0)),
        float((labels == found).double().mean()),
        float(gaps.abs().double().mean()),
    )


def batch_sizes(batch: Tensor, subsets: Tensor, classes: int) -> Tensor:
    """(B, K): the sizes of the subsets of every batch."""
    batches = int(batch.max()) + 1
    places = batch.long() * classes + subsets.long()
    return torch.bincount(places, minlength=batches * classes).reshape(batches, classes)


class PredictedPartition(NamedTuple):
    """The partition of a batch."""

    subsets: Tensor  # (n,), the subset of every element
    sizes: Tensor  # (K,), the size of every subset


class EvaluatedBatches(NamedTuple):
    """Predicted partitions of labeled elements."""

    scores: PartitionScores
    order: Tensor  # (N,), the indices of the elements, batch after batch
    batch: Tensor  # (N,), their batches, in that order
    subsets: Tensor  # (N,), their subsets, in that order


class Partitioner(nn.Module):
    r"""Maps a batch of n rows to the distribution of its partition into K classes.

    In the paper's clustering, scores and weights have no gradient: scores decrease with the index
    of the nearest cluster, an argmin, and weights are mean responsibilities. Here the argmin is
    relaxed too. With :math:`p_i` the softmax of a row's logits at a temperature,

    .. math:: \log s_i = u \Bigl(K - \sum_k k\, p_{ik}\Bigr), \quad
        \omega_k = \frac{\bar p_k}{1 - \bar p_k}, \quad \bar p_k = \frac1n \sum_i p_{ik}

    If the class of a row is certain, its score is that of the paper. With odds as weights, the mean
    size of a subset is about the expected number :math:`n \bar p_k` of its members; with
    :math:`\omega = \bar p` the sizes would be more similar.

    Args:
        shape: The shape of an element; a row is a flattened element.
        classes: K.
        config: The hyperparameters.

    Attributes:
        shift: (d,) on the CPU, subtracted from elements before prediction; None by default.
        scale: (d,) on the CPU, the divisor after that.
    """

    def __init__(self, shape: Sequence[int], classes: int, config: SupervisedConfig) -> None:
        super().__init__()
        self.shape, self.classes, self.config = tuple(shape), classes, config
        self.shift: Tensor | None = None
        self.scale: Tensor | None = None
        widths = [math.prod(shape), *config.hidden]
        self.network = nn.Sequential(*dense_layers(widths), nn.Linear(widths[-1], classes))

    def law(
        self, rows: Tensor, temperature: Tensor | float, hard: bool | str = True
    ) -> RelaxedRandomPartition:
        """The distribution of the partition of a batch (n, d); training uses hard ``"sizes"``."""
        probs = (self.network(rows) / temperature).softmax(-1)
        index = torch.arange(self.classes, dtype=probs.dtype, device=probs.device)
        log_scores = self.config.scale * (self.classes - (probs * index).sum(-1))
        # Clamped, because empty and full classes would have infinite weights.
        shares = probs.mean(-2).clamp(1e-6, 1 - 1e-6)
        return RelaxedRandomPartition(
            temperature, log_scores, torch.logit(shares), hard=hard, validate_args=False
        )

    @torch.no_grad()
    def partition(self, elements: Data) -> PredictedPartition:
        """Partition a batch: the most likely sizes, filled in the most likely order.

        Args:
            elements: ``(n, *shape)`` or flattened: unscaled rows of a table, or images as returned
                by :func:`drpm.data.load`. Predictions depend on the whole batch.
        """
        rows = scaled_rows("elements", elements, self.shape, self.shift, self.scale)
        if len(self.shape) > 1 and not as_tensor(elements).is_floating_point():
            raise ValueError(
                "elements must be images with values in [0, 1], as drpm.data.load returns them, "
                "but got integers."
            )
        if len(rows) == 0:
            raise ValueError("elements must not be empty.")
        if not rows.isfinite().all():
            raise ValueError("elements must be finite numbers, but some are missing or infinite.")
        rows = rows.to(next(self.parameters()))
        law = self.law(rows, self.config.prediction_temperature)
        parts = law.rsample_parts(noise="none")
        return PredictedPartition(parts.Y.argmax(-2), parts.sizes.round().long())

    def evaluate(self, elements: Data, labels: Data) -> EvaluatedBatches:
        """Partition labeled elements in shuffled batches of nearly equal size, and score them.

        Args:
            elements: ``(N, *shape)``, as in :meth:`partition`.
            labels: (N,), the class of each.
        """
        elements, labels = as_tensor(elements), as_tensor(labels)
        require_classes("labels", labels, len(elements), self.classes)
        generator = torch.Generator().manual_seed(_BATCHES_SEED)
        order = torch.randperm(len(elements), generator=generator)
        size = self.config.training.batch_size
        batches = order.tensor_split(max(1, round(len(elements) / size)))
        found = [self.partition(elements[rows.to(elements.device)]).subsets for rows in batches]
        subsets = torch.cat(found).cpu()
        batch = torch.cat([torch.full_like(rows, index) for index, rows in enumerate(batches)])
        scores = partition_scores(labels.cpu()[order], subsets, self.classes, batch)
        return EvaluatedBatches(scores, order, batch, subsets)

    def save(self, folder: Path | str) -> None:
        """Save to a folder, as safetensors and JSON."""
        tensors = dict(self.state_dict())
        if self.shift is not None and self.scale is not None:
            tensors |= {"shift": self.shift, "scale": self.scale}
        config, shape = configs.dumps(self.config), list(self.shape)
        facts = {"config": config, "shape": shape, "classes": self.classes}
        save_model(Path(folder), tensors, {"kind": "supervised", **facts})


@dataclass(frozen=True)
class SupervisedObjective:
    """The paper's two terms, without noise: the cross-entropy, and the squared error of sizes."""

    size_weight: float

    def __call__(
        self,
        model: Partitioner,
        batch: Batch,
        schedule: Mapping[str, Tensor],
        generator: Generator | None,
    ) -> dict[str, Tensor]:
        law = model.law(batch["rows"], schedule["temperature"], "sizes")
        parts = law.rsample_parts(noise="none")
        subsets = torch.arange(model.classes, device=batch["labels"].device)
        truth = (subsets[:, None] == batch["labels"]).to(parts.Y.dtype)
        # Columns of a relaxed sort need not sum to one and may even be zero.
        probs = (parts.Y * truth).sum(-2) / parts.Y.sum(-2).clamp_min(1e-6)
        smoothing = model.config.smoothing
        assignment = -((1 - smoothing) * probs + smoothing / model.classes).log().mean(-1)
        sizes = self.size_weight * (parts.sizes - truth.sum(-1)).square().mean()
        return {"loss": assignment + sizes, "assignment": assignment, "sizes": sizes}


def load_partitioner(folder: Path | str, device: torch.device | str = "cpu") -> Partitioner:
    """Load a model saved by :meth:`Partitioner.save`, without pickle."""
    tensors, description = load_model(folder, "supervised")
    with described(folder), seeded(0):
        config = configs.loads(SupervisedConfig, description["config"])
        model = Partitioner(description["shape"], description["classes"], config)
    load_modules(folder, tensors, {"": model}, scale_shapes(tensors, math.prod(model.shape)))
    model.shift, model.scale = tensors.get("shift"), tensors.get("scale")
    return model.to(device)


class TrainedPartitioner(NamedTuple):
    """A trained model, and the choice of the weight of its size term."""

    model: Partitioner  # with the best weight
    folder: Path  # of its training
    size_weight: float
    held_out: int  # the number of examples on which candidates were compared
    f1: dict[float, float]  # of every candidate on them; empty for a single candidate


def fit_partitioner(
    elements: Data,
    labels: Data,
    classes: int,
    config: SupervisedConfig,
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> TrainedPartitioner:
    """Train a model for every candidate weight of the size term, and keep the best.

    Interrupted runs are resumed. The folder must not belong to other data or settings.

    Args:
        elements: Training set of shape ``(N, *shape)``.
        labels: Classes from 0 to K - 1, of shape (N,).
        classes: K.
        config: The hyperparameters.
        folder: Folder for checkpoints and models.
        device: Where to train.
        progress: Maps the name of a stage to its progress bar.
    """
    elements, labels = as_tensor(elements), as_tensor(labels)
    check_labels(elements, labels, classes)
    training, held_out = (part.to(elements.device) for part in split(len(elements), config))
    rows = elements.flatten(1).float()
    data = {"rows": rows[training], "labels": labels[training]}
    digest = cache(lambda: fingerprint_tensors([("rows", rows), ("labels", labels.long())]))
    models, f1 = {}, {}
    for weight in config.size_weights:
        with seeded(config.training.seed):  # the same for all candidates
            model = Partitioner(elements.shape[1:], classes, config).to(device)
        run = fit_model(
            model,
            SupervisedObjective(weight),
            config,
            folder,
            data,
            fingerprint=digest,
            device=device,
            stage=f"training/weight-{weight}",
            progress=progress,
        )
        models[weight] = model, run.path
        if len(config.size_weights) > 1:
            f1[weight] = model.evaluate(elements[held_out], labels[held_out]).scores.f1
    best = max(f1, key=lambda weight: f1[weight]) if f1 else config.size_weights[0]
    return TrainedPartitioner(*models[best], best, len(held_out), f1)


def split(count: int, config: SupervisedConfig) -> tuple[Tensor, Tensor]:
    """Indices of the examples to train on, and of those held out to compare candidates."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held = 0 if len(config.size_weights) == 1 else max(1, round(config.held_out * count))
    if held >= count:
        raise ConfigError(f"held_out must leave examples to train on, but {count} are too few.")
    return order[held:], order[:held]


def check_labels(elements: Tensor, labels: Tensor, classes: int) -> None:
    """Raise unless elements are floating-point numbers with one class each."""
    if len(elements) < 2:
        raise ConfigError(f"elements must be at least 2, but got {len(elements)}.")
    if not elements.is_floating_point():
        raise ConfigError(f"elements must be floating-point numbers, but got {elements.dtype}.")
    require_classes("labels", labels, len(elements), classes)


def as_tensor(data: Data) -> Tensor:
    """Data as a tensor; arrays are copied, since they may be read-only."""
    return data if isinstance(data, Tensor) else torch.tensor(data)
