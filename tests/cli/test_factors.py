"""``drpm factors``: from a world, or from pairs of one's own, to a model, figures and a page."""

import csv
import json
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from drpm.factors.experiment import NAMES
from drpm.factors.models import load_factors
from tests.cli.commands import drpm

pytestmark = pytest.mark.usefixtures("blank_pictures")

SHORT = [
    *("--device=cpu", "--set=steps_per_epoch=2", "--set=training.epochs=1"),
    "--set=training.batch_size=8",
]
SMALL = [*SHORT, "--angles=2", "--image-size=16", "--test-pairs=100"]

factors = partial(drpm, "factors")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    images = generator.random((2, 12, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "pairs.npz", first=images[0], second=images[1])
    return tmp_path / "pairs.npz"


def test_a_world(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shown = factors(*SMALL, "--out", folder, "--shared=mixed")
    header, row, page = shown.stdout.splitlines()
    assert header == "Seed\tShared\tIndependent\tCount error\tCount\tEvidence"
    assert len(row.split("\t")) == 6
    assert page == f"Report: {folder / 'index.html'}"
    found = json.loads((folder / "result.json").read_text())
    assert found["data"]["shared"] == "mixed"
    assert found["metrics"]["count_error"] >= 0
    assert found["names"] == NAMES
    assert NAMES.keys() <= found["metrics"].keys()
    assert load_factors(folder / "model").shape == (3, 16, 16)
    assert found["metrics"]["shared_accuracy_object_color"] is not None
    # Done already: the same again.
    assert factors(*SMALL, "--out", folder, "--shared=mixed").stdout == shown.stdout
    factors(*SMALL, "--out", folder, "--shared=1", "--method=label", "--overwrite")


def test_own_pairs(tmp_path: Path, own: Path) -> None:
    factors("--data", own, *SHORT, "--out", tmp_path / "run", "--seeds=0,1")
    for seed in (0, 1):
        folder = tmp_path / "run" / f"seed-{seed}"
        with (folder / "pairs.csv").open() as file:
            rows = list(csv.reader(file))
        assert rows[0] == ["pair", "shared", *(f"dimension {i}" for i in range(7))]
        assert len(rows) == 13
        assert all(int(row[1]) == sum(map(int, row[2:])) for row in rows[1:])
        assert json.loads((folder / "result.json").read_text())["seed"] == seed
        settings = tomllib.loads((folder / "config.toml").read_text())
        assert not {"shared", "angles", "image_size", "test_pairs"} & set(settings)


def test_sizes_of_images(tmp_path: Path) -> None:
    images = np.zeros((2, 4, 24, 20), np.uint8)
    np.savez(tmp_path / "wide.npz", first=images[0], second=images[1])
    run = ["--data", tmp_path / "wide.npz", *SHORT, "--out", tmp_path / "run"]
    refused = factors(*run, code=1)
    assert "a side of 8, 16, 32 or 64 pixels, but got 24 x 20" in refused.stderr
    assert not (tmp_path / "run").exists()
    refused = factors(*run, "--image-size=20", code=1)
    assert "image_size must be one of 8, 16, 32, 64, but got 20." in refused.stderr
    # Refused for a size, the same folder takes another.
    factors(*run, "--image-size=8")
    assert load_factors(tmp_path / "run" / "model").shape == (1, 8, 8)


def test_without_any_epoch(tmp_path: Path) -> None:
    shown = factors(*SMALL, "--set=training.epochs=0", "--json", "--out", tmp_path)
    assert json.loads(shown.stdout)["metrics"]["reconstruction"] > 0


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = factors(*SMALL, "--out", tmp_path, code=1)
    assert "torchrun started 2" in refused.stderr
    assert not list(tmp_path.iterdir())
