"""Studies of shared factors: all methods, all seeds, and again after a kill."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from drpm.cli import app
from drpm.experiments.running import run_jobs
from drpm.experiments.studies import run_study
from drpm.factors.config import FactorsConfig, FactorsJob
from drpm.factors.evaluation import Evidence, measure_evidence
from drpm.factors.experiment import Factors
from drpm.factors.models import load_factors
from drpm.factors.pairs import OwnPairs
from drpm.studies.sweeps import find
from drpm.training import config as configs
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.errors import RunError
from drpm.training.runs import ARRAYS, RunFolder
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
    options = {"devices": Devices(), "command": ["drpm"]}
    (result,) = run_jobs(Factors(), jobs, pairs, [tmp_path / "run"], **options)
    fitted = load_factors(tmp_path / "run" / "model")
    counts = {"mean_count", "used_dimensions", "shared_used"}
    assert set(result["metrics"]) == counts | set(Evidence._fields)
    found = measure_evidence(fitted, pairs.first, pairs.second)
    assert {name: result["metrics"][name] for name in Evidence._fields} == found._asdict()


def test_the_table() -> None:
    sweep = find("table-2")
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
        assert options["test_pairs"] == 15_000
        FactorsJob(**options)
