"""Studies: runs of several seeds, summed up."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from drpm.training.errors import RunError
from drpm.training.runs import RunFolder
from drpm.training.studies import run_seeds


def finish_runs(folders: Sequence[Path]) -> None:
    """Runs of three and of five seconds."""
    for seconds, folder in zip((3.0, 5.0), folders, strict=True):
        run = RunFolder.create(folder, "x = 1\n")
        run.finish({"score": seconds}, seed=0, device="cpu", facts={}, wall_time=seconds)


@pytest.mark.parametrize(("together", "seconds"), [(True, 5.0), (False, 8.0)])
def test_the_time_of_a_study(tmp_path: Path, together: bool, seconds: float) -> None:
    folder = tmp_path / "study"
    run_seeds(folder, {"data": "some"}, [3, 7], finish_runs, device="cpu", together=together)
    result = RunFolder(folder).result()
    assert result["wall_time"] == seconds
    assert result["metrics"]["score"]["mean"] == 4.0
    assert sorted(path.name for path in folder.glob("seed-*")) == ["seed-3", "seed-7"]


def test_other_seeds_are_another_study(tmp_path: Path) -> None:
    run_seeds(tmp_path, {"data": "some"}, [3, 7], finish_runs, device="cpu")
    with pytest.raises(RunError, match="seeds was"):
        run_seeds(tmp_path, {"data": "some"}, [3, 8], finish_runs, device="cpu")
