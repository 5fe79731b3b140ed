"""Which files of studies are collected, and where they go."""

import tarfile
from pathlib import Path

import pytest

from drpm.training.errors import RunError
from drpm.training.sweeps import collect
from tests.training.results_folder import write_study, write_variant

COLLECTED = [
    "table-1/mnist/drpm-vc/result.json",
    "table-1/mnist/drpm-vc/seed-0/config.toml",
    "table-1/mnist/drpm-vc/seed-0/result.json",
    "table-1/mnist/drpm-vc/seed-0/arrays.npz",
    "table-1/mnist/drpm-vc/seed-1/config.toml",
    "table-1/mnist/drpm-vc/seed-1/result.json",
    "table-1/mnist/gmm/result.json",
    "table-1/mnist/gmm/seed-0/config.toml",
    "table-1/mnist/gmm/seed-0/result.json",
    "table-1/drpm/noise-0.1/seed-0/config.toml",
    "table-1/drpm/noise-0.1/seed-0/result.json",
]
STUDIES = ["mnist/drpm-vc", "mnist/gmm", "drpm/noise-0.1"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Finished studies and an interrupted one, with all other files of runs."""
    folder = tmp_path / "source"
    write_study(folder / "mnist", {"drpm-vc": [0.4, 0.5], "gmm": [0.3]})
    write_variant(folder / "drpm" / "noise-0.1", [0.6, 0.7])
    (folder / "drpm" / "noise-0.1" / "seed-1" / "result.json").unlink()
    for run in folder.glob("*/*/seed-*"):
        (run / "arrays.npz").write_bytes(b"x" * 999_999)
        (run / "labels.csv").touch()
        write_study(run / "training", {})
    (folder / "drpm" / "noise-0.1" / "seed-0" / "arrays.npz").write_bytes(b"x" * 1_000_000)
    write_study(folder / "other", {"gmm": [0.1]})
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_folder_or_an_archive(source: Path, tmp_path: Path) -> None:
    target, archive = tmp_path / "results", tmp_path / "deep" / "kept.tar.gz"
    collect(source, "table-1", STUDIES[:2], target)
    (target / "benchmarks.json").touch()
    assert collect(source, "table-1", STUDIES, target) == COLLECTED
    assert files(target) == {*COLLECTED, "benchmarks.json"}
    assert collect(source, "table-1", STUDIES, archive) == COLLECTED
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    assert files(tmp_path / "unpacked") == set(COLLECTED)
    for name in COLLECTED:
        original = source / Path(name).relative_to("table-1")
        assert (target / name).read_bytes() == original.read_bytes()


def test_nothing_to_collect(source: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="contains no finished run of 'table-1' to collect"):
        collect(source, "table-1", ["stl10"], tmp_path / "results")
    assert not (tmp_path / "results").exists()
