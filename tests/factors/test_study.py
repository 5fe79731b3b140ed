"""Studies of shared factors: all methods, all seeds, and again after a kill."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from drpm.cli import app
from drpm.experiments.running import open_runs, run_jobs
from drpm.experiments.studies import digest_settings, run_study
from drpm.factors import sweeps
from drpm.factors.config import FactorsConfig, FactorsJob
from drpm.factors.experiment import Factors
from drpm.factors.fitted import Evidence, load_factors, measure_evidence
from drpm.factors.own_pairs import OwnPairs
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.errors import RunError
from drpm.training.loop import learning_rate
from drpm.training.runs import ARRAYS, RunFolder
from drpm.training.sweeps import SweepRun
from tests.oracles import generator

SETTINGS = [
    *("steps_per_epoch=2", "training.epochs=1", "training.batch_size=4", "latent=7"),
    "training.device=cpu",
]


def do(folder: Path, seeds: Sequence[int] = (0, 1), **changes: Any) -> None:
    options = {"data": "arm", "shared": "3", "angles": 2, "image_size": 32, "test_pairs": 100}
    run_study(
        folder,
        "factors",
        "fast-factors",
        list(seeds),
        SETTINGS,
        {**options, **changes},
        device="cpu",
    )


@pytest.mark.usefixtures("blank_pictures")
def test_a_study_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Factors.evaluate

    def interrupt(self: Factors, job: FactorsJob, *given: Any) -> Any:
        if job.seed == 1:
            raise KeyboardInterrupt
        return evaluate(self, job, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Factors, "evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            do(tmp_path)
    before = (tmp_path / "seed-0" / "result.json").read_bytes()
    do(tmp_path)
    assert (tmp_path / "seed-0" / "result.json").read_bytes() == before
    result = json.loads((tmp_path / "result.json").read_text())
    errors = []
    for seed in (0, 1):
        folder = RunFolder.open(tmp_path / f"seed-{seed}")
        run = folder.result()
        errors.append(run["metrics"]["count_error"])
        own = configs.loads(FactorsJob, folder.config_text()).factors
        assert own.training.seed == seed
        assert load_factors(folder.model_dir).config == own
        parts = ("reconstruction", "latent_divergence", "partition_divergence")
        total = sum(run["metrics"][name] for name in parts)
        assert run["metrics"]["minus_loss"] == pytest.approx(-total)
    # All models are evaluated on the same pairs.
    shown = [np.load(tmp_path / f"seed-{seed}" / ARRAYS)["grid__pairs"][:2] for seed in (0, 1)]
    assert np.array_equal(*shown)
    assert result["metrics"]["count_error"]["mean"] == pytest.approx(sum(errors) / 2)
    with pytest.raises(RunError, match=r"shared was '3' and is now '1'"):
        do(tmp_path, shared="1")
    # The recorded command repeats the runs.
    run = RunFolder.open(tmp_path / "seed-1")
    command = [*run.result()["command"][1:], "--out", str(tmp_path / "again")]
    assert CliRunner().invoke(app, command).exit_code == 0
    again = RunFolder.open(tmp_path / "again" / "seed-1")
    assert again.config_text() == run.config_text()


@pytest.mark.usefixtures("blank_pictures")
def test_own_pairs_need_no_labels_for_their_evidence(tmp_path: Path) -> None:
    images = torch.rand(2, 12, 1, 8, 8, generator=generator(0))
    pairs = OwnPairs(images[0], images[1], tuple(map(str, range(12))))
    training = TrainingConfig(epochs=1, batch_size=4, device="cpu")
    config = FactorsConfig(latent=4, steps_per_epoch=3, training=training)
    jobs = [FactorsJob("own.npz", factors=config)]
    runs = open_runs(Factors(), jobs, [tmp_path / "run"], devices=Devices())
    (result,) = run_jobs(Factors(), jobs, pairs, runs, devices=Devices(), command=["drpm"])
    fitted = load_factors(runs[0].model_dir)
    counts = {"mean_count", "used_dimensions", "shared_used"}
    assert set(result["metrics"]) == counts | set(Evidence._fields)
    found = measure_evidence(fitted, pairs.first, pairs.second)
    assert {name: result["metrics"][name] for name in Evidence._fields} == found._asdict()


def test_the_table() -> None:
    sweep = sweeps.table_2()
    methods = ("label", "ada", "hg", "drpm", "drpm-exact")
    assert [run.folder for run in sweep.runs] == [
        f"shared-{n}/{method}" for n in (0, 1, 3, 5) for method in methods
    ]
    for run in sweep.runs:
        assert run.arguments["seeds"] == [0, 1, 2, 3, 4]
        method = run.folder.split("/")[1].removesuffix("-exact")
        options = run.arguments["options"]
        assert f"shared-{options['shared']}" == run.folder.split("/")[0]
        assert f"method={method}" in run.arguments["settings"]
        FactorsJob(**options)


def test_the_weights() -> None:
    sweep = sweeps.factor_weights()
    assert [run.folder for run in sweep.runs] == [
        f"{method}/weight-{weight}"
        for method in ("hg", "drpm", "drpm-exact")
        for weight in (0.0005, 0.002, 0.01, 0.05, 0.25, 1)
    ]
    for run in sweep.runs:
        method, weight = run.folder.split("/weight-")
        training = replace(TABLE, epochs=10, decay_every=8)
        changes: dict[str, Any] = {"training": training, **VARIANTS[method]}
        changes["gamma" if method == "hg" else "delta"] = float(weight)
        assert settings_of(run, "mixed", [0, 1]) == replace(PAPER, **changes)


def test_the_rates() -> None:
    sweep = sweeps.factor_rates()
    assert [run.folder for run in sweep.runs] == [
        f"{method}/rate-{rate}"
        for method in ("ada", "drpm")
        for rate in ("0.0001", "0.0003", "0.001")
    ]
    for run in sweep.runs:
        method, rate = run.folder.split("/rate-")
        training = replace(PAPER.training, epochs=10, learning_rate=float(rate))
        assert settings_of(run, "mixed", [0, 1]) == replace(
            PAPER, training=training, shared_divergence="twice", **VARIANTS[method]
        )


def test_the_last_fifth_is_taken_at_the_rate_of_the_paper() -> None:
    assert [learning_rate(TABLE, epoch) for epoch in (0, 11)] == [1e-3, 1e-3]
    for epoch in (12, 14):
        assert learning_rate(TABLE, epoch) == pytest.approx(PAPER.training.learning_rate)


def test_the_settings_of_the_table() -> None:
    for run in sweeps.table_2().runs:
        shared, method = run.folder.removeprefix("shared-").split("/")
        changes: dict[str, Any] = {"training": TABLE, **VARIANTS[method]}
        if method in sweeps.CHOSEN:
            changes["gamma" if method == "hg" else "delta"] = sweeps.CHOSEN[method]
        assert run.arguments["options"]["test_pairs"] == 15_000
        assert settings_of(run, shared, [0, 1, 2, 3, 4]) == replace(PAPER, **changes)


VARIANTS: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in ("label", "ada", "hg", "drpm")},
    "drpm-exact": {"method": "drpm", "objective": "exact"},
}
PAPER = presets.load(FactorsConfig, "paper-factors")
TABLE = replace(
    PAPER.training,
    epochs=15,
    learning_rate=1e-3,
    learning_rate_decay=0.1,
    decay_every=12,
    step="compile",
)


def settings_of(run: SweepRun, shared: str, seeds: list[int]) -> FactorsConfig:
    """What a run of a sweep is trained with, as its arguments have it."""
    arguments, options = run.arguments, run.arguments["options"]
    assert (options["data"], options["shared"]) == ("arm", shared)
    assert arguments["seeds"] == seeds
    found = configs.override(PAPER, arguments["settings"])
    assert found.steps_per_epoch == 1000
    assert arguments["config"] == digest_settings(found)
    return found
