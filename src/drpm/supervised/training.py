"""Training: one model for every candidate weight of the size term, of which the best is kept."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.fingerprints import fingerprint_tensors
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.models import Partitioner, SupervisedObjective, as_tensor
from drpm.training import config as configs
from drpm.training.config import require_classes
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory, train_stage
from drpm.training.program import count_steps
from drpm.training.runs import open_stage
from drpm.training.schedules import ExponentialSchedule
from drpm.training.torch_state import seeded

STAGE = "training"

# The same held-out examples for every seed.
_SPLIT_SEED = 2_000_000


class TrainedPartitioner(NamedTuple):
    """A trained model, and how the weight of its size term was chosen.

    Attributes:
        model: The model with the best weight.
        folder: The folder of its training.
        size_weight: The weight.
        held_out: The number of examples on which candidates were compared.
        f1: The F1 score of every candidate on them; empty for a single candidate.
    """

    model: Partitioner
    folder: Path
    size_weight: float
    held_out: int
    f1: dict[float, float]


def fit_partitioner(
    elements: Tensor | NDArray[Any],
    labels: Tensor | NDArray[Any],
    classes: int,
    config: SupervisedConfig,
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> TrainedPartitioner:
    """Train a model for every candidate weight of the size term, and keep the best.

    Interrupted trainings are resumed. A folder with other data or settings is refused.

    Args:
        elements: Training set of shape (N, *shape).
        labels: Classes from 0 to K - 1, of shape (N,).
        classes: K.
        config: The hyperparameters.
        folder: Where checkpoints and models go.
        device: Where to train.
        progress: Makes the progress bar of a stage.
    """
    elements, labels = as_tensor(elements), as_tensor(labels)
    check_labels(elements, labels, classes)
    taught, held = (part.to(elements.device) for part in split(len(elements), config))
    rows = elements.flatten(1).float()
    data = {"rows": rows[taught], "labels": labels[taught]}
    digest = cache(lambda: fingerprint_tensors([("rows", rows), ("labels", labels.long())]))
    devices, seed = Devices(device), config.training.seed
    steps = max(1, config.training.epochs * count_steps(len(taught), config.training))
    models, f1 = {}, {}
    for weight in config.size_weights:
        with seeded(seed):  # all candidates start alike
            model = Partitioner(elements.shape[1:], classes, config).to(device)
        stage, text = f"{STAGE}/weight-{weight}", configs.dumps(config)
        run = open_stage(folder, stage, text, fingerprint=digest, devices=devices)
        train_stage(
            STAGE,
            [model],
            SupervisedObjective(config.smoothing, weight),
            config.training,
            [run],
            data,
            seed=seed,
            devices=devices,
            schedules={"temperature": ExponentialSchedule(*config.temperature, steps)},
            progress=progress,
        )
        models[weight] = model, run.path
        if len(config.size_weights) > 1:
            f1[weight] = model.judge(elements[held], labels[held]).scores.f1
    best = max(f1, key=lambda weight: f1[weight]) if f1 else config.size_weights[0]
    return TrainedPartitioner(*models[best], best, len(held), f1)


def split(count: int, config: SupervisedConfig) -> tuple[Tensor, Tensor]:
    """Indices of the examples to train on, and of those held out to compare candidates."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held = 0 if len(config.size_weights) == 1 else max(1, round(config.held_out * count))
    if held >= count:
        raise ConfigError(f"held_out must leave examples to train on, but {count} are too few.")
    return order[held:], order[:held]


def check_labels(elements: Tensor, labels: Tensor, classes: int) -> None:
    """Refuse elements that are not floating-point numbers or do not have one class each."""
    if len(elements) < 2:
        raise ConfigError(f"elements must be at least 2, but got {len(elements)}.")
    if not elements.is_floating_point():
        raise ConfigError(f"elements must be floating-point numbers, but got {elements.dtype}.")
    require_classes("labels", labels, len(elements), classes)
