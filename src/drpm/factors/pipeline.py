"""From pairs of images to models, for one seed or for several at once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from drpm.factors.config import FactorsConfig
from drpm.factors.fitted import FittedFactors
from drpm.factors.models import FactorObjective, FactorVAE
from drpm.factors.pairs import OwnPairs, PairSampler
from drpm.training import config as configs
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.program import count_steps
from drpm.training.schedules import ExponentialSchedule
from drpm.training.stages import ProgressFactory, open_run, train_stage

STAGE = "training"


def fit_factors(
    pairs: PairSampler | OwnPairs,
    config: FactorsConfig,
    folders: Sequence[Path | str],
    *,
    seeds: Sequence[int],
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> list[FittedFactors]:
    """Train a model of pairs, once for every seed.

    Arguments:
        pairs: Where they come from: drawn from a world of images at every step, or given.
        config: The settings.
        folders: One for each seed, for what training writes; continued if they were cut off.
        seeds: They settle everything that is random.
        device: Where.
        progress: From the name of a stage to whoever shows how far it is.
    """
    training, devices = config.training, Devices(device)
    steps_per_epoch = config.steps_per_epoch
    if isinstance(pairs, OwnPairs):
        if config.method == "label":
            raise ConfigError(
                "method must be one that needs no labels for pairs without them, but got 'label'."
            )
        shape = pairs.first.shape[1:]
        data = {"first": pairs.first, "second": pairs.second}
        steps_per_epoch = count_steps(len(pairs.first), training)
        augment = None
    else:
        shape = pairs.world.image_shape
        # What is drawn depends on nothing: the rows of this column are only counted.
        data = {"pair": torch.zeros(steps_per_epoch * training.batch_size)}
        augment = pairs
    colours, height, width = shape
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(FactorVAE((colours, height, width), config).to(device))
    runs = [
        open_run(
            Path(folder) / STAGE,
            configs.dumps(replace(config, training=replace(training, seed=seed))),
            devices=devices,
        )
        for folder, seed in zip(folders, seeds, strict=True)
    ]
    steps = max(1, training.epochs * steps_per_epoch)
    train_stage(
        STAGE,
        models,
        FactorObjective(config),
        training,
        runs,
        data,
        seed=seeds[0],
        devices=devices,
        schedules={"temperature": ExponentialSchedule(*config.temperature, steps)},
        augment=augment,
        progress=progress,
    )
    return [FittedFactors(model, (colours, height, width)) for model in models]
