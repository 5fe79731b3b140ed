"""Sweeps: every run finishes once, whatever happens to the processes that do the work."""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from drpm.training import sweeps
from drpm.training.errors import ConfigError, Interrupted, RunError
from drpm.training.runs import open_run
from drpm.training.sweeps import SWEEP, RunState, SweepRun, error_file, execute, run_sweep
from tests.inline import Inline

# The jobs. They are found by name in the workers, local ones and Ray's, so they lie in a module
# of their own that the tests write; each execution leaves a line in a diary beside the runs.
JOBS = '''
import os, signal, time
from pathlib import Path
from drpm.training.runs import open_run
from drpm.training.loop import defer_signals


def note(folder, word):
    folder.parent.mkdir(exist_ok=True)
    # Appending one short line is atomic, so that several processes can share a diary.
    with open(folder.parent / "diary.txt", "a") as diary:
        diary.write(f"{folder.name} {word}\\n")


def train(folder, tag=None, die=None, fail=0, until=None):
    """Finish the run, unless it is to die (once, of a signal) or to fail (so many times)."""
    note(folder, "begins")
    run = open_run(folder, "")
    with run.lock():
        before = len(run.metrics())
        run.log({"step": before})
        if die and not before:
            os.kill(os.getpid(), die)
        if before < fail:
            raise ValueError(f"attempt {before} went wrong\\nand this is a second line")
        while until and not Path(until).exists():
            time.sleep(0.02)
        run.finish({"lines": before + 1})
    note(folder, "finishes")


def lazy(folder):
    open_run(folder, "")


def quit(folder):
    raise SystemExit("enough")


def stoppable(folder):
    run = open_run(folder, "")
    with run.lock(), defer_signals() as signals:
        run.log({"step": 1})
        note(folder, "begins")
        if len(run.metrics()) == 1:
            while not signals:
                time.sleep(0.02)
            run.write_atomic("checkpoint/saved", b"")
            raise RuntimeError("stopped")
        run.finish({})
    note(folder, "finishes")
'''

TRAIN = "sweep_jobs:train"


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the jobs' module where this process and those it starts will find it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "sweep_jobs.py").write_text(JOBS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    before = os.environ.get("PYTHONPATH")
    paths = [str(folder), *([before] if before else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    yield folder
    sys.modules.pop("sweep_jobs", None)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "LocalProcesses", lambda *_: Inline())


def diary(out: Path, word: str = "begins") -> list[str]:
    """The runs that began (or finished), in order, once for each time they did."""
    path = out / "diary.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.split()[0] for line in lines if line.endswith(word)]


def states(found: Sequence[RunState]) -> dict[str, str]:
    return {run.folder: run.state for run in found}


def wait_until(condition: Callable[[], object], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.02)


@pytest.mark.usefixtures("inline")
def test_what_is_finished_is_skipped_and_the_rest_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = [SweepRun(name, TRAIN) for name in ("a", "b", "c")]
    open_run(tmp_path / "b", "").finish({})
    interrupted = open_run(tmp_path / "c", "")
    interrupted.log({"step": 0})
    found = run_sweep(sweep, tmp_path)
    assert states(found) == {"a": "finished", "b": "skipped", "c": "finished"}
    assert interrupted.result()["metrics"]["lines"] == 2
    assert diary(tmp_path) == ["a", "c"]
    monkeypatch.setattr(sweeps, "LocalProcesses", lambda *_: pytest.fail("a worker"))
    assert set(states(run_sweep(sweep, tmp_path)).values()) == {"skipped"}


@pytest.mark.usefixtures("inline")
def test_a_failed_run_is_retried_once_after_the_rest(tmp_path: Path) -> None:
    runs = [SweepRun("a", TRAIN, {"fail": 1}), SweepRun("b", TRAIN, {"fail": 9})]
    seen: list[tuple[str, str, str]] = []
    found = run_sweep(
        [*runs, SweepRun("c", TRAIN)],
        tmp_path,
        progress=lambda run, _: seen.append((run.folder, run.state, run.reason)),
    )
    assert diary(tmp_path) == ["a", "b", "c", "a", "b"]
    assert states(found) == {"a": "finished", "b": "failed", "c": "finished"}
    assert [run.attempts for run in found] == [2, 2, 1]
    assert ("a", "waiting", "attempt 0 went wrong.") in seen
    assert ("b", "failed", "attempt 1 went wrong.") in seen
    details = error_file(tmp_path, "b").read_text(encoding="utf-8")
    assert "Traceback" in details
    assert "attempt 1 went wrong" in details


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("job", "arguments", "reason"),
    [
        ("sweep_jobs:lazy", {}, "without a finished run in its folder."),
        ("sweep_jobs:quit", {}, "SystemExit: enough."),
        ("no_such_module:train", {}, "No module named 'no_such_module'."),
        (TRAIN, {"speed": 1}, "unexpected keyword argument 'speed'."),
    ],
)
def test_whatever_a_job_does_the_sweep_goes_on(
    tmp_path: Path, job: str, arguments: dict[str, Any], reason: str
) -> None:
    found = run_sweep([SweepRun("a", job, arguments), SweepRun("b", TRAIN)], tmp_path)
    assert states(found) == {"a": "failed", "b": "finished"}
    assert found[0].reason.endswith(reason)


