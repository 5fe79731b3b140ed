"""The choice of weights, from results as a folder holds them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drpm.factors.results import choose_rate, choose_weight, factors_sections
from drpm.factors.sweeps import (
    CHOSEN,
    RATE,
    RATES,
    WEIGHED,
    WEIGHTS,
    rate_folder,
    weight_folder,
)
from drpm.training.errors import RunError
from tests.training.results_folder import VERSIONS, write_json

RESULTS = Path(__file__).parents[2] / "results"

# The largest on average is that of 0.25; the largest for one seed is the last.
EVIDENCE = {
    0.002: [-905, -910],
    0.01: [-900, -910],
    0.05: [-890, -905],
    0.25: [-880, -882],
    1.0: [-870, -950],
}


def write(results: Path, method: str, weight: float, evidence: Sequence[float | None]) -> None:
    write_runs(results / "factor-weights" / weight_folder(method, weight), weight, evidence)


def write_runs(study: Path, weight: float, evidence: Sequence[float | None]) -> None:
    for seed, value in enumerate(evidence):
        metrics: dict[str, Any] = {
            "pair_evidence": value,
            # Another, which is best for the last.
            "minus_loss": weight,
            "reconstruction": 850.0,
            "latent_divergence": weight,
            # What is known by labels is best for the first.
            "shared_accuracy": 1 - weight / 8,
            "independent_accuracy": 1 - weight / 8,
            "count_error": weight,
            "disentanglement": 1 - weight / 8,
        }
        facts = {"wall_time": 60, "device": "cpu", "versions": VERSIONS}
        write_json(study / f"seed-{seed}" / "result.json", {"metrics": metrics, **facts})


def write_all(results: Path, method: str) -> None:
    for weight in WEIGHTS:
        write(results, method, weight, EVIDENCE[weight])


def page(results: Path) -> str:
    return "\n".join(section.text for section in factors_sections(results))


def last_lines(results: Path) -> str:
    """What the page says of weights."""
    return page(results).split("### Weights")[1]


def test_the_largest_mean_evidence_is_chosen(tmp_path: Path) -> None:
    write_all(tmp_path, "drpm")
    assert choose_weight(tmp_path, "drpm") == 0.25
    assert choose_weight(tmp_path, "hg") is None
    text = last_lines(tmp_path)
    assert "| 0.05 | here | - | - | - | -897.500 ± 10.607 | 0.050 ± 0.000 | 2 |" in text
    assert "The largest evidence: 0.25 for DRPM-VAE." in text
    write_all(tmp_path, "hg")
    write(tmp_path, "hg", 0.05, [-1, -2])
    assert "The largest evidence: 0.05 for HG-VAE, 0.25 for DRPM-VAE." in last_lines(tmp_path)


def test_the_rate_of_the_largest_mean_evidence_is_chosen(tmp_path: Path) -> None:
    # One method does best with the first, the other with the last, both well with the second.
    evidence = {
        "ada": [[-800, -810], [-880, -882], [-990, -950]],
        "drpm": [[-999, -998], [-880, -882], [-870, -872]],
    }
    for method, found in evidence.items():
        for rate, values in zip(RATES, found, strict=True):
            assert choose_rate(tmp_path) is None
            write_runs(tmp_path / "factor-rates" / rate_folder(method, rate), 1.0, values)
    assert choose_rate(tmp_path) == RATES[1]
    assert "The largest evidence: 0.0003 on average over both methods." in page(tmp_path)
    assert "The largest" not in last_lines(tmp_path)


def test_the_table_is_set_as_our_results_say() -> None:
    """What stands in the sweep is what its own rule chooses, as soon as all candidates were run."""
    assert choose_rate(RESULTS) == RATE
    assert set(CHOSEN) == set(WEIGHED)
    for method, chosen in CHOSEN.items():
        assert choose_weight(RESULTS, method) in (None, chosen)


def test_no_choice_before_all_were_run(tmp_path: Path) -> None:
    assert "The largest" not in last_lines(tmp_path)
    write_all(tmp_path, "drpm")
    (tmp_path / "factor-weights" / "drpm" / "weight-1" / "seed-1" / "result.json").unlink()
    assert choose_weight(tmp_path, "drpm") is None
    assert "The largest" not in last_lines(tmp_path)


def test_what_came_to_nothing_is_not_chosen(tmp_path: Path) -> None:
    write_all(tmp_path, "drpm")
    write(tmp_path, "drpm", 1.0, [-1, None])
    assert choose_weight(tmp_path, "drpm") == 0.25
    for weight in WEIGHTS:
        write(tmp_path, "drpm", weight, [None, None])
    assert choose_weight(tmp_path, "drpm") is None


def test_results_without_evidence_are_refused(tmp_path: Path) -> None:
    write_all(tmp_path, "drpm")
    run = tmp_path / "factor-weights" / "drpm" / "weight-1" / "seed-1"
    write_json(run / "result.json", {"metrics": {"count_error": 1.0}})
    with pytest.raises(RunError, match="must hold the metrics pair_evidence"):
        choose_weight(tmp_path, "drpm")
