"""Studies of several tasks: noise ratios and seeds together, and again after a kill."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from drpm.cli import app
from drpm.data import multimnist
from drpm.multitask import job, pipeline, sweeps
from drpm.multitask.config import MultitaskConfig
from drpm.multitask.evaluation import TaskScores, score_tasks
from drpm.multitask.study import run_study
from drpm.training import presets
from drpm.training.errors import ConfigError, RunError
from drpm.training.runs import RunFolder
from tests.multitask.toys import write_few_digits
from tests.training.interrupting import cut_off

SETTINGS = [
    *("training.epochs=2", "training.batch_size=20", "training.device=cpu", "evaluate_every=1"),
    *("network.channels=2,3", "network.width=6", "network.head=4"),
]


@pytest.fixture(autouse=True)
def digits(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    write_few_digits(tmp_path_factory.mktemp("data"), monkeypatch)


def do(folder: Path, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "data": "multimnist",
        "method": "drpm",
        "preset": "fast-multitask",
        "seeds": [0, 1],
        "noise": [0.0, 0.4],
        "settings": SETTINGS,
        "device": "cpu",
    }
    run_study(folder, **{**arguments, **changes})


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "result.json").read_text())
    return found


def test_killed_before_its_end_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(monkeypatch, job, tmp_path / "noise-0.4" / "seed-0", lambda: do(tmp_path))
    kept = tmp_path / "noise-0.0" / "seed-1" / "result.json"
    before = kept.read_bytes()
    do(tmp_path)
    assert kept.read_bytes() == before
    whole = read(tmp_path)
    for ratio in (0.0, 0.4):
        runs = [read(tmp_path / f"noise-{ratio}" / f"seed-{seed}") for seed in (0, 1)]
        for run in runs:
            assert run["data"]["noise"] == ratio
            assert run["stacked"] == [0, 1, 0, 1]
            assert run["stacked noise"] == [0.0, 0.0, 0.4, 0.4]
            assert run["command"][-4:] == ["--noise", str(ratio), "--seeds", "0,1"]
            # There is no command for several ratios.
            assert "0.0, 0.4 were trained together" in run["about"]
        mean = sum(run["metrics"]["accuracy_right"] for run in runs) / 2
        summary = whole["metrics"][f"noise-{ratio}"]
        assert summary["accuracy_right"]["mean"] == pytest.approx(mean)
        assert summary == read(tmp_path / f"noise-{ratio}")["metrics"]
        assert summary["size_left"]["mean"] + summary["size_right"]["mean"] == pytest.approx(6)
    with pytest.raises(RunError, match="other settings"):
        do(tmp_path, noise=[0.0, 0.5])


@pytest.mark.parametrize("longest", [0.0, 0.4])
def test_the_time_of_a_study_is_that_of_its_longest_run(tmp_path: Path, longest: float) -> None:
    """All runs were trained together, so that each has the time of the whole."""
    do(tmp_path, method="uls")
    for ratio in (0.0, 0.4):
        for seed in (0, 1):
            path = tmp_path / f"noise-{ratio}" / f"seed-{seed}"
            time = 1000.0 if ratio == longest else 500.0 + seed
            (path / "result.json").write_text(json.dumps(read(path) | {"wall_time": time}))
    do(tmp_path, method="uls")
    assert read(tmp_path)["wall_time"] == 1000


def test_runs_have_images_of_their_own_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known by how bright they are: what each run learns from, and what it is judged on."""
    ratios, trained = [0.0, 0.5, 1.0], {}
    fit = job.fit_multitask

    def watched(data: Any, config: Any, folders: Any, **further: Any) -> Any:
        for each, folder in zip(data, folders, strict=True):
            trained[folder.parent.name] = brightness(each.images)
        return fit(data, config, folders, **further)

    def measured(network: Any, images: Tensor, targets: Any) -> TaskScores:
        return TaskScores(torch.tensor([brightness(images), 0.0]))

    monkeypatch.setattr(job, "fit_multitask", watched)
    monkeypatch.setattr(job, "score_tasks", measured)
    do(tmp_path, seeds=[0], noise=ratios, method="uls")
    for ratio in ratios:
        data = multimnist.load(noise=ratio)
        # Half a byte is lost at most.
        expected = [0.3081 * float(part.inputs.mean()) + 0.1307 for part in (data.train, data.test)]
        result = read(tmp_path / f"noise-{ratio}" / "seed-0")
        found = [trained[f"noise-{ratio}"], result["metrics"]["accuracy_left"]]
        assert found == pytest.approx(expected, abs=0.002)
    assert trained["noise-0.0"] > trained["noise-0.5"] + 0.02 > trained["noise-1.0"] + 0.04


