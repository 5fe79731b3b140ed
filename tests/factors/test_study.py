"""Studies of shared factors: what is evaluated, and which hyperparameters they choose."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from drpm.data.mpi3d import FACTOR_NAMES
from drpm.experiments.running import run_study
from drpm.factors.config import FactorsJob
from drpm.factors.evaluation import evaluate_pairs
from drpm.factors.experiment import Factors
from drpm.factors.models import load_factors
from drpm.studies.results import summarize_metric
from drpm.studies.sweeps import CHOSEN, RATE, RATES, RATES_METHODS, WEIGHTS
from drpm.training.runs import ARRAYS, RunFolder
from tests.oracles import generator

RESULTS = Path(__file__).parents[2] / "results"
SETTINGS = [
    *("steps_per_epoch=2", "training.epochs=1", "training.batch_size=4", "latent=7"),
    *("training.device=cpu", "averaging=multi-level"),
]
OPTIONS = {"data": "arm", "shared": "3", "angles": 2, "image_size": 16, "test_pairs": 100}


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("which", ["fixed", "random"])
def test_all_seeds_are_evaluated_on_the_same_pairs(tmp_path: Path, which: str) -> None:
    options = {**OPTIONS, "which": which}
    run_study(tmp_path, "factors", "fast-factors", [0, 1], SETTINGS, options, device="cpu")
    sampler = Factors().load(FactorsJob(**options), torch.device("cpu"))
    pairs = sampler({"pair": torch.zeros(100)}, generator(1_000_000))
    for seed in (0, 1):
        run = RunFolder.open(tmp_path / f"seed-{seed}")
        shown = np.load(run.path / ARRAYS)["grid__pairs"][:2] / 255.0
        np.testing.assert_allclose(shown[0], pairs["first"][:8], atol=1e-6)
        np.testing.assert_allclose(shown[1], pairs["second"][:8], atol=1e-6)
        # By the codes that the model averages, which need not be their plain mean.
        found = load_factors(run.model_dir).share(pairs["first"], pairs["second"])
        known = pairs["factors"], pairs["is_shared"]
        expected = evaluate_pairs(found.averaged, found.mask, *known)._asdict()
        metrics, by_factor = run.result()["metrics"], expected.pop("by_factor")
        assert {name: metrics[name] for name in expected} == pytest.approx(expected)
        for name, values in by_factor.items():
            assert [metrics[f"{name}_{x}"] for x in FACTOR_NAMES] == pytest.approx(values)
            if which == "fixed":
                is_shared = name.startswith("shared")
                assert [x is not None for x in values] == [is_shared] * 3 + [not is_shared] * 4
        # Random is what runs without the setting have.
        assert ("which" in run.config_text()) == (which == "fixed")


def test_the_chosen_hyperparameters_have_the_highest_evidence() -> None:
    def best(study: str, values: Any, methods: Any) -> float:
        def mean(value: float) -> float:
            studies = [RESULTS / study.format(method, value) for method in methods]
            return fmean(summarize_metric(each, "pair_evidence").mean for each in studies)

        return max(values, key=mean)

    assert best("factor-rates/{}/rate-{:g}", RATES, RATES_METHODS) == RATE
    for method, chosen in CHOSEN.items():
        assert best("factor-weights/{}/weight-{:g}", WEIGHTS, [method]) == chosen
