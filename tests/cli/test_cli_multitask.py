"""``drpm multitask``: from images with several tasks to a network, figures and a page."""

import json
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from drpm.cli import app
from drpm.cli.completion import MULTITASK_DATA, MULTITASK_METHODS
from drpm.multitask import sweeps
from drpm.multitask.config import Method
from drpm.multitask.fitted import load_multitask
from drpm.multitask.gradients import find_weighting
from drpm.multitask.methods import METHODS
from tests.multitask.toys import write_few_digits

SMALL = [
    *("--device=cpu", "--set=training.epochs=2", "--set=training.batch_size=20"),
    *("--set=network.channels=2,3", "--set=network.width=6", "--set=network.head=4"),
    *("--set=evaluate_every=1", "--set=train_examples=40", "--set=test_examples=10"),
]


def multitask(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["multitask", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(autouse=True)
def digits(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    write_few_digits(tmp_path_factory.mktemp("data"), monkeypatch)


def test_words() -> None:
    studies = (sweeps.noise(), sweeps.mosaic(), sweeps.celeba())
    assert set(MULTITASK_DATA) == {run.arguments["data"] for study in studies for run in study.runs}
    assert set(MULTITASK_METHODS) == set(METHODS) == set(get_args(Method))


def test_two_digits(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shown = multitask(*SMALL, "--out", folder, "--noise=0.3")
    header, row, page = shown.stdout.splitlines()
    assert header == "Seed\tAccuracy\tleft\tright\tNeurons, left\tNeurons, right"
    cells = row.split("\t")
    assert float(cells[1]) == pytest.approx((float(cells[2]) + float(cells[3])) / 2, abs=0.001)
    assert float(cells[4]) + float(cells[5]) == pytest.approx(6)
    assert page == f"Page: {folder / 'index.html'}"
    found = json.loads((folder / "result.json").read_text())
    assert found["data"]["noise"] == 0.3
    metrics = found["metrics"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    looks = [x for x in map(json.loads, lines) if "test_accuracy" in x]
    assert [x["epoch"] for x in looks] == [1, 2]
    assert metrics["accuracy"] == looks[-1]["test_accuracy"]
    assert metrics["best_test_epoch_accuracy"] == max(x["test_accuracy"] for x in looks)
    best = looks[metrics["best_test_epoch"] - 1]
    assert metrics["best_test_epoch_size_right"] == best["test_sizes"][1]
    assert metrics["best_test_epoch_accuracy_right"] == best["test_accuracies"][1]
    with np.load(folder / "arrays.npz") as arrays:
        assert arrays["grid__images"].shape == (6, 10, 1, 28, 28)
        assert arrays["bars__sizes-by-task"].sum() == pytest.approx(6)
        assert arrays["matrix__neurons"].shape == (2, 6)
        assert arrays["bars__accuracy"][:, 0].tolist() == looks[-1]["test_accuracies"]
    figures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert figures == {"images", "accuracy", "sizes-by-task", "neurons", "curves"}
    assert load_multitask(folder / "model").tasks == ("left", "right")
    # Done already: the same again, and other settings are refused.
    assert multitask(*SMALL, "--out", folder, "--noise=0.3").stdout == shown.stdout
    refused = multitask(*SMALL, "--out", folder, "--noise=0.5", code=1)
    assert "other settings (noise was 0.3 and is now 0.5)" in refused.stderr
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
        order = np.argsort(ratios)
        sizes = arrays["bars__sizes-by-task"][:, 0]
        assert arrays["bars__sizes-by-noise"][:, 0].tolist() == sizes[order].tolist()
        assert arrays["grid__images"].shape == (1, 6, 1, 28, 42)
    again = multitask("mosaic", *SMALL, "--out", tmp_path, "--tasks=5")
    assert again.stdout.splitlines()[0] == "Seed\tAccuracy\tNeurons against noise"


def test_without_any_epoch(tmp_path: Path) -> None:
    multitask(*SMALL, "--set=training.epochs=0", "--out", tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["metrics"]["best_test_epoch"] == 0


def test_several_seeds(tmp_path: Path) -> None:
    options = ["--out", tmp_path, "--method=uls", "--seeds=0,1", "--json"]
    results = json.loads(multitask(*SMALL, *options).stdout)
    assert [result["seed"] for result in results] == [0, 1]
    assert [result["folder"] for result in results] == [str(tmp_path / f"seed-{x}") for x in (0, 1)]
    for result in results:
        assert result["stacked"] == [result["seed"]]
        assert not any(name.startswith("size_") for name in result["metrics"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--method=mtl", "method must be one of"),
        ("--preset=fast", "is not a preset"),
        ("--seeds=0,0", "seeds must all differ"),
        ("--device=gpu", "device must be 'auto'"),
        ("--tasks=3", "tasks must be left out for the data 'multimnist', which has no such option"),
        ("--set=training.devices=2", "devices must be 1 for this kind of model, but got 2"),
        ("--set=network.widht=5", "network.width"),
        ("--set=task_weights=1,2,3", "task_weights must be 2, one for each task"),
        ("digits", "images must have sides of at least 16 pixels for the encoder 'lenet'"),
        ("nowhere", "There is no data set 'nowhere'"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: str, sentence: str) -> None:
    refused = multitask(*SMALL, arguments, "--out", tmp_path / "run", code=1)
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert not (tmp_path / "run").exists()


def test_options_that_other_data_has(tmp_path: Path) -> None:
    for arguments, sentence in (
        (["mosaic", "--noise=0.5"], "noise must be left out for the data 'mosaic'"),
        (["mosiac", "--tasks=5"], "There is no data set 'mosiac': did you mean mosaic"),
        ([tmp_path / "own.npy", "--tasks=5"], "tasks must be left out for the data"),
    ):
        refused = multitask(*SMALL, *arguments, "--out", tmp_path / "run", code=1)
        assert sentence in refused.stderr


def test_a_ratio_that_is_none(tmp_path: Path) -> None:
    refused = multitask(*SMALL, "--noise=2", "--out", tmp_path / "run", code=2)
    assert "expected a number from 0 to 1, but got '2'" in refused.stderr


def test_without_torchjd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_weighting.cache_clear()
    monkeypatch.setitem(sys.modules, "torchjd", None)
    refused = multitask(*SMALL, "--method=gradient", "--out", tmp_path / "run", code=1)
    (line,) = refused.stderr.splitlines()
    assert "pip install 'drpm[torchjd]'" in line
    assert not (tmp_path / "run").exists()
