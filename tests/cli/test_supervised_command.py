"""``drpm supervised``: what it says, and what it leaves beside the model."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from drpm.cli import app
from drpm.data.types import Dataset, Split
from drpm.supervised import pipeline
from drpm.supervised.pipeline import Selection

SMALL = ["--device=cpu", "--set=hidden=4", "--set=training.epochs=1", "--set=training.batch_size=8"]


def supervised(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["supervised", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(autouse=True)
def two_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of that name, which says of every element two things."""
    parts = [
        Split(
            torch.rand(count, 3),
            {"left": torch.arange(count) % 2, "right": torch.arange(count) % 3},
        )
        for count in (24, 12)
    ]
    found = Dataset("two", *parts, {"left": ("a", "b"), "right": ("c", "d", "e")})
    from drpm.data import load

    def loaded(name: str, **options: Any) -> Dataset:
        return found if name == "two" else load(name, **options)

    monkeypatch.setattr("drpm.data.load", loaded)


def test_which_target_is_learnt(tmp_path: Path) -> None:
    shown = supervised("two", *SMALL, "--out", tmp_path / "left")
    assert "Learning 'left'; --target chooses another of the targets left, right." in shown.stderr
    chosen = supervised("two", *SMALL, "--target=right", "--out", tmp_path / "right", "--json")
    assert "Learning" not in chosen.stderr
    result = json.loads(chosen.stdout)
    assert result["data"]["target"] == "right"
    lines = (tmp_path / "right" / "labels.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in lines[1:4]] == ["c", "d", "e"]
    # Part of what the run is.
    refused = supervised("two", *SMALL, "--out", tmp_path / "right", code=1)
    assert "other settings" in refused.stderr
    refused = supervised("two", *SMALL, "--target=up", "--out", tmp_path / "up", code=1)
    assert refused.stderr == "error: target must be one of 'left', 'right', but got 'up'.\n"
    assert not (tmp_path / "up").exists()


@pytest.mark.parametrize(
    ("kept", "shown"), [([0.5, 0.5], "0.5"), ([0.5, 0.001], "0.5, 0.001")], ids=["one", "two"]
)
def test_the_weight_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[float], shown: str
) -> None:
    """On a CPU every seed chooses for itself."""
    left = iter(kept)
    monkeypatch.setattr(
        pipeline, "select", lambda *_: Selection(next(left), 2, {0.5: [0.3], 0.001: [0.2]})
    )
    arguments = ["two", *SMALL, "--set=size_weights=0.5,0.001", "--seeds=0,1", "--out", tmp_path]
    lines = supervised(*arguments).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines[:4]] == ["Seed", "0", "1", "mean"]
    assert f"Weight of sizes, as chosen on 2 elements held out: {shown}" in lines
    # Programs read it in the results.
    found = json.loads(supervised(*arguments, "--json").stdout)
    assert [result["selection"]["size_weight"] for result in found] == kept


def test_the_page_speaks_as_the_terminal(tmp_path: Path) -> None:
    """Names that people know, and what they were warned of."""
    arguments = ["two", *SMALL, "--set=training.batch_size=100", "--out", tmp_path]
    shown = supervised(*arguments)
    (warning,) = [line for line in shown.stderr.splitlines() if line.startswith("warning: ")]
    assert "there are 24 elements to learn from" in warning
    page = (tmp_path / "index.html").read_text()
    assert warning.removeprefix("warning: ") in page
    for heading in shown.stdout.splitlines()[0].split("\t")[1:]:
        assert f">{heading}<" in page
    for key in ("f1", "accuracy", "size_error"):
        assert f">{key}<" not in page


def test_paths_are_told_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever folder it is called from, all of them are whole."""
    monkeypatch.chdir(tmp_path)
    lines = supervised("two", *SMALL, "--out", "run").stdout.splitlines()
    folder = tmp_path.resolve() / "run"
    assert f"Page: {folder / 'index.html'}" in lines
    assert f"Labels: {folder / 'labels.csv'}" in lines


def test_the_files_of_images(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for kind in ("dark", "light"):
        (tmp_path / "own" / kind).mkdir(parents=True)
        for number in range(8):
            pixels = generator.integers(0, 100, (4, 4)) + (150 if kind == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "own" / kind / f"{number}.png")
    supervised(tmp_path / "own", *SMALL, "--out", tmp_path / "run")
    with (tmp_path / "run" / "labels.csv").open() as file:
        told = list(csv.DictReader(file))
    assert [line["file"] for line in told] == [
        f"{kind}/{number}.png" for kind in ("dark", "light") for number in range(8)
    ]
    assert all(line["file"].startswith(line["class"]) for line in told)
    assert {line["subset"] for line in told} <= {"dark", "light"}
    assert sorted(line["split"] for line in told) == ["test"] * 3 + ["train"] * 13
