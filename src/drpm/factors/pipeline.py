"""From pairs of images to models, for one seed or for several at once."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from drpm.data.fingerprints import fingerprint_tensors
from drpm.factors.config import FactorsConfig
from drpm.factors.fitted import FittedFactors
from drpm.factors.models import FactorObjective, FactorVAE
from drpm.factors.networks import require_sides
from drpm.factors.own_pairs import OwnPairs, OwnSampler, require_views
from drpm.factors.pairs import PairSampler
from drpm.training import config as configs
from drpm.training.checks import require_one_each
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.schedules import ExponentialSchedule
from drpm.training.stages import ProgressFactory, open_stage, train_stage
from drpm.training.turns import seeded

STAGE = "training"

# By so many images, spread over all of them, a world of a million is known.
_KNOWN_IMAGES = 100


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

    A folder that was begun with other pairs or settings is refused. Trainings in several threads
    take turns.

    Arguments:
        pairs: Where they come from, drawn anew at every step: from a world of images, or from
            given ones.
        config: The settings.
        folders: One for each seed, for what training writes; continued if they were cut off.
        seeds: They settle everything that is random.
        device: Where.
        progress: From the name of a stage to whoever shows how far it is.
    """
    require_one_each(folders=folders, seeds=seeds)
    training, devices = config.training, Devices(device)
    shape = check_pairs(pairs, config)
    augment = OwnSampler(pairs, device) if isinstance(pairs, OwnPairs) else pairs
    models = []
    for seed in seeds:
        with seeded(seed):
            models.append(FactorVAE(shape, config).to(device))
    known = cache(partial(fingerprint_pairs, pairs))
    runs = [
        open_stage(
            folder,
            STAGE,
            configs.dumps(replace(config, training=replace(training, seed=seed))),
            fingerprint=known,
            devices=devices,
        )
        for folder, seed in zip(folders, seeds, strict=True)
    ]
    steps = max(1, training.epochs * config.steps_per_epoch)
    train_stage(
        STAGE,
        models,
        FactorObjective(config),
        training,
        runs,
        # What is drawn depends on nothing: the rows of this column are only counted.
        {"pair": torch.zeros(config.steps_per_epoch * training.batch_size)},
        seed=seeds[0],
        devices=devices,
        schedules={"temperature": ExponentialSchedule(*config.temperature, steps)},
        augment=augment,
        progress=progress,
    )
    return [FittedFactors(model, shape) for model in models]


def fingerprint_pairs(pairs: PairSampler | OwnPairs) -> str:
    """What pairs are known by: all images of given ones, some of a world."""
    if isinstance(pairs, OwnPairs):
        return fingerprint_tensors([("first", pairs.first), ("second", pairs.second)])
    world = pairs.world
    some = torch.linspace(0, len(world.images) - 1, _KNOWN_IMAGES, dtype=torch.float64).long()
    told = f"{world.sizes} {pairs.law.counts}"
    return fingerprint_tensors([(told, world.images[some.to(world.images.device)])])


def check_pairs(pairs: PairSampler | OwnPairs, config: FactorsConfig) -> tuple[int, int, int]:
    """Refuse pairs that a model cannot be trained on.

    Arguments:
        pairs: Where they come from.
        config: The settings.

    Returns:
        The shape of an image: C, H and W.
    """
    if isinstance(pairs, OwnPairs):
        require_views(pairs.first, pairs.second)
        if config.method == "label":
            raise ConfigError(
                "method must be one that needs no labels for pairs without them, but got 'label'."
            )
        colours, height, width = pairs.first.shape[1:]
    else:
        colours, height, width = pairs.world.image_shape
    require_sides(height, width)
    return colours, height, width
