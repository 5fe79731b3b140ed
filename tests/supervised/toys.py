"""Blobs in the plane, each a class of its own, and a model that learns them in a second or two."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drpm.supervised.config import SupervisedConfig
from drpm.supervised.models import TrainedPartitioner, fit_partitioner
from drpm.training.config import TrainingConfig

CLASSES = 4

CONFIG = SupervisedConfig(
    hidden=(32,),
    scale=0.1,
    size_weights=(0.01,),
    training=TrainingConfig(epochs=8, batch_size=32, learning_rate=1e-2, device="cpu"),
)


def blobs(count: int, seed: int, shares: Any = (1, 1, 1, 1)) -> tuple[Tensor, Tensor]:
    """Points (count, 2) and their classes, whose order is not that of the plane."""
    noise = torch.Generator().manual_seed(seed)
    labels = torch.tensor(shares, dtype=torch.float64).multinomial(count, True, generator=noise)
    centres = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    return centres[labels] + 0.4 * torch.randn(count, 2, generator=noise), labels


def fit(folder: Path, config: SupervisedConfig = CONFIG, **options: Any) -> TrainedPartitioner:
    return fit_partitioner(*blobs(640, seed=1), CLASSES, config, folder, **options)