SCRIPT = """
import sys
from drpm.training.sweeps import SweepRun, run_sweep
if __name__ == "__main__":
    run_sweep([SweepRun("a", "sweep_jobs:stoppable")], sys.argv[1])
"""


def test_a_killed_worker_costs_its_run_one_attempt_and_the_others_nothing(tmp_path: Path) -> None:
    # The second run goes on until the first, killed at its first attempt, is through.
    runs = [
        SweepRun("killed", TRAIN, {"die": int(signal.SIGKILL)}),
        SweepRun("beside", TRAIN, {"until": str(tmp_path / "killed" / "result.json")}),
    ]
    seen: list[RunState] = []
    found = run_sweep(runs, tmp_path, workers=2, progress=lambda state, _: seen.append(state))
    assert set(states(found).values()) == {"finished"}
    assert [run.attempts for run in found] == [2, 1]
    assert sorted(diary(tmp_path)) == ["beside", "killed", "killed"]
    (failure,) = [state for state in seen if state.reason]
    assert (failure.folder, failure.state) == ("killed", "waiting")
    assert "terminated abruptly" in failure.reason


def test_a_signal_lets_the_runs_save_and_the_same_sweep_resumes(tmp_path: Path) -> None:
    sweep = [SweepRun("a", "sweep_jobs:stoppable"), SweepRun("b", TRAIN)]

    def ask() -> None:
        wait_until(lambda: diary(tmp_path) == ["a"])
        # Not before the sweep listens: the signal would end the tests instead.
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None):
            os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(Interrupted, match="with 2 of 2 runs left; run the same") as stopped:
        run_sweep(sweep, tmp_path)
    asking.join()
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert (tmp_path / "a" / "checkpoint" / "saved").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "LocalProcesses", lambda *_: Inline())
        assert set(states(run_sweep(sweep, tmp_path)).values()) == {"finished"}


def test_workers_do_not_outlive_a_killed_sweep(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)])
    wait_until(lambda: diary(tmp_path) == ["a"])
    process.kill()
    process.wait(timeout=600)
    wait_until(lambda: "returned" in execute(tmp_path, "a", "sweep_jobs:stoppable", {}))
    assert (tmp_path / "a" / "checkpoint" / "saved").exists()


@pytest.mark.filterwarnings("ignore")  # what Ray does inside itself
def test_a_ray_cluster_that_loses_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A cluster that nobody else can use, without a token in anybody's home.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'drpm[ray]'")
    runs = [SweepRun("killed", TRAIN, {"die": int(signal.SIGKILL)}), SweepRun("other", TRAIN)]
    found = run_sweep(runs, tmp_path, backend="ray", workers=0, address="local")
    assert not ray.is_initialized()
    assert set(states(found).values()) == {"finished"}, found
    assert [run.attempts for run in found] == [2, 1]
    assert sorted(diary(tmp_path)) == ["killed", "killed", "other"]


@pytest.mark.usefixtures("inline")
def test_a_result_of_other_arguments_is_not_taken_for_finished(tmp_path: Path) -> None:
    run_sweep([SweepRun("a", TRAIN, {"tag": 0})], tmp_path)
    # Nor is it after a sweep that left this run alone.
    run_sweep([SweepRun("c", TRAIN)], tmp_path)
    assert list(json.loads((tmp_path / SWEEP).read_bytes())["runs"]) == ["a", "c"]
    with pytest.raises(RunError, match=r"'a' in .* was started with different arguments"):
        run_sweep([SweepRun("a", TRAIN, {"tag": 1})], tmp_path)
    (tmp_path / SWEEP).write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match="is not a valid sweep file"):
        run_sweep([SweepRun("a", TRAIN)], tmp_path)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"workers": -1}, "workers must be at least 0, but got -1"),
        ({"device": "cuda:99"}, "device must be available .* but got 'cuda:99'"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run_sweep([SweepRun("a", TRAIN)], tmp_path, **options)


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (None, r"needs the package ray.*pip install 'drpm\[ray\]'"),
        (Mock(init=Mock(side_effect=OSError("nobody"))), r"No Ray cluster .* there:1: .*nobody"),
    ],
)
def test_a_missing_ray_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, complaint: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", module)
    with pytest.raises(RunError, match=complaint):
        run_sweep([SweepRun("a", TRAIN)], tmp_path, backend="ray", address="there:1")
