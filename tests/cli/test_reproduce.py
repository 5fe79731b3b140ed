"""``drpm reproduce``: a sweep from the command line, its progress, its report and its results."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drpm.studies.bounds import run_study
from drpm.training import sweeps
from drpm.training.runs import RunFolder, open_run
from drpm.training.sweeps import SweepRun
from tests.cli.commands import drpm
from tests.inline import Inline

TRAIN = f"{__name__}:train"


def train(folder: Path, fail: bool = False, device: str = "auto") -> None:
    run = open_run(folder, "", overwrite=True)
    if fail:
        raise ValueError("It was told to fail.")
    run.finish({"device": device})


def table() -> Iterator[SweepRun]:
    """The numbers of a table."""
    yield SweepRun("a/seed-0", TRAIN)
    yield SweepRun("a/seed-1", TRAIN)


def broken() -> Iterator[SweepRun]:
    """A sweep with a run that fails."""
    yield SweepRun("good", TRAIN)
    yield SweepRun("bad", TRAIN, {"fail": True})


@pytest.fixture(autouse=True)
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two sweeps that run in this process; which workers were opened."""
    found: list[Any] = []

    def open_inline(*arguments: Any) -> Inline:
        found.append(arguments)
        return Inline()

    for place in ("drpm.studies.sweeps", "drpm.cli.reproduce"):
        monkeypatch.setattr(f"{place}.SWEEPS", {"table-x": table, "broken": broken})
    for workers in ("LocalProcesses", "RayTasks"):
        monkeypatch.setattr(sweeps, workers, open_inline)
    monkeypatch.chdir(tmp_path)
    return found


run = partial(drpm, "reproduce")


def test_list() -> None:
    header, *lines = run("list").stdout.splitlines()
    assert header == "Name\tRuns\tDescription"
    assert lines[0] == "table-x\t2\tThe numbers of a table."
    entries = json.loads(run("list", "--json").stdout)
    assert entries[0] == {"name": "table-x", "runs": 2, "about": "The numbers of a table."}


def test_a_sweep_is_run_and_then_skipped() -> None:
    first = run("table-x", "--device", "cpu")
    assert "2 runs, 2 finished, 0 skipped (finished before), 0 failed." in first.stdout
    assert len(first.stderr.splitlines()) == 4
    assert first.stderr.endswith("2 of 2 runs: a/seed-1 finished\n")
    assert RunFolder.open("out/reproduce/table-x/a/seed-1").status == "finished"
    again = run("table-x")  # the device is not part of what is run
    assert "0 finished, 2 skipped (finished before), 0 failed." in again.stdout
    assert again.stderr == ""


def test_a_run_that_fails() -> None:
    result = run("broken", "--out", "here", code=1)
    assert "bad failed 2 times: It was told to fail." in result.stdout
    assert "1 of 2 runs: bad not finished: It was told to fail." in result.stderr
    assert "2 of 2 runs: bad failed, attempt 2: It was told to fail." in result.stderr
    report = json.loads(run("broken", "--out", "here", "--json", code=1).stdout)
    assert (report["name"], report["out"]) == ("broken", "here")
    assert [entry["state"] for entry in report["runs"]] == ["skipped", "failed"]


def test_options_arrive(opened: list[Any]) -> None:
    run("table-x", "--backend", "ray", "--workers", "0", "--address", "there:1", "--gpus", "0.5")
    run("table-x", "--out", "other", "--workers", "3", "--device", "cpu")
    assert opened == [(0, "there:1", 0.5), (3,)]
    for out, device in (("out/reproduce/table-x", "auto"), ("other", "cpu")):
        assert RunFolder.open(f"{out}/a/seed-0").result()["metrics"] == {"device": device}


def test_some_runs_alone() -> None:
    assert "1 finished" in run("table-x", "--only", "a/seed-1").stdout
    assert not Path("out/reproduce/table-x/a/seed-0").exists()
    # A folder of runs stands for all of them, also as a shell completes its name.
    assert "2 runs, 1 finished, 1 skipped" in run("table-x", "--only", "a/").stdout
    wrong = run("table-x", "--only", "a/seed-0", "--only", "a/sead-1", code=1)
    assert "got 'a/sead-1'; did you mean 'a/seed-1' or 'a/seed-0'?" in wrong.stderr


def test_the_bounds_study(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device must be 'cpu' for this study, but got 'cuda'"):
        run_study(tmp_path / "seed-0", 200, 0, "cuda")
    run_study(tmp_path / "seed-0", 200, 0)
    found = RunFolder.open(tmp_path / "seed-0")
    assert found.config_text() == "draws = 200\nseed = 0\n"
    metrics = found.result()["metrics"]
    assert metrics["weights = 1, scores = 1: total_mass"] == pytest.approx(1.0)
    assert (found.path / "bounds.png").exists()
