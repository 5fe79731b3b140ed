"""``drpm factors``: from a world, or from pairs of one's own, to a model, figures and a page."""

import csv
import html
import json
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from drpm.cli import app
from drpm.factors.experiment import NAMES
from drpm.factors.models import load_factors

pytestmark = pytest.mark.usefixtures("blank_pictures")

SHORT = [
    *("--device=cpu", "--set=steps_per_epoch=2", "--set=training.epochs=1"),
    "--set=training.batch_size=8",
]
SMALL = [*SHORT, "--angles=2", "--image-size=16", "--test-pairs=100"]


def factors(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["factors", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


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
    with np.load(folder / "arrays.npz") as arrays:
        assert arrays["grid__pairs"].shape == (8, 8, 3, 16, 16)
        assert arrays["grid__traversals"].shape == (7, 9, 3, 16, 16)
        assert arrays["bars__estimates"][:, 0].tolist() == [0, 1, 3, 5]
    assert load_factors(folder / "model").shape == (3, 16, 16)
    written = (folder / "index.html").read_text()
    for name in found["metrics"]:
        assert f'<th scope="row">{html.escape(NAMES[name])}</th>' in written
    # Done already: the same again, and different settings are refused.
    assert factors(*SMALL, "--out", folder, "--shared=mixed").stdout == shown.stdout
    refused = factors(*SMALL, "--out", folder, "--shared=1", code=1)
    assert "different settings (shared was 'mixed' and is now '1')" in refused.stderr
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--shared=8", "shared must be a number from 0 to 7 or 'mixed', but got '8'"),
        ("--method=vae", "method must be"),
        ("--data=nowhere", "nowhere does not exist; use arm, mpi3d, a folder"),
        ("nowhere", "nowhere does not exist; use arm, mpi3d, a folder"),
        ("''", "should contain at least two images"),
        ("arm --data=mpi3d", "data must be given once, but got 'arm' and 'mpi3d'."),
        ("--set=gama=1", "gamma"),
        ("--set=training.devices=2", "devices must be 1"),
        ("--data=pairs.npz --shared=5", "shared must be omitted for your own pairs"),
        ("--data=pairs.npz --angles=10", "angles must be omitted for your own pairs"),
        ("--data=pairs.npz --test-pairs=200", "test_pairs must be omitted for your own pairs"),
        ("--data=pairs.npz --method=label", "method must not be 'label'"),
    ],
)
@pytest.mark.usefixtures("own")
def test_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = SHORT if "pairs.npz" in arguments else SMALL
    refused = factors(*settings, *shlex.split(arguments), "--out=run", code=1)
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert not Path("run").exists()


def test_without_any_epoch(tmp_path: Path) -> None:
    shown = factors(*SMALL, "--set=training.epochs=0", "--json", "--out", tmp_path)
    assert json.loads(shown.stdout)["metrics"]["reconstruction"] > 0


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = factors(*SMALL, "--out", tmp_path, code=1)
    assert "torchrun started 2" in refused.stderr
    assert not list(tmp_path.iterdir())
