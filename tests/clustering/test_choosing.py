"""Choosing the number of clusters: the rule, and from a table to the page of the choice."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drpm.clustering import choosing
from drpm.clustering.choosing import decide
from drpm.training.runs import RunFolder
from tests.cli.commands import drpm, refusal

SMALL = [
    "--device=cpu",
    "--set=network.encoder=16,16",
    "--set=network.decoder=16",
    "--set=network.latent=2",
    "--set=partitions=2",
    "--set=annealing_steps=12",
    "--set=weights=odds",
    "--set=pretraining.training.epochs=30",
    "--set=pretraining.training.batch_size=40",
    "--set=pretraining.training.learning_rate=1e-2",
    "--set=training.epochs=20",
    "--set=training.batch_size=40",
    "--set=training.learning_rate=1e-2",
]


@pytest.mark.parametrize(
    ("elbo", "stability", "silhouette", "votes", "agree"),
    [
        ([0, 9, 9, 8], [1, 1, 0.9, 0.8], [0.4, 0.8, 0.7, 0.6], (3, 3, 3), "3 of 3"),
        ([0, 5, 9, 8], [1, 0.9, 0.96, 0.8], [0.4, 0.8, 0.7, 0.6], (4, 4, 3), "2 of 3"),
        ([0, 5, 8, 9], [1, 0.9, 0.9, 0.8], [0.4, 0.8, 0.7, 0.6], (5, 2, 3), "1 of 3"),
    ],
)
def test_the_choice_is_the_median_of_three(
    elbo: list[float],
    stability: list[float],
    silhouette: list[float],
    votes: tuple[int, ...],
    agree: str,
) -> None:
    rows = np.random.default_rng(0).normal(size=30)  # the same for all candidates
    figures = (np.array(elbo)[:, None] + rows, np.array(stability), np.array(silhouette))
    found = decide([2, 3, 4, 5], *figures)
    assert tuple(found["votes"].values()) == votes
    assert found["taken"] == sorted(votes)[1]
    assert found["sentence"].startswith(f"{agree} figures choose {found['taken']} clusters")
    assert found["elbo"] == pytest.approx(np.array(elbo) + rows.mean())


def test_fewer_clusters_within_a_standard_error() -> None:
    """The best is ahead by 1 on average; differences of single rows deviate by 4 or by 8."""
    for deviation, taken in ((8.0, 2), (4.0, 3)):
        gaps = 1 + deviation * np.tile([-1.0, 1.0], 25)
        bounds = np.stack([-gaps, np.zeros(50)])
        votes = decide([2, 3], bounds, np.ones(2), np.ones(2))["votes"]
        assert votes == {"elbo": taken, "stability": 3, "silhouette": 2}


def test_three_groups_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirteen deviations apart; at twelve seeds of rows and training 3 was taken every time."""
    noise = np.random.default_rng(0).normal(0, 0.3, (150, 4))
    rows = 4 * np.eye(4)[np.arange(150) % 3] + noise
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,c,d", comments="")
    out = tmp_path / "out"
    command: Any = ["cluster", tmp_path / "rows.csv", "--clusters=2-4", *SMALL, "--out", out]
    fit, fitted = choosing.fit_clusterings, []

    def interrupt(data: Any, shape: Any, config: Any, starts: Any, **options: Any) -> Any:
        if config.clusters == 4 and fitted == [2, 3]:
            fitted.append(0)
            raise KeyboardInterrupt
        fitted.append(config.clusters)
        return fit(data, shape, config, starts, **options)

    monkeypatch.setattr(choosing, "fit_clusterings", interrupt)
    drpm(*command, code=128 + signal.SIGINT)
    file = out / "candidates" / "3" / "starts" / "1" / "training" / "result.json"
    before = file.read_bytes()
    result = drpm(*command)
    # The candidates of before were not trained again.
    assert fitted == [2, 3, 0, 2, 3, 4]
    assert file.read_bytes() == before
    choice = RunFolder.open(out).result()["choice"]
    assert choice["clusters"] == [2, 3, 4]
    assert choice["taken"] == 3
    assert choice["sentence"] in result.output
    assert choice["sentence"] in (out / "index.html").read_text(encoding="utf-8")
    assert (out / "figures" / "choice.png").exists()
    # The folder is also a run of the choice, on all rows.
    labels = np.genfromtxt(out / "labels.csv", delimiter=",", names=True, dtype=None)
    assert len(labels) == 150
    assert set(labels["cluster"]) == {0, 1, 2}
    predicted = tmp_path / "new.csv"
    drpm("predict", out, tmp_path / "rows.csv", "--out", predicted)


@pytest.mark.parametrize("text", ["1-3", "5-2", "4-4", "2-", "2-x", "2-3-4"])
def test_ranges_that_are_refused(tmp_path: Path, text: str) -> None:
    sentence = refusal("cluster", "digits", "--clusters", text, "--out", tmp_path / "out")
    expected = "clusters must be a number, or a range from 2 or more such as 2-12"
    assert sentence == f"{expected}, but got '{text}'."
    assert not (tmp_path / "out").exists()


def test_a_range_needs_twice_as_many_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    np.savetxt(file, np.eye(20, 2), delimiter=",", header="a,b", comments="")
    sentence = refusal("cluster", file, "--clusters", "2-11", "--out", tmp_path / "out")
    assert sentence == "clusters must be at most half of the examples, 10, but got 11."
