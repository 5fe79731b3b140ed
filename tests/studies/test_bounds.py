"""The study of the bounds: its numbers, its summary and its figure."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

from drpm import RandomPartition
from drpm.studies import bounds
from tests.oracles import FALSE_ALARM, generator

DRAWS = 2_000


def test_the_four_settings_of_the_paper() -> None:
    settings = list(bounds.paper_settings(generator()).values())
    equal = [
        (bool((setting.log_weights == 0).all()), bool((setting.log_scores == 0).all()))
        for setting in settings
    ]
    assert equal == [(True, True), (False, True), (True, False), (False, False)]
    assert torch.equal(settings[1].log_weights, settings[3].log_weights)
    assert torch.equal(settings[2].log_scores, settings[3].log_scores)


def test_bounds_hold() -> None:
    for law in bounds.paper_settings(generator()).values():
        table = bounds.measure(law, DRAWS, generator())
        assert len(table) == 3125
        assert table["count"].sum() == DRAWS
        assert bounds.summarize(table)["total_mass"] == pytest.approx(1.0, abs=1e-12)
        assert (table["lower"] <= table["exact"] + 1e-12).all()
        assert (table["exact"] <= table["upper"] + 1e-12).all()
        # With equal scores all orders are equally likely.
        tight = bool((law.log_scores == 0).all())
        assert np.allclose(table["upper"], table["exact"], rtol=0, atol=1e-12) == tight


def test_counts_follow_the_order_of_the_assignments() -> None:
    # Element 0 comes first: it is in the first subset unless that is empty.
    law = RandomPartition(torch.tensor([100.0, 0.0, 0.0]), torch.tensor([1.0, 0.0]))
    table = bounds.measure(law, 500, generator())
    possible = [True, True, True, True, False, False, False, True]  # labels 000 to 111
    assert ((table["count"] > 0) == possible).all()
    assert ((table["exact"] > -50) == possible).all()


def test_the_draws_agree_with_the_exact_probability() -> None:
    limit, draws, false_alarm = 7.0, 40_000, 0.0
    for law in bounds.paper_settings(generator(1)).values():
        table = bounds.measure(law, draws, generator(2))
        summary = bounds.summarize(table)
        assert summary["num_compared"] > 100
        assert summary["max_standard_errors"] < limit
        # Counts of 10 have a heavier tail than a normal distribution, so the chance that one of
        # them is `limit` standard errors off is summed from the binomials themselves.
        exact = np.exp(table["exact"].to_numpy())
        exact = exact[exact * draws >= bounds.MIN_EXPECTED_COUNT]
        counts = scipy.stats.binom(draws, exact)
        assert len(exact) == summary["num_compared"]
        below = counts.cdf(np.ceil(counts.mean() - limit * counts.std()))
        above = counts.sf(np.floor(counts.mean() + limit * counts.std()))
        false_alarm += float((below + above).sum())
    assert false_alarm < FALSE_ALARM  # 3e-5 for the four settings together


def test_looseness_is_measured_in_nats() -> None:
    exact, gap = np.log([0.5, 0.3, 0.2]), np.array([0.0, 1.0, 4.0])
    table = pd.DataFrame({"exact": exact, "lower": exact - gap, "upper": exact + 2 * gap})
    summary = bounds.summarize(table.assign(count=[55, 30, 15]))
    assert summary["lower"] == pytest.approx({"median": 1.0, "max": 4.0, "expected": 1.1})
    assert summary["upper"]["max"] == pytest.approx(8.0)
    assert summary["max_standard_errors"] == pytest.approx(0.05 / math.sqrt(0.2 * 0.8 / 100))
    assert (summary["num_compared"], summary["num_never_drawn"]) == (3, 0)
    # One draw is too few to compare.
    assert bounds.summarize(table.assign(count=[1, 0, 0]))["max_standard_errors"] is None


def test_summary_and_figure_are_written(tmp_path: Path) -> None:
    document = bounds.run(tmp_path, DRAWS, seed=0)
    written = json.loads((tmp_path / "bounds.json").read_text())
    assert written == document == bounds.run(tmp_path, DRAWS, seed=0)
    assert (written["num_draws"], written["seed"]) == (DRAWS, 0)
    assert (tmp_path / "bounds.png").read_bytes().startswith(b"\x89PNG")
