"""The hyperparameters of the published runs: those with the highest evidence in our results."""

from pathlib import Path
from statistics import fmean

from drpm.report.tables import summarize_metric
from drpm.studies.sweeps import CHOSEN, RATE, RATES, RATES_METHODS, WEIGHED, WEIGHTS

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
