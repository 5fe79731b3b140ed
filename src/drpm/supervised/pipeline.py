"""From labelled elements to models, for one seed or for several at once."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.fingerprints import fingerprint_tensors
from drpm.supervised.config import SupervisedConfig
from drpm.supervised.fitted import FittedPartitioner, as_tensor
from drpm.supervised.models import Partitioner, SupervisedObjective
from drpm.training import config as configs
from drpm.training.checks import require_classes, require_one_each
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError, RunError
from drpm.training.program import count_steps
from drpm.training.runs import RunFolder
from drpm.training.schedules import ExponentialSchedule
from drpm.training.stages import ProgressFactory, open_stage, train_stage
from drpm.training.turns import seeded

STAGE = "training"
# In the folder of a stage: which weight was kept, and by whom it was chosen.
_CHOICE = "choice.json"

# What is held out is the same for every seed.
_SPLIT_SEED = 2_000_000


class Selection(NamedTuple):
    """How the weight of the size term was chosen.

    Arguments:
        size_weight: The one that was kept.
        held_out: How many training examples the candidates were judged on.
        f1: From every candidate to its F1 score there, for each seed; nothing where there was one.
    """

    size_weight: float
    held_out: int
    f1: dict[float, list[float]]


class FittedPartitioners(NamedTuple):
    """What training ends with.

    Arguments:
        models: One for each seed, with the weight that was kept.
        folders: What training wrote of each of them.
        selection: How that weight was chosen.
        chosen_by: The seeds that it was chosen by: these, or those that training was begun with.
    """

    models: list[FittedPartitioner]
    folders: list[Path]
    selection: Selection
    chosen_by: list[int]


def fit_partitioners(
    elements: Tensor | NDArray[Any],
    labels: Tensor | NDArray[Any],
    classes: int,
    config: SupervisedConfig,
    folders: Sequence[Path | str],
    *,
    seeds: Sequence[int],
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> FittedPartitioners:
    """Train a model for every seed and every weight of the size term, and keep the best weight.

    A folder that was begun with other data or settings is refused. What all seeds have chosen
    together stays in their folders, so that one of them which is read alone has the same.
    Trainings in several threads take turns.

    Arguments:
        elements: (N, *shape), the training set.
        labels: (N,), the class of each, from 0 to K - 1.
        classes: K.
        config: The settings.
        folders: One for each seed, for what training writes; continued if they were cut off.
        seeds: They settle everything that is random, but what is held out.
        device: Where.
        progress: From the name of a stage to whoever shows how far it is.
    """
    require_one_each(folders=folders, seeds=seeds)
    elements, labels = as_tensor(elements), as_tensor(labels)
    check_labels(elements, labels, classes)
    training, devices = config.training, Devices(device)
    taught, held = (part.to(elements.device) for part in split(len(elements), config))
    rows = elements.flatten(1).float()
    known = cache(lambda: fingerprint_tensors([("rows", rows), ("labels", labels.long())]))
    models, runs = [], []
    for weight in config.size_weights:
        for folder, seed in zip(folders, seeds, strict=True):
            with seeded(seed):  # so that all candidates start alike
                models.append(Partitioner(elements[0].numel(), classes, config, weight).to(device))
            own = replace(config, training=replace(training, seed=seed))
            stage, text = f"{STAGE}/weight-{weight}", configs.dumps(own)
            runs.append(open_stage(folder, stage, text, fingerprint=known, devices=devices))
    steps = max(1, training.epochs * count_steps(len(taught), training))
    train_stage(
        STAGE,
        models,
        SupervisedObjective(config),
        training,
        runs,
        {"rows": rows[taught], "labels": labels[taught]},
        seed=seeds[0],
        devices=devices,
        schedules={"temperature": ExponentialSchedule(*config.temperature, steps)},
        progress=progress,
    )
    shape = tuple(elements.shape[1:])
    fitted = [FittedPartitioner(model, shape) for model in models]
    by_weight = {
        weight: fitted[place * len(seeds) : (place + 1) * len(seeds)]
        for place, weight in enumerate(config.size_weights)
    }
    stages = [RunFolder(Path(folder) / STAGE) for folder in folders]
    remembered = _recall(stages)
    if remembered is None:
        remembered = select(by_weight, elements[held], labels[held]), list(seeds)
        _remember(stages, *remembered)
    selection, chosen_by = remembered
    kept = config.size_weights.index(selection.size_weight) * len(seeds)
    chosen = slice(kept, kept + len(seeds))
    paths = [run.path for run in runs[chosen]]
    return FittedPartitioners(fitted[chosen], paths, selection, chosen_by)


def _remember(stages: Sequence[RunFolder], selection: Selection, seeds: list[int]) -> None:
    """Leave a choice with all who made it; nothing where there was none to make."""
    if selection.f1:
        text = json.dumps({**selection._asdict(), "f1": [*selection.f1.items()], "seeds": seeds})
        for stage in stages:
            stage.write_atomic(_CHOICE, text)


def _recall(stages: Sequence[RunFolder]) -> tuple[Selection, list[int]] | None:
    """The choice that all were left with, and whose it was; none where they have not one."""
    paths = [stage.path / _CHOICE for stage in stages]
    if not all(path.exists() for path in paths):
        return None
    texts = {path.read_bytes() for path in paths}
    if len(texts) > 1:
        return None
    try:
        found = json.loads(texts.pop())
        selection = Selection(found["size_weight"], found["held_out"], dict(found["f1"]))
        return selection, found["seeds"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"The file {paths[0]} is not what a run writes.") from error


def split(count: int, config: SupervisedConfig) -> tuple[Tensor, Tensor]:
    """Which examples are learnt from, and which are held out; none where nothing is chosen."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held = 0 if len(config.size_weights) == 1 else max(1, round(config.held_out * count))
    if held >= count:
        raise ConfigError(f"held_out must leave examples to learn from, but {count} are too few.")
    return order[held:], order[:held]


def select(
    candidates: dict[float, list[FittedPartitioner]], elements: Tensor, labels: Tensor
) -> Selection:
    """The weight with the best mean F1 score on examples that nobody learnt from.

    Arguments:
        candidates: From every weight to its models, one for each seed.
        elements: (M, *shape), the held-out examples.
        labels: (M,), their classes.
    """
    if len(candidates) == 1:
        return Selection(next(iter(candidates)), 0, {})
    scores = {
        weight: [model.judge(elements, labels).scores.f1 for model in models]
        for weight, models in candidates.items()
    }
    best = max(scores, key=lambda weight: statistics.fmean(scores[weight]))
    return Selection(best, len(elements), scores)


def check_labels(elements: Tensor, labels: Tensor, classes: int) -> None:
    """Refuse elements that are no numbers to learn from, or have not one class each."""
    if len(elements) < 2:
        raise ConfigError(f"elements must be at least 2, but got {len(elements)}.")
    if not elements.is_floating_point():
        raise ConfigError(f"elements must be fractional numbers, but got {elements.dtype}.")
    require_classes("labels", labels, len(elements), classes)
