"""The study of the bounds: its numbers, its summary and its figure."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from drpm import RandomPartition
from drpm.studies import bounds
from tests.oracles import FALSE_ALARM

DRAWS = 2_000


@pytest.fixture(scope="module")
def results() -> list[bounds.Masses]:
    return bounds.run(DRAWS, seed=0)


def test_assignments_are_distinct_and_one_hot() -> None:
    assignments = bounds.all_assignments(3, 2)
    assert assignments.shape == (8, 2, 3)
    assert (assignments.sum(-2) == 1).all()
    labels = assignments.argmax(-2).tolist()
    assert labels == sorted(labels)
    assert len({tuple(label) for label in labels}) == 8


def test_the_four_settings_of_the_paper(results: list[bounds.Masses]) -> None:
    settings = [masses.law for masses in results]
    equal = [
        (bool((setting.log_weights == 0).all()), bool((setting.log_scores == 0).all()))
        for setting in settings
    ]
    assert equal == [(True, True), (False, True), (True, False), (False, False)]
    assert torch.equal(settings[1].log_weights, settings[3].log_weights)
    assert torch.equal(settings[2].log_scores, settings[3].log_scores)


def test_masses_and_bounds(results: list[bounds.Masses]) -> None:
    for masses in results:
        assert masses.log_exact.shape == (3125,)
        assert bounds.summarize(masses).total_mass == pytest.approx(1.0, abs=1e-12)
        assert (masses.log_lower <= masses.log_exact + 1e-12).all()
        assert (masses.log_exact <= masses.log_upper + 1e-12).all()
        assert masses.counts.sum() == masses.num_draws == DRAWS
        # With equal scores all orders are equally likely.
        tight = bool((masses.law.log_scores == 0).all())
        assert torch.allclose(masses.log_upper, masses.log_exact, rtol=0, atol=1e-12) == tight


def test_draws_are_counted_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CHUNK", 300)
    law = RandomPartition(torch.zeros(2), torch.zeros(2))
    counts = bounds.count_assignments(law, 1_000, generator=torch.Generator().manual_seed(0))
    assert counts.sum() == 1_000


def test_counts_follow_the_order_of_the_assignments() -> None:
    # Element 0 comes first and takes the only place in subset 0, so the labels are (0, 1, 1).
    law = RandomPartition(
        torch.tensor([100.0, 0.0, 0.0]), torch.zeros(2), capacities=torch.tensor([1, 2])
    )
    counts = bounds.count_assignments(law, 50, generator=torch.Generator().manual_seed(0))
    assignments = bounds.all_assignments(3, 2)
    assert assignments[int(counts.argmax())].argmax(-2).tolist() == [0, 1, 1]
    assert counts.max() == 50


def test_the_draws_agree_with_the_exact_mass() -> None:
    limit, false_alarm = 7.0, 0.0
    for masses in bounds.run(40_000, seed=1):
        summary = bounds.summarize(masses)
        assert summary.num_compared > 100
        assert summary.max_standard_errors < limit
        # Counts of 10 have a heavier tail than a normal law, so the chance that one of them is
        # `limit` standard errors off is summed from the binomial laws themselves.
        exact = masses.log_exact.exp().numpy()
        exact = exact[exact * masses.num_draws >= bounds.MIN_EXPECTED_COUNT]
        law = scipy.stats.binom(masses.num_draws, exact)
        assert len(exact) == summary.num_compared
        below = law.cdf(np.ceil(law.mean() - limit * law.std()))
        above = law.sf(np.floor(law.mean() + limit * law.std()))
        false_alarm += float((below + above).sum())
    assert false_alarm < FALSE_ALARM  # 3e-5 for the four settings together


def test_the_same_seed_gives_the_same_study(results: list[bounds.Masses]) -> None:
    again, other = bounds.run(DRAWS, seed=0), bounds.run(DRAWS, seed=1)
    for first, second in zip(results, again, strict=True):
        assert torch.equal(first.counts, second.counts)
        assert torch.equal(first.log_exact, second.log_exact)
    assert not torch.equal(results[-1].log_exact, other[-1].log_exact)


def test_looseness_is_measured_in_nats() -> None:
    key, label, law = bounds.paper_settings(torch.Generator().manual_seed(0))[0]
    exact = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    gap = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    summary = bounds.summarize(
        bounds.Masses(
            key=key,
            label=label,
            law=law,
            log_exact=exact.log(),
            log_lower=exact.log() - gap,
            log_upper=exact.log() + 2 * gap,
            counts=torch.tensor([55, 30, 15]),
        )
    )
    assert summary.lower.median == pytest.approx(1.0)
    assert summary.lower.max == pytest.approx(4.0)
    assert summary.lower.expected == pytest.approx(0.3 + 0.8)
    assert summary.upper.max == pytest.approx(8.0)
    assert summary.max_standard_errors == pytest.approx(0.05 / math.sqrt(0.2 * 0.8 / 100))
    assert summary.num_compared == 3
    assert summary.num_never_drawn == 0


def test_summary_and_figure_are_written(results: list[bounds.Masses], tmp_path: Path) -> None:
    summaries = bounds.write(results, tmp_path, seed=0)
    document = json.loads((tmp_path / "bounds.json").read_text())
    assert (document["num_draws"], document["seed"]) == (DRAWS, 0)
    assert [each["key"] for each in document["settings"]] == [each.key for each in summaries]
    assert document["settings"][0]["upper"]["max"] == pytest.approx(0.0, abs=1e-12)
    assert (tmp_path / "bounds.png").read_bytes().startswith(b"\x89PNG")


def test_a_comparison_that_cannot_be_made_is_null() -> None:
    (masses, *_) = bounds.run(1, seed=0)
    assert bounds.summarize(masses).max_standard_errors is None
