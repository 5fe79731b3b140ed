"""Studies of shared factors: what is evaluated, and which hyperparameters they choose."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from drpm.experiments.running import run_jobs, run_study
from drpm.factors import experiment
from drpm.factors.config import FactorsConfig, FactorsJob
from drpm.factors.evaluation import Evidence, estimate_evidence, evaluate_pairs
from drpm.factors.experiment import Factors
from drpm.factors.models import load_factors
from drpm.factors.pairs import OwnPairs
from drpm.report.tables import summarize_metric
from drpm.studies.sweeps import CHOSEN, RATE, RATES, RATES_METHODS, WEIGHED, WEIGHTS
from drpm.training.config import TrainingConfig
from drpm.training.devices import Devices
from drpm.training.runs import ARRAYS, RunFolder
from tests.oracles import generator

SETTINGS = [
    *("steps_per_epoch=2", "training.epochs=1", "training.batch_size=4", "latent=7"),
    *("training.device=cpu", "averaging=multi-level"),
]
OPTIONS = {"data": "arm", "shared": "3", "angles": 2, "image_size": 16, "test_pairs": 100}


@pytest.mark.usefixtures("blank_pictures")
def test_all_seeds_are_evaluated_on_the_same_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[Any] = []

    def evaluate(*given: Any) -> Any:
        codes.append(given[0])
        return evaluate_pairs(*given)

    monkeypatch.setattr(experiment, "evaluate_pairs", evaluate)
    run_study(tmp_path, "factors", "fast-factors", [0, 1], SETTINGS, OPTIONS, device="cpu")
    sampler = Factors().load(FactorsJob(**OPTIONS), torch.device("cpu"))
    pairs = sampler({"pair": torch.zeros(100)}, generator(1_000_000))
    for seed in (0, 1):
        run = RunFolder.open(tmp_path / f"seed-{seed}")
        shown = np.load(run.path / ARRAYS)["grid__pairs"][:2] / 255.0
        np.testing.assert_allclose(shown[0], pairs["first"][:8], atol=1e-6)
        np.testing.assert_allclose(shown[1], pairs["second"][:8], atol=1e-6)
        # By the codes that the model averages, which need not be their plain mean.
        found = load_factors(run.model_dir).share(pairs["first"], pairs["second"])
        torch.testing.assert_close(codes[seed], found.averaged)
        metrics = run.result()["metrics"]
        assert metrics["mean_count"] == pytest.approx(found.number.mean().item())


@pytest.mark.usefixtures("blank_pictures")
def test_own_pairs_need_no_labels_for_their_evidence(tmp_path: Path) -> None:
    pairs = OwnPairs(*torch.rand(2, 12, 1, 8, 8, generator=generator(0)))
    training = TrainingConfig(epochs=1, batch_size=4, device="cpu")
    config = FactorsConfig(latent=4, steps_per_epoch=3, training=training)
    jobs = [FactorsJob("own.npz", factors=config)]
    options = {"devices": Devices(), "command": ["drpm"]}
    (result,) = run_jobs(Factors(), jobs, pairs, [tmp_path / "run"], **options)
    model = load_factors(tmp_path / "run" / "model")
    counts = {"mean_count", "used_dimensions", "shared_used"}
    assert set(result["metrics"]) == counts | set(Evidence._fields)
    found = estimate_evidence(model, pairs.first, pairs.second)
    assert {name: result["metrics"][name] for name in Evidence._fields} == found._asdict()


# The hyperparameters of the published runs have the highest evidence in our results.

RESULTS = Path(__file__).parents[2] / "results"


def evidence(study: str) -> float:
    summary = summarize_metric(RESULTS / study, "pair_evidence")
    assert summary is not None
    return summary.mean


def test_the_learning_rate() -> None:
    means = {
        rate: fmean(evidence(f"factor-rates/{method}/rate-{rate:g}") for method in RATES_METHODS)
        for rate in RATES
    }
    assert max(means, key=means.__getitem__) == RATE


def test_the_weights() -> None:
    for method in WEIGHED:
        means = {
            weight: evidence(f"factor-weights/{method}/weight-{weight:g}") for weight in WEIGHTS
        }
        assert max(means, key=means.__getitem__) == CHOSEN[method]
