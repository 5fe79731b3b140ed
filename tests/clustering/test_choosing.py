"""Choices of a run: the number of clusters, the best of several starts, limits of their sizes."""

import itertools
import re
import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, silhouette_score
from torch import Tensor

from drpm.clustering import load_clustering, pipeline
from drpm.clustering.config import ClusteringJob
from drpm.clustering.experiment import describe_limits
from drpm.clustering.pipeline import choose_clusters, decide
from drpm.training.devices import Devices
from drpm.training.runs import RunFolder
from tests.cli.commands import SMALL_CLUSTERING, drpm, refusal


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
    assert found["sentence"].startswith(f"{agree} criteria choose {found['taken']} clusters")
    assert found["elbo"] == pytest.approx(np.array(elbo) + rows.mean())


def test_fewer_clusters_within_a_standard_error() -> None:
    """The best is ahead by 1 on average; differences of single rows deviate by 4 or by 8."""
    for deviation, taken in ((8.0, 2), (4.0, 3)):
        gaps = 1 + deviation * np.tile([-1.0, 1.0], 25)
        bounds = np.stack([-gaps, np.zeros(50)])
        votes = decide([2, 3], bounds, np.ones(2), np.ones(2))["votes"]
        assert votes == {"elbo": taken, "stability": 3, "silhouette": 2}


class StandIn(NamedTuple):
    """A clustering of three blobs, which are told by the first column; two starts differ."""

    count: int
    start: int

    def predict(self, rows: Tensor) -> Tensor:
        blobs = (rows[:, 0] / 10).round().long()
        halves = torch.where((blobs == 0) & (rows[:, 1 + self.start] > 0), 3, blobs)
        # The last one leaves two clusters empty, at both starts.
        return {2: (blobs > self.start).long(), 3: blobs, 4: halves, 5: blobs}[self.count]

    def embed(self, rows: Tensor) -> Tensor:
        return rows[:, : 2 + self.start]

    def lower_bounds(self, rows: Tensor) -> Tensor:
        return min(self.count, 4) + (1 + self.start) * rows[:, 1]


def test_the_figures_of_the_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = torch.linspace(-1, 1, 4)
    rows = torch.cartesian_prod(10 * torch.arange(3.0), side, side)
    seen: list[Tensor] = []

    def fit(data: Tensor, _: Any, config: Any, starts: Any, **options: Any) -> list[StandIn]:
        seen.append(data)
        return [StandIn(config.clusters, start) for start in range(len(starts))]

    monkeypatch.setattr(pipeline, "fit_clusterings", fit)
    job, given = ClusteringJob(candidates="2-5"), {"devices": Devices(torch.device("cpu"))}
    found = choose_clusters(rows, rows.shape[1:], job, tmp_path, progress=lambda _: None, **given)
    # A fifth of the rows is held out, the same for all candidates.
    assert [len(data.unique(dim=0)) for data in seen] == [39] * 4
    held_out = rows[(rows[:, None] != torch.cat(seen)).any(-1).all(1)]
    assert len(held_out) == 9
    for place, count in enumerate(found["clusters"]):
        first, second = models = [StandIn(count, start) for start in range(2)]
        elbo = np.mean([model.lower_bounds(held_out).mean() for model in models])
        stability = adjusted_rand_score(first.predict(rows), second.predict(rows)) * (count < 5)
        widths = [silhouette_score(model.embed(rows), model.predict(rows)) for model in models]
        expected = elbo, stability, np.mean(widths)
        assert [found[name][place] for name in found["votes"]] == pytest.approx(expected)
    assert found["votes"] == {"elbo": 4, "stability": 3, "silhouette": 3}
    assert found["taken"] == 3