def test_the_last_score_is_as_precise_as_the_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def noted(*given: Any) -> TaskScores:
        found.append(torch.get_float32_matmul_precision())
        return score_tasks(*given)

    for module in (pipeline, job):
        monkeypatch.setattr(module, "score_tasks", noted)
    assert torch.get_float32_matmul_precision() == "highest"
    do(tmp_path, seeds=[0], noise=[0.2])
    # One look after the first of two epochs, and the last score.
    assert found == ["high"] * 2


def brightness(images: Tensor) -> float:
    return float(images.double().mean()) / 255


def test_one_at_a_time(tmp_path: Path) -> None:
    do(tmp_path, at_once=2, method="uls")
    for ratio in (0.0, 0.4):
        run = read(tmp_path / f"noise-{ratio}" / "seed-1")
        assert run["stacked"] == [0, 1]
        assert "stacked noise" not in run
        assert run["command"][-1] == "0,1"
    do(tmp_path / "gradient", method="gradient", noise=[])
    for seed in (0, 1):
        run = read(tmp_path / "gradient" / f"seed-{seed}")
        assert run["stacked"] == [seed]
        assert run["command"][-1] == str(seed)


@pytest.mark.parametrize(
    "which",
    [
        {"noise": [0.3]},
        {"data": "mosaic", "tasks": 4, "noise": []},
    ],
)
def test_the_command_does_the_same(tmp_path: Path, which: dict[str, Any]) -> None:
    """Its settings, as the command line reads them, are those of the run."""
    do(tmp_path / "study", seeds=[1], **which)
    (found,) = (tmp_path / "study").rglob("seed-1")
    run = RunFolder.open(found)
    command = [*run.result()["command"][1:], "--out", str(tmp_path / "again")]
    assert CliRunner().invoke(app, command).exit_code == 0
    again = RunFolder.open(tmp_path / "again")
    assert again.config_text() == run.config_text()
    assert again.result()["metrics"] == run.result()["metrics"]


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds must be one or more that differ"):
        do(tmp_path, seeds=[0, 0])
    with pytest.raises(ConfigError, match="config must be what the settings are known by"):
        do(tmp_path, config="another")


def test_the_sweeps() -> None:
    found = {sweep.name: sweep.runs for sweep in (x() for x in (sweeps.noise, sweeps.mosaic))}
    found["celeba"] = sweeps.celeba().runs
    assert [run.folder for run in found["noise"]] == ["uls", "drpm"]
    assert [run.folder for run in found["mosaic"]] == [
        f"tasks-{tasks}/{method}"
        for tasks in (10, 20, 40)
        for method in ("uls", "uncertainty", "gradient", "drpm")
    ]
    assert [run.folder for run in found["celeba"]] == [
        f"tasks-{tasks}/{method}" for tasks in (10, 20, 40) for method in ("uls", "drpm")
    ]
    for run in (run for runs in found.values() for run in runs):
        assert run.arguments["seeds"] == [0, 1, 2, 3, 4]
        assert run.folder.endswith(run.arguments["method"])
        presets.load(MultitaskConfig, run.arguments["preset"])
    for run in found["noise"]:
        assert run.arguments["noise"] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    for run in (*found["mosaic"], *found["celeba"]):
        assert run.folder.startswith(f"tasks-{run.arguments['tasks']}/")
