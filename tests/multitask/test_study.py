"""Studies of several tasks: their noise, and the command that repeats a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from drpm.cli import app
from drpm.data import multimnist
from drpm.experiments.running import run_study
from drpm.multitask import experiment
from drpm.multitask.models import MultitaskNetwork
from drpm.training.runs import RunFolder
from tests.multitask.toys import write_few_digits

SETTINGS = [
    *("training.epochs=2", "training.batch_size=20", "training.device=cpu", "evaluate_every=1"),
    *("network.channels=2,3", "network.width=6", "network.head=4"),
]


@pytest.fixture(autouse=True)
def digits(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    write_few_digits(tmp_path_factory.mktemp("data"), monkeypatch)


def do(folder: Path, seeds: Sequence[int] = (0, 1), method: str = "drpm", **options: Any) -> None:
    run_study(
        folder,
        "multitask",
        "fast-multitask",
        list(seeds),
        [*SETTINGS, f"method={method}"],
        {"data": "multimnist", **options},
        device="cpu",
    )


def test_runs_have_images_of_their_own_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Identified by their brightness, in training and in evaluation, which have one precision."""
    seen: list[Any] = []
    fit, score = experiment.fit_multitask, MultitaskNetwork.score

    def watched(data: Any, *given: Any, **further: Any) -> Any:
        seen.append(brightness(data.images))
        return fit(data, *given, **further)

    def scored(network: Any, images: Tensor, targets: Any) -> Any:
        seen.append((brightness(images), torch.get_float32_matmul_precision()))
        return score(network, images, targets)

    monkeypatch.setattr(experiment, "fit_multitask", watched)
    monkeypatch.setattr(MultitaskNetwork, "score", scored)
    assert torch.get_float32_matmul_precision() == "highest"
    for ratio in (0.0, 1.0):
        do(tmp_path / f"noise-{ratio}", seeds=[0], noise=ratio, method="uls")
        data = multimnist.load(noise=ratio)
        # Half a byte is lost at most.
        train, test = (
            pytest.approx(0.3081 * float(part.inputs.mean()) + 0.1307, abs=0.002)
            for part in (data.train, data.test)
        )
        # After the first of two epochs, and at the end.
        assert seen[-3:] == [train, (test, "high"), (test, "high")]
    assert seen[0] > seen[3] + 0.04


def brightness(images: Tensor) -> float:
    return float(images.double().mean()) / 255


@pytest.mark.parametrize("which", [{"noise": 0.3}, {"data": "mosaic", "tasks": 4}])
def test_the_command_does_the_same(tmp_path: Path, which: dict[str, Any]) -> None:
    do(tmp_path / "study", seeds=[1], **which)
    (found,) = (tmp_path / "study").rglob("seed-1")
    run = RunFolder.open(found)
    command = [*run.result()["command"][1:], "--out", str(tmp_path / "again")]
    assert CliRunner().invoke(app, command).exit_code == 0
    again = RunFolder.open(tmp_path / "again")
    assert again.config_text() == run.config_text()
    assert again.result()["metrics"] == run.result()["metrics"]
