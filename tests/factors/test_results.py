"""The choice of weights, from results as a folder holds them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from drpm.factors import results
from drpm.factors.results import choose_rate, choose_weight, factors_sections
from drpm.factors.sweeps import (
    CHOSEN,
    METHODS,
    RATE,
    RATES,
    SHARED,
    WEIGHED,
    WEIGHTS,
    rate_folder,
    weight_folder,
)
from drpm.training.errors import RunError
from drpm.training.summaries import Summary
from tests.training.results_folder import VERSIONS, write_json

RESULTS = Path(__file__).parents[2] / "results"

# The largest on average is that of 0.25; the largest for one seed is the last.
EVIDENCE = {
    0.0005: [-950, -951],
    0.002: [-905, -910],
    0.01: [-900, -910],
    0.05: [-890, -905],
    0.25: [-880, -882],
    1.0: [-870, -950],
}


def write(results: Path, method: str, weight: float, evidence: Sequence[float | None]) -> None:
    folder = weight_folder(method, weight)
    write_runs(results / "factor-weights" / folder, weight, evidence)


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
    # That of 1 varies so much from seed to seed that its own deviation says nothing.
    assert "The largest evidence: 0.25 for DRPM-VAE." in text
    write(tmp_path, "drpm", 0.01, [-700, -1064])
    best = "0.25 for DRPM-VAE (as good within its deviation: 0.01)"
    assert f"The largest evidence: {best}." in last_lines(tmp_path)
    write_all(tmp_path, "hg")
    write(tmp_path, "hg", 0.0005, [-1, -2])
    assert choose_weight(tmp_path, "hg") == 0.0005
    smallest = "0.0005 for HG-VAE, the smallest that was tried"
    assert f"The largest evidence: {smallest}; {best}." in last_lines(tmp_path)


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
    # As good for one method alone is not as good.
    write_runs(tmp_path / "factor-rates" / rate_folder("ada", RATES[2]), 1.0, [-881, -883])
    told = "The largest evidence: 0.001 on average over both methods"
    assert f"{told}." in page(tmp_path)
    write_runs(tmp_path / "factor-rates" / rate_folder("drpm", RATES[1]), 1.0, [-872, -872.4])
    assert f"{told} (as good within its deviation: 0.0003)." in page(tmp_path)
    assert "The largest" not in last_lines(tmp_path)


def test_the_rate_is_what_our_results_say() -> None:
    assert choose_rate(RESULTS) == RATE


def test_the_weights_are_what_our_results_say() -> None:
    assert {method: choose_weight(RESULTS, method) for method in WEIGHED} == CHOSEN


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


# How far metrics of two seeds lie to both sides of their mean, where nothing else is said.
SPREADS = {"shared_accuracy": 0.02, "independent_accuracy": 0.02}


def write_table(
    results: Path,
    spreads: Mapping[str, Mapping[str, float]] | None = None,
    **changes: dict[int, dict[str, float]],
) -> None:
    """Table 2 with the same scores everywhere, but for what is changed: by method, by n_s.

    Spreads are changed by method and metric.
    """
    for method in METHODS:
        spread = {**SPREADS, **(spreads or {}).get(method, {})}
        for shared in SHARED:
            metrics: dict[str, Any] = {
                "shared_accuracy": 0.3 if shared else None,
                "independent_accuracy": 0.3,
                "mean_count": float(shared),
                "count_error": 1.0,
                "used_dimensions": 6.0,
                "shared_used": float(shared),
                "disentanglement": 0.1,
                "mutual_information_gap": 0.1,
                **changes.get(method, {}).get(shared, {}),
            }
            for seed, side in enumerate((-1, 1)):
                moved = {
                    name: value and value + side * spread.get(name, 0.0)
                    for name, value in metrics.items()
                }
                facts = {"wall_time": 60, "device": "cpu", "versions": VERSIONS}
                run = results / "table-2" / f"shared-{shared}" / method / f"seed-{seed}"
                write_json(run / "result.json", {"metrics": moved, **facts})


def everywhere(**metrics: float) -> dict[int, dict[str, float]]:
    return {shared: dict(metrics) for shared in SHARED}


def test_the_paper_s_claims_where_they_hold(tmp_path: Path) -> None:
    many = everywhere(mean_count=9.0, shared_used=5.0, count_error=20.0)
    write_table(tmp_path, label=many, ada=many, hg={3: {"shared_accuracy": 0.29}})
    text = page(tmp_path)
    assert (
        "Of the paper's methods, DRPM-VAE is first in 7 of 7 columns, where the paper has it first "
        "or level with the first in all." in text
    )
    # It is ahead of one of them.
    assert "The exact DRPM-VAE is ahead of all the paper's methods in no column." in text
    assert "that of DRPM-VAE is above HG-VAE's for n_s = 3; in the paper it always is." in text
    for name in ("Label-VAE", "Ada-VAE"):
        assert (
            f"{name} takes more dimensions as shared than there are shared factors, by more than "
            "its deviation, for every n_s, as in the paper." in text
        )
    assert text.count("That these are 9 of 10 is its rule, and not learned.") == 1
    assert "DRPM-VAE's error is nowhere larger than HG-VAE's" in text
    assert "It is smaller than that by more than its own deviation for no n_s." in text
    assert (
        "By as much it is smaller than Label-VAE's for every n_s and than Ada-VAE's for every n_s, "
        "as in the paper." in text
    )
    assert "hardly varies for" not in text
    # The images are others, so that nothing is said of figures that are lower.
    assert "Lower than the paper" not in text.partition("### Learning rates")[0]


def test_the_paper_s_claims_where_they_do_not_hold(tmp_path: Path) -> None:
    write_table(
        tmp_path,
        # By a little, which is a tie, and by much.
        hg={1: {"shared_accuracy": 0.32}, 3: {"shared_accuracy": 0.4}, 5: {"count_error": 0.5}},
        ada={
            5: {"independent_accuracy": 0.5},
            0: {"mean_count": 1.0, "shared_used": 0.1, "count_error": 1.5},
        },
        drpm={0: {"mean_count": 4.0, "shared_used": 0.1}, 5: {"shared_used": 0.0}},
        **{"drpm-exact": {3: {"independent_accuracy": 0.31}, 5: {"independent_accuracy": 0.6}}},
    )
    text = page(tmp_path)
    assert (
        "Of the paper's methods, DRPM-VAE is first in 4 and within the first one's deviation in 1 "
        "of 7 columns" in text
    )
    assert "not in S of n_s = 3 (after HG-VAE), I of n_s = 5 (after Ada-VAE)." in text
    ahead = "I of n_s = 3 and I of n_s = 5"
    assert f"The exact DRPM-VAE is ahead of all the paper's methods in {ahead}." in text
    assert (
        "Label-VAE does not take more dimensions as shared than there are shared factors by more "
        "than its deviation; in the paper it does, for every n_s." in text
    )
    assert (
        "Ada-VAE takes more dimensions as shared than there are shared factors, by more than its "
        "deviation, for n_s = 0; in the paper it does for every n_s." in text
    )
    assert "is its rule" not in text
    assert "DRPM-VAE's error is larger than HG-VAE's for n_s = 5, which" in text
    assert (
        "smaller than Label-VAE's for no n_s and than Ada-VAE's for n_s = 0; in the paper it is "
        "for every n_s." in text
    )
    assert "Nearly all that DRPM-VAE shares hardly varies for n_s = 0, 5: there" in text
    assert "Nearly all that Ada-VAE shares hardly varies for n_s = 0: there" in text
    assert "Nearly all that HG-VAE" not in text


@pytest.mark.parametrize(
    ("ahead", "told"),
    [
        # The deviation of two seeds that lie 0.02 to both sides of their mean is 0.028.
        (0.32, "within the first one's deviation in 7 of 7 columns and first in none, where"),
        (0.4, "first in none of 7 columns, where"),
    ],
)
def test_a_method_that_is_first_nowhere(tmp_path: Path, ahead: float, told: str) -> None:
    hg = everywhere(shared_accuracy=ahead, independent_accuracy=ahead)
    del hg[0]["shared_accuracy"]
    write_table(tmp_path, hg=hg)
    assert f"Of the paper's methods, DRPM-VAE is {told}" in page(tmp_path)


def test_ties_are_decided_by_the_deviation_of_the_first(tmp_path: Path) -> None:
    ahead = {3: {"shared_accuracy": 0.34}}
    wide, narrow = {"shared_accuracy": 0.05}, {"shared_accuracy": 0.001}
    write_table(tmp_path / "wide", {"hg": wide, "drpm": narrow}, hg=ahead)
    assert "first in 6 and within the first one's deviation in 1 of" in page(tmp_path / "wide")
    write_table(tmp_path / "narrow", {"hg": narrow, "drpm": wide}, hg=ahead)
    assert "not in S of n_s = 3 (after HG-VAE)." in page(tmp_path / "narrow")


def test_the_shared_part_beside_that_of_hg(tmp_path: Path) -> None:
    hg = everywhere(shared_accuracy=0.2)
    del hg[0]["shared_accuracy"]
    write_table(tmp_path, hg=hg)
    above = "that of DRPM-VAE is above HG-VAE's for n_s = 1, 3, 5, as in the paper."
    assert above in page(tmp_path)


def test_an_error_below_that_of_hg(tmp_path: Path) -> None:
    # By more than the deviation of ours, which is 0.14, and by less.
    spreads = {"drpm": {"count_error": 0.1}}
    write_table(tmp_path, spreads, hg={3: {"count_error": 1.2}, 5: {"count_error": 1.1}})
    assert "It is smaller than that by more than its own deviation for n_s = 3." in page(tmp_path)


def test_a_number_within_its_deviation_is_no_overestimate(tmp_path: Path) -> None:
    more = everywhere(mean_count=5.2)
    write_table(tmp_path / "wide", {"ada": {"mean_count": 0.3}}, ada=more)
    few = "Ada-VAE takes more dimensions as shared than there are shared factors, by more than its "
    assert f"{few}deviation, for n_s = 0, 1, 3; in the paper" in page(tmp_path / "wide")
    write_table(tmp_path / "narrow", {"ada": {"mean_count": 0.1}}, ada=more)
    assert f"{few}deviation, for every n_s, as in the paper." in page(tmp_path / "narrow")


@pytest.mark.parametrize(("spread", "is_larger"), [(0.5, False), (0.1, True)])
def test_errors_are_compared_by_the_deviation_of_the_smaller(
    tmp_path: Path, spread: float, is_larger: bool
) -> None:
    """That of the larger one, which is the other way round, must not count."""
    own = {"count_error": spread}
    other = {"count_error": 0.6 - spread}
    ours = everywhere(count_error=1.5)
    write_table(tmp_path / "hg", {"hg": own, "drpm": other, "ada": other}, drpm=ours, ada=ours)
    assert ("DRPM-VAE's error is larger than HG-VAE's" in page(tmp_path / "hg")) == is_larger
    write_table(tmp_path / "ada", {"drpm": own, "ada": other}, ada=ours)
    told = f"than Ada-VAE's for {'every n_s' if is_larger else 'no n_s'}"
    assert told in page(tmp_path / "ada")


def test_the_figure_shows_means_with_their_deviations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(results, "draw_errors", lambda *given: shown.append(given))
    monkeypatch.setattr(results, "png", lambda figure: b"")
    write_table(tmp_path, {"hg": {"count_error": 0.25}}, hg={3: {"count_error": 4.0}})
    (figure,) = [each for section in factors_sections(tmp_path) for each in section.figures]
    figure.draw()
    ((errors, groups, _),) = shown
    assert groups == [f"n_s = {shared}" for shared in SHARED]
    assert errors["Ada-VAE"] == [Summary(1.0, 0.0)] * 4
    assert [error.mean for error in errors["HG-VAE"]] == [1.0, 1.0, 4.0, 1.0]
    assert [error.deviation for error in errors["HG-VAE"]] == pytest.approx([0.25 * 2**0.5] * 4)


def test_the_table_says_what_it_was_set_to(tmp_path: Path) -> None:
    text = page(tmp_path).partition("### How many")[0]
    assert f"HG-VAE has gamma = {CHOSEN['hg']:g};" in text
    assert "The divergence of a shared dimension counts once for all methods" in text
    assert "the divergence of both views plus 0.1, where the paper adds nothing." in text


def test_nothing_is_claimed_before_all_methods_were_run(tmp_path: Path) -> None:
    write_table(tmp_path)
    for shared in SHARED:
        for run in (tmp_path / "table-2" / f"shared-{shared}" / "hg").glob("*/result.json"):
            run.unlink()
    text = page(tmp_path)
    assert "columns, where the paper" not in text
    assert "DRPM-VAE's error is" not in text
