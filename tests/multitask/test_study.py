"""Studies of several tasks: their noise, and the command that repeats a run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from drpm.cli import app
from drpm.data import load
from drpm.experiments.running import run_study
from drpm.multitask.config import MultitaskJob
from drpm.multitask.experiment import Multitask
from drpm.multitask.tasks import read_tasks
from drpm.training.runs import RunFolder
from tests.multitask.toys import write_few_digits

SETTINGS = [
    *("training.epochs=2", "training.batch_size=20", "training.device=cpu", "evaluate_every=1"),
    *("network.channels=2,3", "network.width=6", "network.head=4"),
]


@pytest.fixture(autouse=True)
def digits(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    write_few_digits(tmp_path_factory.mktemp("data"), monkeypatch)


def test_runs_have_images_of_their_own_noise() -> None:
    for ratio in (0.0, 1.0):
        data = Multitask().load(MultitaskJob(noise=ratio), torch.device("cpu"))
        assert torch.equal(
            data.test_images, read_tasks(load("multimnist", noise=ratio)).test_images
        )


@pytest.mark.parametrize(
    "which", [{"data": "multimnist", "noise": 0.3}, {"data": "mosaic", "tasks": 4}]
)
def test_the_command_does_the_same(tmp_path: Path, which: dict[str, Any]) -> None:
    run_study(tmp_path, "multitask", "fast-multitask", [1], SETTINGS, which, device="cpu")
    run = RunFolder.open(tmp_path / "seed-1")
    command = [*run.result()["command"][1:], "--out", str(tmp_path / "again")]
    assert CliRunner().invoke(app, command).exit_code == 0
    again = RunFolder.open(tmp_path / "again")
    assert again.config_text() == run.config_text()
    assert again.result()["metrics"] == run.result()["metrics"]
