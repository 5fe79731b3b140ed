"""Training a model of pairs of images."""

from functools import partial
from pathlib import Path

import torch

from drpm.data.fingerprints import fingerprint_tensors
from drpm.factors.config import FactorsConfig
from drpm.factors.fitted import FittedFactors
from drpm.factors.models import FactorObjective, FactorVAE, require_sides
from drpm.factors.own_pairs import OwnPairs, OwnSampler, require_views
from drpm.factors.pairs import PairSampler
from drpm.training import config as configs
from drpm.training.devices import Devices
from drpm.training.errors import ConfigError
from drpm.training.loop import ProgressFactory, train_stage
from drpm.training.runs import open_stage
from drpm.training.schedules import ExponentialSchedule
from drpm.training.torch_state import seeded

STAGE = "training"

# Number of images of a world that its hash covers.
_HASHED_IMAGES = 100


def fit_factors(
    pairs: PairSampler | OwnPairs,
    config: FactorsConfig,
    folder: Path | str,
    *,
    device: torch.device | str = "cpu",
    progress: ProgressFactory = lambda stage: None,
) -> FittedFactors:
    """Train a model of pairs, or resume its training.

    Args:
        pairs: Pairs to draw from at every step, of a world of images or given ones.
        config: The settings; ``config.training.seed`` determines everything random.
        folder: For checkpoints and metrics. One with other pairs or settings is refused.
        device: Where to train.
        progress: From the name of a stage to its progress display.
    """
    training, devices = config.training, Devices(device)
    shape = check_pairs(pairs, config)
    augment = OwnSampler(pairs, device) if isinstance(pairs, OwnPairs) else pairs
    with seeded(training.seed):
        model = FactorVAE(shape, config).to(device)
    run = open_stage(
        folder,
        STAGE,
        configs.dumps(config),
        fingerprint=partial(hash_pairs, pairs),
        devices=devices,
    )
    steps = max(1, training.epochs * config.steps_per_epoch)
    train_stage(
        STAGE,
        [model],
        FactorObjective(config),
        training,
        [run],
        # Pairs are drawn; of this column only the length is used.
        {"pair": torch.zeros(config.steps_per_epoch * training.batch_size)},
        seed=training.seed,
        devices=devices,
        schedules={"temperature": ExponentialSchedule(*config.temperature, steps)},
        augment=augment,
        progress=progress,
    )
    return FittedFactors(model, shape)


def hash_pairs(pairs: PairSampler | OwnPairs) -> str:
    """A hash of all given images, or of some of a world's."""
    if isinstance(pairs, OwnPairs):
        return fingerprint_tensors([("first", pairs.first), ("second", pairs.second)])
    world = pairs.world
    some = torch.linspace(0, len(world.images) - 1, _HASHED_IMAGES, dtype=torch.float64).long()
    name = f"{world.sizes} {pairs.law.counts}"
    return fingerprint_tensors([(name, world.images[some.to(world.images.device)])])


def check_pairs(pairs: PairSampler | OwnPairs, config: FactorsConfig) -> tuple[int, int, int]:
    """Refuse pairs that a model cannot be trained on; return C, H and W of their images."""
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
