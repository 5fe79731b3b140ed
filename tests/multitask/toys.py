"""Two bars in one image of 16 x 16 pixels: how high each of them lies is a task."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drpm.data import mnist
from drpm.data.types import Dataset, Split
from drpm.multitask.config import MultitaskConfig, NetworkConfig
from drpm.multitask.models import TaskData, read_tasks
from drpm.training.config import TrainingConfig
from tests.data.formats import write_mnist
from tests.oracles import generator

HEIGHTS = 3
NETWORK = NetworkConfig(channels=(3, 4), width=10, head=6, dropout=0.0)
TRAINING = TrainingConfig(epochs=2, batch_size=16, learning_rate=2e-3)


def settings(**changes: Any) -> MultitaskConfig:
    return MultitaskConfig(**{"network": NETWORK, "training": TRAINING, **changes})


def bars(number: int, seed: int, noise: float = 0.0) -> Split:
    """Images in [0, 1], the right bar without some of its pixels."""
    chance = generator(seed)
    heights = torch.randint(HEIGHTS, (number, 2), generator=chance)
    images = 0.2 * torch.rand(number, 1, 16, 16, generator=chance)
    kept = (torch.rand(number, 16, 8, generator=chance) >= noise).float()
    for index, (left, right) in enumerate(heights.tolist()):
        images[index, 0, 5 * left : 5 * left + 4, :8] += 0.8
        images[index, 0, 5 * right : 5 * right + 4, 8:] += 0.8
        images[index, 0, :, 8:] *= kept[index]
    return Split(images.clamp(0, 1), {"left": heights[:, 0], "right": heights[:, 1]})


def two_bars(noise: float = 0.0, train: int = 48, test: int = 20, **further: Any) -> Dataset:
    names = tuple(map(str, range(HEIGHTS)))
    return Dataset(
        "bars",
        bars(train, 0, noise),
        bars(test, 1, noise),
        classes={"left": names, "right": names},
        **further,
    )


def toy(noise: float = 0.0, **sizes: int) -> TaskData:
    return read_tasks(two_bars(noise, **sizes))


def some_bytes(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, generator=generator(seed), dtype=torch.uint8)


def write_few_digits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of MNIST that hold few digits, and few mosaics of them."""
    monkeypatch.setenv("DRPM_DATA", str(folder))
    write_mnist(folder / "mnist", train=40, test=20)
    # Mosaics can be made in any number; few will do.
    for name, count in (("num_train", 60), ("num_test", 20)):
        monkeypatch.setitem(mnist.load_mosaic.__kwdefaults__, name, count)
