"""``drpm multitask``: from images with several tasks to a network, figures and a page."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drpm.experiments import summarize_results
from drpm.multitask.models import load_multitask
from drpm.multitask.networks import find_weighting
from tests.cli.commands import drpm, refusal
from tests.multitask.toys import write_few_digits

pytestmark = pytest.mark.usefixtures("blank_pictures")

SMALL = [
    *("--device=cpu", "--set=training.epochs=2", "--set=training.batch_size=20"),
    *("--set=network.channels=2,3", "--set=network.width=6", "--set=network.head=4"),
    *("--set=evaluate_every=1", "--set=train_examples=40", "--set=test_examples=10"),
]

multitask = partial(drpm, "multitask")


@pytest.fixture(autouse=True)
def digits(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    write_few_digits(tmp_path_factory.mktemp("data"), monkeypatch)


def test_two_digits(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shown = multitask(*SMALL, "--out", folder, "--noise=0.3")
    header, row, page = shown.stdout.splitlines()
    assert header.endswith("Accuracy, left\tAccuracy, right\tNeurons, left\tNeurons, right")
    cells = row.split("\t")
    assert float(cells[1]) == pytest.approx((float(cells[2]) + float(cells[3])) / 2, abs=0.001)
    assert float(cells[4]) + float(cells[5]) == pytest.approx(6)
    assert page == f"Report: {folder / 'index.html'}"
    found = json.loads((folder / "result.json").read_text())
    assert found["data"]["noise"] == 0.3
    assert found["size penalty"] == 0
    metrics = found["metrics"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    looks = [x for x in map(json.loads, lines) if "test_accuracy" in x]
    assert [(x["epoch"], x["step"]) for x in looks] == [(1, 2), (2, 4)]
    assert metrics["accuracy"] == looks[-1]["test_accuracy"]
    assert metrics["best_test_epoch_accuracy"] == max(x["test_accuracy"] for x in looks)
    best = looks[metrics["best_test_epoch"] - 1]
    assert metrics["best_test_epoch_size_right"] == best["test_sizes"][1]
    assert metrics["best_test_epoch_accuracy_right"] == best["test_accuracies"][1]
    with np.load(folder / "arrays.npz") as arrays:
        course = arrays["lines__accuracy-over-training"].T.tolist()
        assert course == [x["test_accuracies"] for x in looks]
    figures = {path.stem for path in (folder / "figures").glob("*.png")}
    courses = {"accuracy-over-training", "neurons-over-training"}
    assert figures == {"images", "accuracy", "sizes-by-task", "neurons", "curves", *courses}
    assert load_multitask(folder / "model").tasks == ("left", "right")
    # Done already: the same again.
    assert multitask(*SMALL, "--out", folder, "--noise=0.3").stdout == shown.stdout
    multitask(*SMALL, "--out", folder, "--method=uls", "--overwrite")


def test_a_mosaic(tmp_path: Path) -> None:
    shown = multitask("mosaic", *SMALL, "--out", tmp_path, "--tasks=5", "--json")
    result = json.loads(shown.stdout)
    ratios = result["data"]["noise ratios"]
    assert sorted(ratios) == pytest.approx([0, 0.225, 0.45, 0.675, 0.9])
    metrics = result["metrics"]
    assert -1 <= metrics["size_noise_correlation"] <= 1
    assert sum(metrics[f"size_task_0{task}"] for task in range(5)) == pytest.approx(6)
    with np.load(tmp_path / "arrays.npz") as arrays:
        sizes = [metrics[f"size_task_0{task}"] for task in np.argsort(ratios)]
        assert arrays["bars__sizes-by-noise"][:, 0].tolist() == sizes
        assert arrays["grid__images"].shape == (1, 6, 1, 28, 42)
    lines = multitask("mosaic", *SMALL, "--out", tmp_path, "--tasks=5").stdout.splitlines()
    assert lines[0] == "Seed\tAccuracy\tRank correlation of noise and neurons"
    assert '<th scope="col">DRPM-MTL</th>' in (tmp_path / "index.html").read_text()
    # By default one over the number of neurons.
    assert result["size penalty"] == pytest.approx(1 / 6)


def test_what_a_seed_lacks_has_no_mean() -> None:
    """As a run that an earlier version finished."""
    results = [{"metrics": {"accuracy": 0.5, "new": 1.0}}, {"metrics": {"accuracy": 0.7}}]
    found = summarize_results(results)
    assert found["accuracy"]["mean"] == pytest.approx(0.6)
    assert found["new"] is None


def test_images_of_ones_own(tmp_path: Path) -> None:
    images, run = tmp_path / "images", tmp_path / "run"
    for name, shade in (("dark", 20), ("bright", 220)):
        (images / name).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (20, 24), shade + number).save(images / name / f"{number}.png")
    options = [*SMALL, "-o", "image_size=16", "--out", run]
    shown = multitask(images, *options)
    assert "The data have a single task, 'label', so nothing is shared." in shown.stderr
    assert shown.stdout.splitlines()[0] == "Seed\tAccuracy\tAccuracy, label\tNeurons, label"
    result = json.loads((run / "result.json").read_text())
    assert result["data"]["options"] == ["image_size=16"]
    assert load_multitask(run / "model").shape == (1, 16, 16)
    assert multitask(images, *options).stdout == shown.stdout
    refused = multitask(images, *SMALL, "-o", "image_size=18", "--out", run, code=1)
    assert "different settings" in refused.stderr


def test_options_of_the_data(tmp_path: Path) -> None:
    said, named = (
        json.loads(multitask(*SMALL, x, "--json", "--out", tmp_path / x).stdout)
        for x in ("-onoise=0.9", "--noise=0.9")
    )
    assert said["metrics"] == named["metrics"]
    assert said["data"]["options"] == ["noise=0.9"]
    # As in runs of before there were options.
    assert "options" not in (tmp_path / "--noise=0.9" / "config.toml").read_text()


def test_without_torchjd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_weighting.cache_clear()
    monkeypatch.setitem(sys.modules, "torchjd", None)
    refused = refusal("multitask", *SMALL, "--method=gradient", "--out", tmp_path / "run")
    assert "pip install 'drpm[torchjd]'" in refused
    assert not (tmp_path / "run").exists()
