"""Studies of shared factors: all methods, all seeds, and again after a kill."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drpm.cli import app
from drpm.factors import job, sweeps
from drpm.factors.study import run_study
from drpm.training.errors import ConfigError, RunError
from drpm.training.runs import RunFolder

SETTINGS = [
    *("steps_per_epoch=2", "training.epochs=1", "training.batch_size=4", "latent=7"),
    "training.device=cpu",
]


def do(folder: Path, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "data": "arm",
        "shared": "3",
        "method": "drpm",
        "preset": "fast-factors",
        "seeds": [0, 1],
        "settings": SETTINGS,
        "angles": 2,
        "test_pairs": 100,
        "device": "cpu",
    }
    run_study(folder, **{**arguments, **changes})


def test_killed_before_its_end_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conclude = job._conclude

    def dying(each: Any, fitted: Any, pairs: Any, run: Any, facts: Any) -> None:
        if run.path.name == "seed-1":
            raise KeyboardInterrupt
        conclude(each, fitted, pairs, run, facts)

    with monkeypatch.context() as patched:
        patched.setattr(job, "_conclude", dying)
        with pytest.raises(KeyboardInterrupt):
            do(tmp_path)
    before = (tmp_path / "seed-0" / "result.json").read_bytes()
    do(tmp_path)
    assert (tmp_path / "seed-0" / "result.json").read_bytes() == before
    result = json.loads((tmp_path / "result.json").read_text())
    errors = []
    for seed in (0, 1):
        run = json.loads((tmp_path / f"seed-{seed}" / "result.json").read_text())
        assert run["stacked"] == [0, 1]
        errors.append(run["metrics"]["count_error"])
    assert result["metrics"]["count_error"]["mean"] == pytest.approx(sum(errors) / 2)
    with pytest.raises(RunError, match=r"shared was '3' and is now '1'"):
        do(tmp_path, shared="1")


def test_the_command_does_the_same(tmp_path: Path) -> None:
    """Its settings, as the command line reads them, are those of the run."""
    do(tmp_path, seeds=[1])
    run = RunFolder.open(tmp_path / "seed-1")
    command = [*run.result()["command"][1:], "--out", str(tmp_path / "again")]
    assert CliRunner().invoke(app, command).exit_code == 0
    again = RunFolder.open(tmp_path / "again")
    assert again.config_text() == run.config_text()


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds must be one or more that differ"):
        do(tmp_path, seeds=[0, 0])


def test_the_table() -> None:
    sweep = sweeps.table_2()
    methods = ("label", "ada", "hg", "drpm")
    assert [run.folder for run in sweep.runs] == [
        f"shared-{n}/{method}" for n in (0, 1, 3, 5) for method in methods
    ]
    for run in sweep.runs:
        assert run.arguments["seeds"] == [0, 1, 2, 3, 4]
        assert run.folder == f"shared-{run.arguments['shared']}/{run.arguments['method']}"
        job.Job(run.arguments["data"], run.arguments["shared"])
