"""``drpm reproduce``: what it runs, shows, writes and answers with."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from drpm.cli import app
from drpm.cli.sweep_progress import follow
from drpm.studies import sweeps as studies
from drpm.training import sweep_running, sweeps
from drpm.training.runs import RunFolder
from drpm.training.sweep_running import RunState
from drpm.training.sweeps import Sweep, SweepRun
from tests.inline import Inline


def train(folder: Path, fail: bool = False, device: str = "auto") -> None:
    run = RunFolder.create(folder, "", overwrite=True)
    if fail:
        raise ValueError("It was told to fail.")
    run.finish({"device": device})


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A table of two runs and one that fails, done in this process; what workers are opened."""
    opened: list[Any] = []

    def open_inline(*arguments: Any) -> Inline:
        opened.append(arguments)
        return Inline()

    def table() -> Sweep:
        """The numbers of a table."""
        return Sweep("table-x", (SweepRun("a/seed-0", train), SweepRun("a/seed-1", train)))

    def broken() -> Sweep:
        return Sweep("broken", (SweepRun("good", train), SweepRun("bad", train, {"fail": True})))

    monkeypatch.setattr(sweeps, "SWEEPS", {"table-x": table, "broken": broken})
    monkeypatch.setattr("drpm.cli.reproduce.SOURCES", ())  # no real ones beside them
    monkeypatch.setattr(sweep_running, "open_backend", open_inline)
    monkeypatch.chdir(tmp_path)
    return opened


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "200"})
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    return result


def test_list() -> None:
    header, *lines = run("list").stdout.splitlines()
    assert header == "Name\tRuns\tWhat it is"
    assert lines == ["table-x\t2\tThe numbers of a table.", "broken\t2\t"]
    entries = json.loads(run("list", "--json").stdout)
    assert entries[0] == {"name": "table-x", "runs": 2, "about": "The numbers of a table."}


def test_a_sweep_is_run_and_then_skipped(tmp_path: Path) -> None:
    first = run("table-x")
    assert first.exit_code == 0, first.output
    assert first.stdout.splitlines() == [
        "table-x: 2 runs, 2 finished, 0 skipped (finished before), 0 failed.",
        "Runs: out/reproduce/table-x",
    ]
    assert first.stderr.splitlines() == [
        "0 of 2 runs: a/seed-0 running",
        "1 of 2 runs: a/seed-0 finished in 0:00:00",
        "1 of 2 runs: a/seed-1 running",
        "2 of 2 runs: a/seed-1 finished in 0:00:00",
    ]
    assert RunFolder.open("out/reproduce/table-x/a/seed-1").status == "finished"
    again = run("table-x")
    assert "0 finished, 2 skipped (finished before), 0 failed." in again.stdout
    assert again.stderr == ""


def test_a_run_that_fails(tmp_path: Path) -> None:
    result = run("broken", "--out", "here")
    assert result.exit_code == 1
    assert "bad failed 2 times: It was told to fail." in result.stdout
    assert "1 of 2 runs: bad failed, will be retried: It was told to fail." in result.stderr
    assert "2 of 2 runs: bad failed, attempt 2: It was told to fail." in result.stderr
    report = json.loads(run("broken", "--out", "here", "--json").stdout)
    assert (report["name"], report["out"]) == ("broken", str(tmp_path / "here"))
    assert report["exit_status"] == 1
    assert [entry["state"] for entry in report["runs"]] == ["skipped", "failed"]


def test_options_arrive(registry: list[Any]) -> None:
    run("table-x", "--backend", "ray", "--workers", "0", "--address", "there:1", "--gpus", "0.5")
    run("table-x", "--out", "other", "--workers", "3", "--device", "cpu")
    assert registry == [("ray", None, "there:1", 0.5), ("local", 3, None, None)]
    for out, device in (("out/reproduce/table-x", "auto"), ("other", "cpu")):
        assert RunFolder.open(f"{out}/a/seed-0").result()["metrics"] == {"device": device}


def test_a_device_is_no_part_of_what_is_run() -> None:
    assert run("table-x", "--device", "cpu").exit_code == 0
    assert "2 skipped" in run("table-x").stdout


