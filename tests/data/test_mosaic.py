"""Mosaics: every tile against a digit reduced by hand, and the noise against its schedule."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from drpm.data import mnist, mosaic
from drpm.data.types import DataError
from tests.data.formats import write_mnist


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty training and twenty test digits of random pixels."""
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    write_mnist(tmp_path / "mnist", train=40, test=20)
    return tmp_path


def tile(images: torch.Tensor, task: int, columns: int) -> torch.Tensor:
    """One task's part of images (N, 1, H, W)."""
    top, left = 14 * (task // columns), 14 * (task % columns)
    return images[:, 0, top : top + 14, left : left + 14]


@pytest.mark.parametrize("num_tasks", [1, 2, 10, 20, 40, 101])
def test_noise_ratios_are_evenly_spread(num_tasks: int) -> None:
    ratios = mosaic.noise_ratios(num_tasks)
    assert ratios == mosaic.noise_ratios(num_tasks)
    last = 0.9 if num_tasks > 1 else 0.0
    np.testing.assert_allclose(sorted(ratios), np.linspace(0.0, last, num_tasks))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("num_tasks", [1, 5, 10])
def test_every_tile_is_a_digit_of_its_label(num_tasks: int) -> None:
    train, test = mnist.read_arrays()
    dataset = mosaic.load(num_tasks=num_tasks, num_train=30, num_test=10)
    rows, columns = mosaic.grid_shape(num_tasks)
    ratios = mosaic.noise_ratios(num_tasks)
    assert rows * columns - columns < num_tasks <= rows * columns
    for split, (digits, labels) in ((dataset.train, train), (dataset.test, test)):
        assert split.inputs.shape[1:] == (1, 14 * rows, 14 * columns)
        assert tuple(split.targets) == mosaic.task_names(num_tasks)
        means = digits.astype(float).reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255
        for task, name in enumerate(split.targets):
            seen = tile(split.inputs, task, columns).double().numpy()
            lost = seen == 0
            # Of a random digit hardly a pixel is black by itself, so the digit shows in the rest.
            gaps = np.where(lost[:, None], 0, np.abs(seen[:, None] - means)).mean(axis=(2, 3))
            nearest = gaps.argmin(axis=1)
            assert gaps.min(axis=1).max() < 0.5 / 255 + 1e-6  # bytes are rounded
            assert split.targets[name].tolist() == labels[nearest].tolist()
            # Five standard errors: fewer than 1 alarm in 100,000 seeds for all tiles together.
            error = math.sqrt(ratios[task] * (1 - ratios[task]) / lost.size)
            assert float(lost.mean()) == pytest.approx(ratios[task], abs=5 * error + 1e-9)
        for task in range(num_tasks, rows * columns):
            assert not tile(split.inputs, task, columns).any()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_tasks": 0}, "at least 1, but got 0, 20000 and 5000"),
        ({"num_test": -2}, "at least 1, but got 10, 20000 and -2"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        mosaic.SPEC.load(**options)
