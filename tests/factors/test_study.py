"""Studies of shared factors: all methods, all seeds, and again after a kill."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from drpm.cli import app
from drpm.factors import job, sweeps
from drpm.factors.config import FactorsConfig
from drpm.factors.fitted import Evidence, load_factors, measure_evidence
from drpm.factors.job import run_study
from drpm.factors.own_pairs import OwnPairs
from drpm.training import config as configs
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError, RunError
from drpm.training.runs import ARRAYS, RunFolder
from tests.oracles import generator
from tests.training.interrupting import cut_off

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
    cut_off(monkeypatch, job, tmp_path / "seed-1", lambda: do(tmp_path))
    before = (tmp_path / "seed-0" / "result.json").read_bytes()
    do(tmp_path)
    assert (tmp_path / "seed-0" / "result.json").read_bytes() == before
    result = json.loads((tmp_path / "result.json").read_text())
    errors = []
    for seed in (0, 1):
        run = json.loads((tmp_path / f"seed-{seed}" / "result.json").read_text())
        assert run["command"][-2:] == ["--seeds", str(seed)]
        errors.append(run["metrics"]["count_error"])
        folder = RunFolder.open(tmp_path / f"seed-{seed}")
        own = configs.loads(job.Job, folder.config_text()).factors
        assert own.training.seed == seed
        assert load_factors(folder.model_dir).config == own
        parts = ("reconstruction", "latent_divergence", "partition_divergence")
        total = sum(run["metrics"][name] for name in parts)
        assert run["metrics"]["minus_loss"] == pytest.approx(-total)
    # Whatever a model was trained with, it is judged on the same pairs.
    shown = [np.load(tmp_path / f"seed-{seed}" / ARRAYS)["grid__pairs"][:2] for seed in (0, 1)]
    assert np.array_equal(*shown)
    assert result["metrics"]["count_error"]["mean"] == pytest.approx(sum(errors) / 2)
    with pytest.raises(RunError, match=r"shared was '3' and is now '1'"):
        do(tmp_path, shared="1")


def test_own_pairs_need_no_labels_for_their_evidence(tmp_path: Path) -> None:
    images = torch.rand(2, 12, 1, 8, 8, generator=generator(0))
    pairs = OwnPairs(images[0], images[1], tuple(map(str, range(12))))
    training = TrainingConfig(epochs=1, batch_size=4, device="cpu")
    own = job.Job("own.npz", factors=FactorsConfig(latent=4, steps_per_epoch=3, training=training))
    run = job.open_job(tmp_path / "run", own)
    job.run_job(own, pairs, run, device="cpu", command=["drpm"])
    result = run.result()
    fitted = load_factors(run.model_dir)
    counts = {"mean_count", "used_dimensions", "shared_used"}
    assert set(result["metrics"]) == counts | set(Evidence._fields)
    found = measure_evidence(fitted, pairs.first, pairs.second)
    assert {name: result["metrics"][name] for name in Evidence._fields} == found._asdict()


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
    methods = ("label", "ada", "hg", "drpm", "drpm-exact")
    assert [run.folder for run in sweep.runs] == [
        f"shared-{n}/{method}" for n in (0, 1, 3, 5) for method in methods
    ]
    for run in sweep.runs:
        assert run.arguments["seeds"] == [0, 1, 2, 3, 4]
        method = run.folder.split("/")[1].removesuffix("-exact")
        assert (f"shared-{run.arguments['shared']}", run.arguments["method"]) == (
            run.folder.split("/")[0],
            method,
        )
        job.Job(run.arguments["data"], run.arguments["shared"])
