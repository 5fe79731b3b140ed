"""The study of the bounds: its numbers and its summary."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from drpm import RandomPartition
from drpm.studies import bounds
from tests.oracles import generator

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
