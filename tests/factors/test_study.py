"""Studies of shared factors: all methods, all seeds, and again after a kill."""

import json
from pathlib import Path
from typing import Any

import pytest

from drpm.factors import job, study, sweeps
from drpm.factors.study import run_study
from drpm.training.errors import ConfigError, RunError

SETTINGS = [
    *("steps_per_epoch=2", "training.epochs=1", "training.batch_size=4", "latent=7"),
    "training.device=cpu",
]


def do(folder: Path, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "data": "arm",
        "shared": "3",
        "methods": ["ada", "drpm"],
        "preset": "fast-factors",
        "seeds": [0, 1],
        "settings": SETTINGS,
        "angles": 2,
        "test_pairs": 100,
        "device": "cpu",
    }
    run_study(folder, **{**arguments, **changes})


def test_killed_between_methods_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    original = study.do_jobs

    def dying(jobs: Any, *arguments: Any, **options: Any) -> Any:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(jobs[0].factors.method)
        return original(jobs, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(study, "do_jobs", dying)
        with pytest.raises(KeyboardInterrupt):
            do(tmp_path)
    assert done == ["ada"]
    do(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert list(result["metrics"]) == ["ada", "drpm"]
    for method in ("ada", "drpm"):
        errors = []
        for seed in (0, 1):
            run = json.loads((tmp_path / method / f"seed-{seed}" / "result.json").read_text())
            assert run["stacked"] == [0, 1]
            errors.append(run["metrics"]["count_error"])
        summary = result["metrics"][method]["count_error"]
        assert summary["mean"] == pytest.approx(sum(errors) / 2)
    with pytest.raises(RunError, match=r"shared was '3' and is now '1'"):
        do(tmp_path, shared="1")


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="methods and seeds must be one or more that differ"):
        do(tmp_path, seeds=[0, 0])


def test_the_table() -> None:
    sweep = sweeps.table_2()
    assert [run.folder for run in sweep.runs] == [f"shared-{n}" for n in (0, 1, 3, 5)]
    for run in sweep.runs:
        assert run.arguments["seeds"] == [0, 1, 2, 3, 4]
        assert set(run.arguments["methods"]) == {"label", "ada", "hg", "drpm"}
        job.Job(run.arguments["data"], run.arguments["shared"])