def test_some_runs_alone() -> None:
    assert "1 finished" in run("table-x", "--only", "a/seed-1").stdout
    assert not Path("out/reproduce/table-x/a/seed-0").exists()
    both = run("table-x", "--only", "a/seed-1", "--only", "a/seed-0")
    assert "2 runs, 1 finished, 1 skipped" in both.stdout
    # A folder of runs stands for all of them, also as a shell completes its name.
    for folder in ("a", "a/"):
        assert "2 runs, 0 finished, 2 skipped" in run("table-x", "--only", folder).stdout


def test_only_what_there_is() -> None:
    wrong = run("table-x", "--only", "a/seed-0", "--only", "a/sead-1")
    assert wrong.exit_code == 1
    assert wrong.stderr == (
        "error: only must be a run of the sweep 'table-x', but got 'a/sead-1'; "
        "did you mean 'a/seed-1' or 'a/seed-0'?\n"
    )
    nothing_near = run("table-x", "--only", "zzz")
    assert "got 'zzz'; there are 'a', 'a/seed-0', 'a/seed-1'." in nothing_near.stderr
    assert not Path("out").exists()


def test_results_are_collected_without_a_run(registry: list[Any]) -> None:
    none = run("table-x", "--collect", "results")
    assert none.exit_code == 1
    assert "out/reproduce/table-x holds no finished run of 'table-x' to collect" in none.stderr
    run("table-x", "--out", "here")
    del registry[:]
    kept = run("table-x", "--out", "here", "--only", "a/seed-1", "--collect", "results")
    assert kept.stdout == "Collected: 2 files in results\n"
    assert Path("results/table-x/a/seed-1/result.json").exists()
    as_json = run("table-x", "--out", "here", "--collect", "kept.tar.gz", "--json")
    files = [
        f"table-x/a/seed-{seed}/{name}"
        for seed in (0, 1)
        for name in ("result.json", "config.toml")
    ]
    assert json.loads(as_json.stdout) == {"target": "kept.tar.gz", "files": files}
    assert registry == []


# The studies, and real processes.


def test_the_bounds_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "SWEEPS", {"bounds": studies.bounds})
    monkeypatch.setattr(studies, "DRAWS", 200)
    result = run("bounds", "--out", "here")
    assert result.exit_code == 0, result.output
    found = RunFolder.open("here/seed-0")
    assert found.config_text() == "draws = 200\nseed = 0\n"
    metrics = found.result()["metrics"]
    assert metrics["equal_weights_equal_scores"]["total_mass"] == pytest.approx(1.0)
    assert len(list(found.figures_dir.glob("*.png"))) == 5
    document = json.loads((found.path / "bounds.json").read_text())
    assert document["num_draws"] == 200


SLOW = """
import time
from drpm.training import sweeps
from drpm.training.runs import RunFolder
from drpm.training.signals import StopRequest

@sweeps.register("slow")
def slow():
    return sweeps.Sweep("slow", [sweeps.SweepRun("a", "slow_sweep:train")])

def train(folder):
    run = RunFolder.create(folder, "", overwrite=True)
    with run.lock(), StopRequest() as stop:
        run.log({"step": 1})
        while stop.signal is None:
            time.sleep(0.02)
        raise RuntimeError("stopped")
"""


def test_a_signal_stops_it_with_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "slow_sweep.py").write_text(SLOW, encoding="utf-8")
    main = "from drpm import cli; cli.reproduce.SOURCES = ['slow_sweep']; cli.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", main, "reproduce", "slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    begun = tmp_path / "out" / "reproduce" / "slow" / "a" / "metrics.jsonl"
    end = time.monotonic() + 600
    while not begun.exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "1 left; run the same command again to resume." in out
    assert "Traceback" not in errors


# What people see on a terminal.


def test_a_terminal_gets_a_bar_and_is_left_clean() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with follow("table-x", console) as progress:
        progress(RunState("a", "running", 1), 0, 2)
        progress(RunState("b", "failed", 2, "The disk is full."), 1, 2)
        progress(RunState("c", "in use"), 1, 2)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "table-x" in text
    assert "1 of 2 runs: b failed, attempt 2: The disk is full." in text
    assert "c is in use by another process" in text
