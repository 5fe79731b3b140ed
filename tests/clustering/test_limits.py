"""Size limits of labels, and the choice among several starts."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs

from drpm.clustering import DRPMClustering, pipeline
from drpm.clustering.fitted import assign
from drpm.clustering.pipeline import mutual_information
from drpm.training.runs import RunFolder
from tests.cli.commands import drpm, refusal


@pytest.mark.parametrize(
    ("low", "high"), [(2, 2), (1, 3), (None, 2), (2, None), (None, 6), (None, None)]
)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_assignment_is_the_best_of_all(low: int | None, high: int | None, scale: float) -> None:
    generator = np.random.default_rng(0)
    logits = scale * generator.normal(size=(6, 3))
    log_probs = torch.from_numpy(logits).log_softmax(-1)
    found = assign(log_probs, low, high).tolist()

    def total(labels: tuple[int, ...]) -> float:
        return float(log_probs[range(6), labels].sum())

    def meets(labels: tuple[int, ...]) -> bool:
        sizes = np.bincount(labels, minlength=3)
        return bool(sizes.min() >= (low or 0) and sizes.max() <= (high or 6))

    best = max(filter(meets, itertools.product(range(3), repeat=6)), key=total)
    assert meets(tuple(found))
    assert total(tuple(found)) == pytest.approx(total(best), rel=1e-9)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"size_min": 11}, "size_min must be at most 10, since 3 clusters share 30 rows, but got"),
        ({"size_max": 9}, "size_max must be at least 10, since 3 clusters share 30 rows, but got"),
        ({"size_min": 8, "size_max": 7}, "size_min must be at most size_max, 7, but got 8"),
        ({"size_min": 1.5}, "size_min must be an integer of at least 1, but got 1.5"),
        ({"n_init": 0}, "n_init must be an integer of at least 1, but got 0"),
    ],
)
def test_limits_that_cannot_be_met(limits: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DRPMClustering(3, max_iter=1, **limits).fit(np.random.default_rng(0).normal(size=(30, 2)))


def test_labels_meet_the_limits_and_the_best_start_is_kept() -> None:
    X, _ = make_blobs([40, 12, 8], centers=None, random_state=0)
    settings = {"max_iter": 2, "pretrain_iter": 2, "hidden": (8,), "latent_dim": 2}
    model = DRPMClustering(3, size_min=20, size_max=20, n_init=3, random_state=0, **settings)
    model.fit(X)
    assert np.bincount(model.labels_).tolist() == [20, 20, 20]
    starts = model.model_.facts["starts"]
    assert starts["kept"] == int(np.argmax(starts["figures"]))
    assert len(set(starts["figures"])) == 3
    # The kept figure is that of the fitted model: its clusters may only be in another order.
    rows = model.model_.to_rows(X)
    assert mutual_information(model.model_, rows) == pytest.approx(max(starts["figures"]), 1e-3)


def test_limits_and_starts_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = itertools.count()
    monkeypatch.setattr(pipeline, "mutual_information", lambda model, rows: float(next(figures)))
    X, y = make_blobs([40, 12, 8], centers=None, random_state=0)
    file, out = tmp_path / "blobs.csv", tmp_path / "out"
    np.savetxt(file, np.c_[X, y], delimiter=",", header="a,b,label", comments="")
    settings = ["--set", "training.epochs=1", "--set", "pretraining.training.epochs=1"]
    given = ["--compare", "--starts=2", "--min-size=15", "--max-size=25", "--device=cpu"]
    drpm("cluster", file, *given, *settings, "--out", out)
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
