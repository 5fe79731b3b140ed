"""What is kept of studies: which files, and where they go."""

import tarfile
from pathlib import Path

import pytest

from drpm.training.errors import RunError
from drpm.training.sweeps import collect
from tests.training.results_folder import write_study, write_variant

KEPT = [
    "table-1/mnist/drpm-vc/result.json",
    "table-1/mnist/drpm-vc/seed-0/config.toml",
    "table-1/mnist/drpm-vc/seed-0/result.json",
    "table-1/mnist/drpm-vc/seed-0/arrays.npz",
    "table-1/mnist/drpm-vc/seed-1/config.toml",
    "table-1/mnist/drpm-vc/seed-1/result.json",
    "table-1/mnist/gmm/result.json",
    "table-1/mnist/gmm/seed-0/config.toml",
    "table-1/mnist/gmm/seed-0/result.json",
    "table-1/fashion-mnist/drpm-vc-exact/seed-0/config.toml",
    "table-1/fashion-mnist/drpm-vc-exact/seed-0/result.json",
]
STUDIES = ["mnist/drpm-vc", "mnist/gmm", "fashion-mnist/drpm-vc-exact"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Finished studies and one that was cut off, with all that runs leave besides."""
    folder = tmp_path / "source"
    write_study(folder / "mnist", {"drpm-vc": [0.4, 0.5], "gmm": [0.3]})
    write_variant(folder / "fashion-mnist" / "drpm-vc-exact", [0.6, 0.7])
    (folder / "fashion-mnist" / "drpm-vc-exact" / "seed-1" / "result.json").unlink()
    for run in folder.glob("*/*/seed-*"):
        (run / "arrays.npz").write_bytes(b"x" * 999_999)
        (run / "labels.csv").touch()
        write_study(run / "training", {})
    large = folder / "fashion-mnist" / "drpm-vc-exact" / "seed-0" / "arrays.npz"
    large.write_bytes(b"x" * 1_000_000)
    write_study(folder / "other", {"gmm": [0.1]})
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_folder(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "results"
    assert collect(source, "table-1", STUDIES, target) == KEPT
    assert files(target) == set(KEPT)
    for name in KEPT:
        original = source / Path(name).relative_to("table-1")
        assert (target / name).read_bytes() == original.read_bytes()


def test_runs_may_lie_deeper(tmp_path: Path) -> None:
    write_variant(tmp_path / "source" / "uls" / "noise-0.1", [0.9])
    kept = collect(tmp_path / "source", "noise", ["uls"], tmp_path / "results")
    assert kept == [f"noise/uls/noise-0.1/seed-0/{name}" for name in ("config.toml", "result.json")]


def test_pictures_of_runs_that_lie_deeper(tmp_path: Path) -> None:
    for method in ("uls", "drpm"):
        folder = tmp_path / "source" / method / "noise-0.1"
        write_variant(folder, [0.9, 0.8])
        for seed in range(2):
            (folder / f"seed-{seed}" / "arrays.npz").write_bytes(b"x")
    kept = collect(tmp_path / "source", "noise", ["uls", "drpm"], tmp_path / "results")
    assert [x for x in kept if "arrays" in x] == ["noise/drpm/noise-0.1/seed-0/arrays.npz"]


def test_a_folder_keeps_what_it_has(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "results"
    collect(source, "table-1", STUDIES[:2], target)
    (target / "benchmarks.json").touch()
    collect(source, "table-1", STUDIES[2:], target)
    assert files(target) == {*KEPT, "benchmarks.json"}


def test_an_archive_unpacks_to_the_same(source: Path, tmp_path: Path) -> None:
    archive = tmp_path / "deep" / "kept.tar.gz"
    assert collect(source, "table-1", STUDIES, archive) == KEPT
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    assert files(tmp_path / "unpacked") == set(KEPT)


def test_nothing_to_collect(source: Path, tmp_path: Path) -> None:
    for studies in ([], ["stl10"]):
        with pytest.raises(RunError, match="holds no finished run of 'table-1' to collect"):
            collect(source, "table-1", studies, tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", ["file/kept.tar.gz", "file"])
def test_a_target_that_cannot_be_written(source: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="was not written, because a file is in the place"):
        collect(source, "table-1", STUDIES, tmp_path / name)