@pytest.mark.usefixtures("blank_pictures")
def test_three_groups_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted and resumed, from the command to the page; short trainings, so any choice."""
    noise = np.random.default_rng(0).normal(0, 0.3, (150, 4))
    rows = 4 * np.eye(4)[np.arange(150) % 3] + noise
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,c,d", comments="")
    out = tmp_path / "out"
    command: Any = ["cluster", tmp_path / "rows.csv", "--clusters=2-4", *SMALL_CLUSTERING]
    command += ["--out", out]
    fit, fitted = pipeline.fit_clusterings, []

    def interrupt(data: Any, shape: Any, config: Any, starts: Any, **options: Any) -> Any:
        if config.clusters == 4 and fitted == [2, 3]:
            fitted.append(0)
            raise KeyboardInterrupt
        fitted.append(config.clusters)
        return fit(data, shape, config, starts, **options)

    monkeypatch.setattr(pipeline, "fit_clusterings", interrupt)
    drpm(*command, code=128 + signal.SIGINT)
    file = out / "candidates" / "3" / "starts" / "1" / "training" / "result.json"
    before = file.read_bytes()
    result = drpm(*command)
    # The candidates of before were not trained again; the choice is fitted to all rows.
    choice = RunFolder.open(out).result()["choice"]
    assert fitted == [2, 3, 0, 2, 3, 4, choice["taken"]]
    assert file.read_bytes() == before
    assert choice["clusters"] == [2, 3, 4]
    assert choice["taken"] == sorted(choice["votes"].values())[1]
    assert choice["sentence"] in result.output
    top = (out / "index.html").read_text(encoding="utf-8").split("<main>")[0]
    assert choice["sentence"] in top
    assert f"rows.csv: {choice['taken']} clusters, chosen from 2 to 4</h1>" in top
    assert (out / "figures" / "choice.png").exists()
    # The folder is also a run of the choice, on all rows.
    labels = np.genfromtxt(out / "labels.csv", delimiter=",", names=True, dtype=None)
    assert len(labels) == 150
    assert set(labels["cluster"]) <= set(range(choice["taken"]))


@pytest.mark.usefixtures("blank_pictures")
def test_limits_and_starts_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = itertools.count()
    monkeypatch.setattr(pipeline, "neighbor_agreement", lambda *_: float(next(figures)))
    X, y = make_blobs([40, 12, 8], centers=None, random_state=0)
    file, out = tmp_path / "blobs.csv", tmp_path / "out"
    np.savetxt(file, np.c_[X, y], delimiter=",", header="a,b,label", comments="")
    settings = ["--set", "training.epochs=1", "--set", "pretraining.training.epochs=1"]
    given = ["--compare", "--starts=2", "--min-size=15", "--max-size=25", "--device=cpu"]
    shown = drpm("cluster", file, *given, *settings, "--out", out).output
    result = RunFolder.open(out).result()
    assert result["starts"]["kept"] == 1
    # The other methods start from the pretraining that was kept.
    kept = (out / "starts" / "1" / "pretraining" / "config.toml").read_bytes()
    assert (out / "others" / "vade" / "pretraining" / "config.toml").read_bytes() == kept
    assert {"DRPM-VC", "VaDE", "k-means"} <= set(result["comparison"])
    # Scores and figures are those of the labels that meet the limits.
    labels = np.genfromtxt(out / "labels.csv", delimiter=",", names=True, dtype=None)["cluster"]
    sizes = np.bincount(labels, minlength=3)
    assert sizes.min() >= 15
    assert sizes.max() <= 25
    found = load_clustering(out / "model").to(torch.float64)
    moved = (found.predict(found.to_rows(X)).numpy() != labels).sum()
    assert moved == result["limits"]["moved"] > 1  # 7 to 22 with 12 seeds
    sentence = f"{moved} of 60 rows were reassigned to meet the size limits 15"
    top = (out / "index.html").read_text(encoding="utf-8").split("<main>")[0]
    assert all(sentence in text for text in (shown, top))
    one = describe_limits(torch.arange(9) == 4, 3, None)["sentence"]
    assert re.fullmatch(r"1 of 9 rows was reassigned .* the size limit of at least 3\.", one)
    assert "only to the rows" in drpm("predict", out, file, "--out", tmp_path / "new.csv").output
    confusion = np.zeros((3, 3), int)
    np.add.at(confusion, (y, labels), 1)
    with np.load(out / "arrays.npz") as arrays:
        assert arrays["confusion"].tolist() == confusion.tolist()
    for limits, sentence in {
        ("--clusters=3", "--min-size=21"): "min_size must be at most 20",
        # Two clusters could not meet what five could.
        ("--clusters=2-5", "--max-size=14"): "max_size must be at least 30",
    }.items():
        assert refusal("cluster", file, *limits, "--out", tmp_path / "new").startswith(sentence)


@pytest.mark.parametrize("text", ["1-3", "5-2", "4-4", "2-", "2-x", "2-3-4"])
def test_ranges_that_are_refused(tmp_path: Path, text: str) -> None:
    sentence = refusal("cluster", "digits", "--clusters", text, "--out", tmp_path / "out")
    assert re.fullmatch(rf"clusters must be a number, or a range .*, but got '{text}'\.", sentence)
    assert not (tmp_path / "out").exists()


def test_a_range_needs_twice_as_many_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    np.savetxt(file, np.eye(20, 2), delimiter=",", header="a,b", comments="")
    sentence = refusal("cluster", file, "--clusters", "2-11", "--out", tmp_path / "out")
    assert sentence == "clusters must be at most half of the examples, 10, but got 11."
