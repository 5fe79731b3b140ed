"""From images with several tasks to networks: for one run, or for several at once."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch

from drpm.data.fingerprints import fingerprint_tensors
from drpm.multitask.config import MultitaskConfig
from drpm.multitask.evaluation import ACCURACY, TaskScores, score_stack, score_tasks
from drpm.multitask.fitted import FittedMultitask
from drpm.multitask.gradients import find_weighting
from drpm.multitask.models import MultitaskNetwork, MultitaskObjective
from drpm.multitask.tasks import TaskData
from drpm.training import config as configs
from drpm.training.checks import require_one_each
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.program import BaseProgram, count_steps
from drpm.training.runs import RunFolder
from drpm.training.schedules import ExponentialSchedule
from drpm.training.stages import ProgressFactory, open_stage, train_stage
from drpm.training.turns import seeded

STAGE: Final = "training"


def fit_multitask(
    data: Sequence[TaskData],
    config: MultitaskConfig,
    folders: Sequence[Path | str],
    *,
    seeds: Sequence[int],
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> list[FittedMultitask]:
    """Train networks that differ in their seed or their data, together.

    A folder that was begun with other data or settings is refused. Trainings in several threads
    take turns.

    Arguments:
        data: That of every run, all of one shape; runs on the same data may have the same object.
        config: The settings.
        folders: One for each run, for what training writes; continued if they were cut off.
        seeds: One for each run.
        device: Where.
        progress: From the name of a stage to whoever shows how far it is.
    """
    require_one_each(data=data, folders=folders, seeds=seeds)
    check_multitask(data, config)
    training, devices, first = config.training, Devices(device), data[0]
    networks = [make_network(each, config, seed) for each, seed in zip(data, seeds, strict=True)]
    known = {id(each): cache(partial(_fingerprint, each)) for each in data}
    runs = [
        open_stage(
            folder,
            STAGE,
            configs.dumps(replace(config, training=replace(training, seed=seed))),
            fingerprint=known[id(each)],
            devices=devices,
        )
        for folder, seed, each in zip(folders, seeds, data, strict=True)
    ]
    if config.method == "gradient":
        training = replace(training, step="eager")
    steps = max(1, training.epochs * count_steps(len(first.images), training))
    # What all runs learn from is kept once.
    same = all(each is first for each in data)
    columns = {"images": [each.images for each in data], "targets": [x.targets for x in data]}
    own = {} if same else {name: torch.stack(each) for name, each in columns.items()}
    train_stage(
        STAGE,
        networks,
        MultitaskObjective(first.tasks),
        training,
        runs,
        {name: each[0] for name, each in columns.items()} if same else {},
        seed=seeds[0],
        devices=devices,
        run_data=own,
        schedules={"temperature": ExponentialSchedule(*config.temperature, steps)},
        before_epoch=lambda program: _look(program, networks[0], data, runs),
        progress=progress,
    )
    return [
        FittedMultitask(network.eval(), each.shape, each.tasks, each.classes)
        for network, each in zip(networks, data, strict=True)
    ]


def _fingerprint(data: TaskData) -> str:
    """What data is known by: all that is learned from and looked at on the way.

    Not the mean and the deviation of pixels, which on another device may end in another digit.
    """
    names = ("images", "targets", "test_images", "test_targets")
    return fingerprint_tensors((name, getattr(data, name)) for name in names)


def make_network(data: TaskData, config: MultitaskConfig, seed: int) -> MultitaskNetwork:
    """A network at the start of its training."""
    with seeded(seed):
        network = MultitaskNetwork(data.shape, data.classes, config)
    network.mean.copy_(data.mean)
    network.std.copy_(data.std)
    return network


def check_multitask(data: Sequence[TaskData], config: MultitaskConfig) -> None:
    """Refuse what cannot be trained, before anything is written."""
    if config.method == "gradient":
        find_weighting(config.weighting)
        if len(data) > 1:
            raise ConfigError(
                "data must be that of one run for the method 'gradient', which is trained alone, "
                f"but got {len(data)}."
            )
    first = data[0]
    width, tasks = config.network.width, len(first.tasks)
    if config.method == "drpm" and width < tasks:
        raise ConfigError(
            f"network.width must be at least the number of tasks, {tasks}, for the method 'drpm', "
            f"which gives every task neurons of its own, but got {width}."
        )
    for each in data:
        for part in ("images", "test_images"):
            given, expected = getattr(each, part).shape, getattr(first, part).shape
            if (given, each.tasks) != (expected, first.tasks):
                raise ConfigError(
                    f"{part} of runs that are trained together must have one shape and the same "
                    f"tasks, but got {tuple(expected)} and {tuple(given)}."
                )
    with torch.device("meta"):
        MultitaskNetwork(first.shape, first.classes, config)


def _look(
    program: BaseProgram,
    network: MultitaskNetwork,
    data: Sequence[TaskData],
    runs: Sequence[RunFolder],
) -> Callable[[int], None]:
    """What looks at the test part before an epoch: it shows what the one before it achieved."""
    spare = copy.deepcopy(network).eval()
    every, seen = network.config.evaluate_every, None

    def before_epoch(epoch: int) -> None:
        nonlocal seen
        if seen is None:
            # A run that was cut off right here has looked already.
            seen = [_epochs(run.metrics()) for run in runs]
        if epoch == 0 or epoch % every or all(epoch in epochs for epochs in seen):
            return
        found = _score_all(program, spare, data)
        for run, scores, epochs in zip(runs, found, seen, strict=True):
            if epoch not in epochs:
                step = epoch * program.steps_per_epoch
                run.log({"step": step, "epoch": epoch, **scores.record()})

    return before_epoch


def _score_all(
    program: BaseProgram, spare: MultitaskNetwork, data: Sequence[TaskData]
) -> list[TaskScores]:
    """What all runs are worth at present, each on its own test part."""
    if len(data) == 1:
        spare.load_state_dict(program.model_state())
        return [score_tasks(spare, data[0].test_images, data[0].test_targets)]
    images = [each.test_images for each in data]
    return score_stack(spare, program.tensors(), images, [each.test_targets for each in data])


def _epochs(records: Sequence[dict[str, Any]]) -> set[int]:
    return {record["epoch"] for record in records if ACCURACY in record}
