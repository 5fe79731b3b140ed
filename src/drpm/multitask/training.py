"""Training a network with several tasks."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from drpm.data.fingerprints import fingerprint_tensors
from drpm.multitask.config import MultitaskConfig
from drpm.multitask.evaluation import ACCURACY, score_tasks
from drpm.multitask.fitted import FittedMultitask
from drpm.multitask.methods import find_weighting
from drpm.multitask.models import MultitaskNetwork, MultitaskObjective
from drpm.multitask.tasks import TaskData
from drpm.training import config as configs
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory, train_stage
from drpm.training.program import BaseProgram, count_steps
from drpm.training.runs import RunFolder, open_stage
from drpm.training.schedules import ExponentialSchedule
from drpm.training.torch_state import seeded

STAGE: Final = "training"


def fit_multitask(
    data: TaskData,
    config: MultitaskConfig,
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> FittedMultitask:
    """Train a network, or resume its training.

    Args:
        data: The images and their tasks.
        config: The settings; ``config.training.seed`` determines everything random.
        folder: For checkpoints and metrics. One with other data or settings is refused.
        device: Where to train.
        progress: From the name of a stage to its progress display.
    """
    check_multitask(data, config)
    training, devices = config.training, Devices(device)
    network = make_network(data, config)
    run = open_stage(
        folder,
        STAGE,
        configs.dumps(config),
        fingerprint=partial(_hash_data, data),
        devices=devices,
    )
    if config.method == "gradient":
        training = replace(training, step="eager")
    steps = max(1, training.epochs * count_steps(len(data.images), training))
    train_stage(
        STAGE,
        [network],
        MultitaskObjective(data.tasks),
        training,
        [run],
        {"images": data.images, "targets": data.targets},
        seed=training.seed,
        devices=devices,
        schedules={"temperature": ExponentialSchedule(*config.temperature, steps)},
        before_epoch=lambda program: _evaluate_before_epoch(program, network, data, run),
        progress=progress,
    )
    return FittedMultitask(network.eval(), data.shape, data.tasks, data.classes)


def _hash_data(data: TaskData) -> str:
    # Not the mean and standard deviation of pixels, which may differ between devices.
    names = ("images", "targets", "test_images", "test_targets")
    return fingerprint_tensors((name, getattr(data, name)) for name in names)


def make_network(data: TaskData, config: MultitaskConfig) -> MultitaskNetwork:
    """An untrained network."""
    with seeded(config.training.seed):
        network = MultitaskNetwork(data.shape, data.classes, config)
    network.mean.copy_(data.mean)
    network.std.copy_(data.std)
    return network


def check_multitask(data: TaskData, config: MultitaskConfig) -> None:
    """Refuse settings that do not fit the data, before anything is written."""
    if config.method == "gradient":
        find_weighting(config.weighting)
    width, tasks = config.network.width, len(data.tasks)
    if config.method == "drpm" and width < tasks:
        raise ConfigError(
            f"network.width must be at least the number of tasks, {tasks}, for the method 'drpm', "
            f"which gives every task neurons of its own, but got {width}."
        )
    with torch.device("meta"):
        MultitaskNetwork(data.shape, data.classes, config)


def _evaluate_before_epoch(
    program: BaseProgram, network: MultitaskNetwork, data: TaskData, run: RunFolder
) -> Callable[[int], None]:
    """Log the test scores of the network every ``evaluate_every`` epochs."""
    spare = copy.deepcopy(network).eval()
    every = network.config.evaluate_every
    logged: set[int] | None = None

    def before_epoch(epoch: int) -> None:
        nonlocal logged
        if logged is None:
            # A run that was interrupted right here has logged this epoch already.
            logged = {record["epoch"] for record in run.metrics() if ACCURACY in record}
        if epoch == 0 or epoch % every or epoch in logged:
            return
        spare.load_state_dict(program.model_state())
        scores = score_tasks(spare, data.test_images, data.test_targets)
        step = epoch * program.steps_per_epoch
        run.log({"step": step, "epoch": epoch, **scores.record()})

    return before_epoch
