"""Sweeps: every run finishes once, whatever happens to the processes that do the work."""

import dataclasses
import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drpm.training import sweep_running, sweeps
from drpm.training.backends import LocalProcesses, Outcome, sentence
from drpm.training.errors import ConfigError, InUse, RunError, memory_refusal
from drpm.training.runs import RunFolder
from drpm.training.sweep_ledger import SWEEP, Ledger, RunState
from drpm.training.sweep_running import SweepReport, run_sweep
from drpm.training.sweep_worker import claim, execute
from drpm.training.sweeps import Sweep, SweepRun, find, register
from tests.inline import Inline

# The jobs. They are found by name in the workers, local ones and Ray's, so they lie in a module
# of their own that the tests write; each execution leaves a line in a diary beside the runs.
JOBS = '''
import os, signal, time
from pathlib import Path
from drpm.training.runs import RunFolder
from drpm.training.signals import StopRequest


def note(folder, word):
    folder.parent.mkdir(exist_ok=True)
    # Appending one short line is atomic, so that several processes can share a diary.
    with open(folder.parent / "diary.txt", "a") as diary:
        diary.write(f"{folder.name} {word}\\n")


def begin(folder):
    try:
        return RunFolder.open(folder)
    except Exception:
        return RunFolder.create(folder, "seed = 1\\n")


def train(folder, seconds=0.0, die=None, fail=0, until=None):
    """Finish the run, unless it is to die (once, of a signal) or to fail (so many times)."""
    note(folder, "begins")
    run = begin(folder)
    with run.lock():
        before = len(run.metrics())
        run.log({"step": before})
        if die and not before:
            os.kill(os.getpid(), die)
        if before < fail:
            raise ValueError(f"attempt {before} went wrong\\nand this is a second line")
        time.sleep(seconds)
        while until and not Path(until).exists():
            time.sleep(0.02)
        run.finish({"lines": before + 1})
    note(folder, "finishes")


def meet(folder):
    """Go on only once a second run is going on."""
    note(folder, "begins")
    while (folder.parent / "diary.txt").read_text().count("begins") < 2:
        time.sleep(0.02)
    begin(folder).finish({})
    note(folder, "finishes")


def greedy(folder):
    note(folder, "begins")
    raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB. Process 1 has 1 GiB in use.")


def lazy(folder):
    begin(folder)


def quit(folder):
    raise SystemExit("enough")


def stoppable(folder):
    run = begin(folder)
    with run.lock(), StopRequest() as stop:
        run.log({"step": 1})
        note(folder, "begins")
        if len(run.metrics()) == 1:
            while stop.signal is None:
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
    monkeypatch.setattr(sweep_running, "_open", lambda *_: Inline())
    monkeypatch.setattr(sweep_running, "RECHECK", 0.02)


def grid(*runs: SweepRun) -> Sweep:
    return Sweep("grid", runs)


def diary(out: Path, word: str = "begins") -> list[str]:
    """The runs that began (or finished), in order, once for each time they did."""
    path = out / "diary.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.split()[0] for line in lines if line.endswith(word)]


def states(report: SweepReport) -> dict[str, str]:
    return {run.folder: run.state for run in report.runs}


def wait_until(condition: Callable[[], object], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.02)


def is_claimed(out: Path, run: SweepRun) -> bool:
    try:
        with claim(out, run):
            return False
    except InUse:
        return True


# What is run, and how often.


@pytest.mark.usefixtures("inline")
def test_what_is_finished_is_skipped_and_the_rest_is_run(tmp_path: Path) -> None:
    sweep = grid(*[SweepRun(name, TRAIN) for name in ("a", "b", "c")])
    RunFolder.create(tmp_path / "b", "").finish({})
    report = run_sweep(sweep, tmp_path)
    assert states(report) == {"a": "finished", "b": "skipped", "c": "finished"}
    assert diary(tmp_path) == ["a", "c"]
    assert report.exit_status == 0
    assert report.summary() == "grid: 3 runs, 2 finished, 1 skipped (finished before), 0 failed."
    again = run_sweep(sweep, tmp_path)
    assert set(states(again).values()) == {"skipped"}
    assert diary(tmp_path) == ["a", "c"]


def test_parts_of_a_sweep_that_are_done_side_by_side(tmp_path: Path) -> None:
    """Each writes the same file, and neither forgets what the other entered."""
    one, two = (SweepRun(name, TRAIN, {"x": name}) for name in ("a", "b"))
    first, second = (Ledger(grid(run), tmp_path, None) for run in (one, two))
    first.start(one)
    second.start(two)
    second.set(two, "failed")
    first.set(one, "elsewhere")
    entries = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    found = {entry["folder"]: (entry["state"], entry["arguments"]) for entry in entries}
    assert found == {"a": ("elsewhere", {"x": "a"}), "b": ("failed", {"x": "b"})}


def test_a_finished_sweep_starts_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder.create(tmp_path / "a", "").finish({})
    monkeypatch.setattr(sweep_running, "_open", lambda *_: pytest.fail("a worker was started"))
    assert len(run_sweep(grid(SweepRun("a", TRAIN)), tmp_path).skipped) == 1


@pytest.mark.usefixtures("inline")
def test_what_was_cut_off_is_continued(tmp_path: Path) -> None:
    cut = RunFolder.create(tmp_path / "a", "")
    cut.log({"step": 0})
    assert cut.status == "cut off"
    report = run_sweep(grid(SweepRun("a", TRAIN)), tmp_path)
    assert states(report) == {"a": "finished"}
    assert cut.result()["metrics"]["lines"] == 2


@pytest.mark.usefixtures("inline")
def test_a_failed_run_is_tried_once_more_after_the_rest(tmp_path: Path) -> None:
    runs = [SweepRun("a", TRAIN, {"fail": 1}), SweepRun("b", TRAIN), SweepRun("c", TRAIN)]
    report = run_sweep(grid(*runs), tmp_path)
    assert diary(tmp_path) == ["a", "b", "c", "a"]
    assert set(states(report).values()) == {"finished"}
    assert [run.attempts for run in report.runs] == [2, 1, 1]
    assert report.exit_status == 0
    assert not report.runs[0].reason


@pytest.mark.usefixtures("inline")
def test_a_run_too_large_for_the_memory_fails_as_others_do(tmp_path: Path) -> None:
    runs = [SweepRun("a", "sweep_jobs:greedy"), SweepRun("b", TRAIN)]
    report = run_sweep(grid(*runs), tmp_path)
    assert diary(tmp_path) == ["a", "b", "a"]
    assert states(report) == {"a": "failed", "b": "finished"}
    assert report.failed[0].attempts == 2
    assert report.failed[0].reason == (
        "There is not enough memory for it (CUDA out of memory. Tried to allocate 2 GiB)."
    )


class Crowded(Inline):
    """Begins four calls at once, and has memory for fewer.

    Arguments:
        memory: How many there is memory for.
        large: The calls there is never memory for.
    """

    def __init__(self, memory: int, large: str = "") -> None:
        super().__init__()
        self.memory, self.large = memory, large
        self.begun: dict[str, tuple[Any, ...]] = {}
        self.at_once: list[str] = []

    def has_room(self) -> bool:
        return len(self.begun) < 4

    def start(self, key: str, call: Callable[..., Outcome], *arguments: Any) -> None:
        self.begun[key] = (call, *arguments)

    def collect(self, timeout: float) -> list[tuple[str, Outcome]]:
        self.at_once.append("".join(self.begun))
        starved = [key for key in self.begun if key in self.large]
        if len(self.begun) > self.memory:
            starved.append(next(reversed(self.begun)))
        if starved:
            del self.begun[starved[0]]
            return [(starved[0], Outcome("starved", "There is no memory."))]
        key = next(iter(self.begun))
        call, *arguments = self.begun.pop(key)
        return [(key, call(*arguments))]


def crowd(
    pool: Crowded, runs: Sequence[SweepRun], out: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SweepReport, list[RunState]]:
    told: list[RunState] = []
    monkeypatch.setattr(sweep_running, "_open", lambda *_: pool)
    report = run_sweep(grid(*runs), out, progress=lambda run, *_: told.append(run))
    return report, told


def test_runs_that_find_no_memory_beside_others_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Crowded(2)
    runs = [SweepRun(name, TRAIN, {"fail": int(name == "d")}) for name in "abcdef"]
    report, told = crowd(pool, runs, tmp_path, monkeypatch)
    assert set(states(report).values()) == {"finished"}
    # As many as there is memory for, once that is known; "d" has a failure of its own besides.
    assert pool.at_once == ["abcd", "abce", "abcf", "abc", "ab", "bd", "de", "ed", "df", "fc", "c"]
    assert [run.attempts for run in report.runs] == [1, 1, 2, 3, 2, 2]
    reasons = {run.reason for run in told if run.state == "waiting" and run.folder != "d"}
    assert reasons == {
        "Beside 3 others: There is no memory.",
        "Beside 2 others: There is no memory.",
    }


def test_runs_that_are_too_large_hold_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Crowded(4, large="ab")
    report, _ = crowd(pool, [SweepRun(name, TRAIN) for name in "abcdefgh"], tmp_path, monkeypatch)
    assert "".join(run.folder for run in report.failed) == "ab"
    assert len(report.finished) == 6
    # Four at once for as long as there are others to do, and the large ones alone in the end.
    assert pool.at_once[2:5] == ["cdef", "defg", "efgh"]
    assert pool.at_once[-1] == pool.at_once[-2] == "b"
    assert sum(line.count("a") for line in pool.at_once[2:]) <= 4


class TooManyAtOnce(Crowded):
    """Tells of all calls that found no memory at the same time."""

    def collect(self, timeout: float) -> list[tuple[str, Outcome]]:
        if len(self.begun) <= self.memory:
            return super().collect(timeout)
        self.at_once.append("".join(self.begun))
        starved = [(key, Outcome("starved", "There is no memory.")) for key in self.begun]
        self.begun.clear()
        return starved


def test_runs_that_take_the_memory_from_each_other_are_no_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = TooManyAtOnce(1)
    report, _ = crowd(pool, [SweepRun(name, TRAIN) for name in "abcdef"], tmp_path, monkeypatch)
    assert set(states(report).values()) == {"finished"}
    assert pool.at_once == ["abcd", "ef", *"abcdef"]


def test_memory_that_is_not_shared_is_a_runs_own_affair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Crowded(4, large="a")
    pool.shares_memory = False
    report, _ = crowd(pool, [SweepRun(name, TRAIN) for name in "abc"], tmp_path, monkeypatch)
    assert states(report) == {"a": "failed", "b": "finished", "c": "finished"}
    assert report.runs[0].attempts == 2


@pytest.mark.usefixtures("inline")
def test_a_run_that_fails_twice_is_given_up_and_the_rest_goes_on(tmp_path: Path) -> None:
    runs = [SweepRun("a", TRAIN, {"fail": 9}), SweepRun("b", TRAIN)]
    report = run_sweep(grid(*runs), tmp_path)
    assert diary(tmp_path) == ["a", "b", "a"]
    assert states(report) == {"a": "failed", "b": "finished"}
    assert report.failed[0].reason == "attempt 1 went wrong."
    assert report.exit_status == 1
    summary = report.summary().splitlines()
    assert summary[0].endswith("1 finished, 0 skipped (finished before), 1 failed.")
    assert summary[1] == "a failed 2 times: attempt 1 went wrong."
    details = Path(summary[2].partition("details: ")[2]).read_text(encoding="utf-8")
    assert "Traceback" in details
    assert "attempt 1 went wrong" in details
    # Its attempts start afresh when the sweep is run again.
    assert run_sweep(grid(*runs), tmp_path).failed[0].attempts == 2


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("job", "arguments", "reason"),
    [
        ("sweep_jobs:lazy", {}, "returned without finishing the run."),
        ("sweep_jobs:quit", {}, "SystemExit: enough."),
        ("sweep_jobs:absent", {}, "has no attribute 'absent'."),
        ("no_such_module:train", {}, "No module named 'no_such_module'."),
        (TRAIN, {"speed": 1}, "unexpected keyword argument 'speed'."),
    ],
)
def test_whatever_a_job_does_the_sweep_goes_on(
    tmp_path: Path, job: str, arguments: dict[str, Any], reason: str
) -> None:
    report = run_sweep(grid(SweepRun("a", job, arguments), SweepRun("b", TRAIN)), tmp_path)
    assert states(report) == {"a": "failed", "b": "finished"}
    assert report.failed[0].reason.endswith(reason)


@pytest.mark.usefixtures("inline")
def test_a_folder_that_cannot_be_claimed_fails_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    (tmp_path / sweeps.CLAIMS / "a" / ".lock").mkdir(parents=True)
    report = run_sweep(grid(SweepRun("a", TRAIN), SweepRun("b", TRAIN)), tmp_path)
    assert states(report) == {"a": "failed", "b": "finished"}
    assert "cannot be written" in report.failed[0].reason


# Several at once.


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_run_in_use_elsewhere_is_taken_when_it_is_let_go(tmp_path: Path, by_hand: bool) -> None:
    run = SweepRun("a", TRAIN)
    cut = RunFolder.create(tmp_path / "a", "")
    held = cut.lock() if by_hand else claim(tmp_path, run)
    seen = []

    def follow(state: RunState, settled: int, total: int) -> None:
        seen.append((state.folder, state.state))
        if state.folder == "b" and state.state == "finished":
            held.__exit__(None, None, None)

    held.__enter__()
    report = run_sweep(grid(run, SweepRun("b", TRAIN)), tmp_path, progress=follow)
    assert seen[0] == ("a", "elsewhere")
    assert diary(tmp_path) == ["b", "a"]
    assert [state.attempts for state in report.runs] == [1, 1]
    assert set(states(report).values()) == {"finished"}


@pytest.mark.usefixtures("inline")
def test_a_run_that_another_process_finishes_is_skipped(tmp_path: Path) -> None:
    run = SweepRun("a", TRAIN)

    def follow(state: RunState, settled: int, total: int) -> None:
        if state.state == "elsewhere":
            RunFolder.create(tmp_path / "a", "").finish({})
            held.__exit__(None, None, None)

    held = claim(tmp_path, run)
    held.__enter__()
    report = run_sweep(grid(run), tmp_path, progress=follow)
    assert states(report) == {"a": "skipped"}
    assert diary(tmp_path) == []


def test_the_worker_looks_again_under_its_claim(tmp_path: Path) -> None:
    run = SweepRun("a", TRAIN)
    with claim(tmp_path, run):
        assert execute(tmp_path, run).kind == "busy"
    assert execute(tmp_path, run).kind == "finished"
    assert execute(tmp_path, run).kind == "skipped"
    assert diary(tmp_path) == ["a"]


SCRIPT = """
import sys
from drpm.training.sweep_running import run_sweep
from drpm.training.sweeps import Sweep, SweepRun
if __name__ == "__main__":
    job, out, *folders = sys.argv[1:]
    sweep = Sweep("grid", [SweepRun(folder, job) for folder in folders])
    report = run_sweep(sweep, out)
    print(report.summary())
    sys.exit(report.exit_status)
"""


def sweep_process(out: Path, job: str, *folders: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, job, str(out), *folders]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_share_a_sweep(tmp_path: Path) -> None:
    folders = [f"run-{number}" for number in range(12)]
    job = "sweep_jobs:meet"
    other = sweep_process(tmp_path, job, *folders)
    report = run_sweep(grid(*[SweepRun(folder, job) for folder in folders]), tmp_path)
    text, _ = other.communicate(timeout=600)
    assert (report.exit_status, other.returncode) == (0, 0), text
    assert report.finished
    assert len(report.finished) + len(report.skipped) == len(folders)
    assert sorted(diary(tmp_path)) == sorted(folders)
    assert sorted(diary(tmp_path, "finishes")) == sorted(folders)


# Processes that die.


def test_a_killed_worker_costs_its_run_one_attempt_and_the_others_nothing(tmp_path: Path) -> None:
    # The second run goes on until the first, killed at its first attempt, is through.
    runs = [
        SweepRun("killed", TRAIN, {"die": int(signal.SIGKILL)}),
        SweepRun("beside", TRAIN, {"until": str(tmp_path / "killed" / "result.json")}),
        SweepRun("after", TRAIN),
    ]
    reasons = []

    def follow(state: RunState, settled: int, total: int) -> None:
        if state.reason:
            reasons.append((state.folder, state.state, state.reason))

    report = run_sweep(grid(*runs), tmp_path, workers=2, progress=follow)
    assert set(states(report).values()) == {"finished"}
    assert [run.attempts for run in report.runs] == [2, 1, 1]
    assert sorted(diary(tmp_path)) == ["after", "beside", "killed", "killed"]
    assert sorted(diary(tmp_path, "finishes")) == ["after", "beside", "killed"]
    assert reasons == [("killed", "waiting", "Its worker process died (exit code SIGKILL(-9)).")]


def test_a_signal_lets_the_runs_save_and_the_same_sweep_goes_on(tmp_path: Path) -> None:
    sweep = grid(SweepRun("a", "sweep_jobs:stoppable"), SweepRun("b", TRAIN))

    def ask() -> None:
        wait_until(lambda: diary(tmp_path) == ["a"])
        # Not before the sweep listens: the signal would end the tests instead.
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None):
            os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    report = run_sweep(sweep, tmp_path)
    asking.join()
    assert states(report) == {"a": "cut off", "b": "waiting"}
    assert report.exit_status == 128 + signal.SIGTERM
    assert "2 left; the same command goes on." in report.summary()
    assert (tmp_path / "a" / "checkpoint" / "saved").exists()
    content = json.loads((tmp_path / SWEEP).read_bytes())
    assert [run["state"] for run in content["runs"]] == ["cut off", "waiting"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_running, "_open", lambda *_: Inline())
        assert set(states(run_sweep(sweep, tmp_path)).values()) == {"finished"}


def test_workers_do_not_outlive_a_killed_sweep(tmp_path: Path) -> None:
    process = sweep_process(tmp_path, "sweep_jobs:stoppable", "a")
    wait_until(lambda: diary(tmp_path) == ["a"])
    process.kill()
    process.communicate(timeout=600)
    run = SweepRun("a", "sweep_jobs:stoppable")
    wait_until(lambda: execute(tmp_path, run).kind == "finished")
    assert (tmp_path / "a" / "checkpoint" / "saved").exists()


def test_a_worker_that_dies_while_idle_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Executor:
        def __init__(self, broken: bool) -> None:
            self.broken = broken

        def submit(self, *_: Any) -> "Future[Outcome]":
            if self.broken:
                raise BrokenExecutor
            future: Future[Outcome] = Future()
            future.set_result(Outcome("finished"))
            return future

    pool = LocalProcesses(1)
    pool._idle.append(Executor(broken=True))
    monkeypatch.setattr(pool, "_new", lambda: Executor(broken=False))
    pool.start("a", Outcome, "finished")
    assert pool.collect(1.0) == [("a", Outcome("finished"))]


def test_no_idle_worker_holds_memory_that_a_call_did_not_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Executor:
        alive = True

        def submit(self, *given: Any) -> "Future[Outcome]":
            future: Future[Outcome] = Future()
            future.set_result(given[-1])
            return future

        def shutdown(self, **_: Any) -> None:
            self.alive = False

    made: list[Executor] = []

    def new() -> Executor:
        made.append(Executor())
        return made[-1]

    pool = LocalProcesses(3)
    monkeypatch.setattr(pool, "_new", new)
    for key in "ab":
        pool.start(key, Outcome, Outcome("finished"))
    pool.collect(1.0)
    assert [executor.alive for executor in made] == [True, True]
    pool.start("c", Outcome, Outcome("starved"))
    pool.collect(1.0)
    pool.start("d", Outcome, Outcome("finished"))
    pool.collect(1.0)
    assert len(made) == 3
    assert not any(executor.alive for executor in made)


@pytest.mark.filterwarnings("ignore")  # what Ray does inside itself
def test_a_ray_cluster_that_loses_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # A cluster that nobody else can use, without a token in anybody's home.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    pytest.importorskip("ray", reason="ray is not installed: pip install 'drpm[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    memory = 80 * 2**20
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": memory}
    )
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=memory) for _ in range(2)]
        cluster.wait_for_nodes()
        folders = [f"run-{number}" for number in range(6)]
        # No run ends before a node is gone, so that one of the first two is lost with it.
        gone = tmp_path / "gone"
        runs = [SweepRun(folder, TRAIN, {"until": str(gone)}) for folder in folders]
        lost: list[str] = []

        def follow(state: RunState, settled: int, total: int) -> None:
            if state.state == "running" and state.folder == folders[-1]:
                wait_until(lambda: len(diary(tmp_path)) == 2)
                cluster.remove_node(nodes[0], allow_graceful=False)
                # Its worker notices a little later; were it let go before, it would finish.
                wait_until(lambda: sum(is_claimed(tmp_path, run) for run in runs) == 1)
                gone.touch()
            if state.reason:
                lost.append(state.reason)

        report = run_sweep(
            grid(*runs),
            tmp_path,
            backend="ray",
            workers=None,
            address=cluster.address,
            progress=follow,
        )
        assert not ray.is_initialized()
    finally:
        cluster.shutdown()
    assert set(states(report).values()) == {"finished"}, report.summary()
    assert lost == ["Its worker or the node it was on died."]
    assert sorted(run.attempts for run in report.runs) == [1, 1, 1, 1, 1, 2]
    assert sorted(diary(tmp_path, "finishes")) == folders
    assert len(diary(tmp_path)) == len(folders) + 1


# What is written and what is refused.


@pytest.mark.usefixtures("inline")
def test_sweep_json_is_whole_at_every_change(tmp_path: Path) -> None:
    seen = []

    def follow(state: RunState, settled: int, total: int) -> None:
        content = json.loads((tmp_path / SWEEP).read_bytes())
        entry = next(run for run in content["runs"] if run["folder"] == state.folder)
        assert entry.pop("arguments") == {"fail": 1}
        assert entry == dataclasses.asdict(state)
        seen.append((state.state, state.attempts, settled, total))

    run_sweep(grid(SweepRun("deep/a", TRAIN, {"fail": 1})), tmp_path, progress=follow)
    assert seen == [
        ("running", 1, 0, 1),
        ("waiting", 1, 0, 1),
        ("running", 2, 0, 1),
        ("finished", 2, 1, 1),
    ]


@pytest.mark.usefixtures("inline")
def test_a_result_of_other_arguments_is_not_taken_for_finished(tmp_path: Path) -> None:
    run_sweep(grid(SweepRun("a", TRAIN, {"seconds": 0.0})), tmp_path)
    with pytest.raises(RunError, match=r"'a' in .* was begun with other arguments"):
        run_sweep(grid(SweepRun("a", TRAIN, {"seconds": 0.1})), tmp_path)
    # Nor is it after a sweep that left this run alone.
    run_sweep(grid(SweepRun("c", TRAIN)), tmp_path)
    folders = [run["folder"] for run in json.loads((tmp_path / SWEEP).read_bytes())["runs"]]
    assert sorted(folders) == ["a", "c"]
    with pytest.raises(RunError, match=r"'a' in .* was begun with other arguments"):
        run_sweep(grid(SweepRun("a", TRAIN, {"seconds": 0.1})), tmp_path)
    with pytest.raises(RunError, match=r"holds the sweep 'grid'; choose another one for 'b'"):
        run_sweep(Sweep("b", (SweepRun("a", TRAIN),)), tmp_path)
    (tmp_path / SWEEP).write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match="is not what a sweep writes"):
        run_sweep(grid(SweepRun("a", TRAIN)), tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"The sweep's folder .* cannot be written, because"):
        run_sweep(grid(SweepRun("a", TRAIN)), tmp_path / "file" / "out")


@pytest.mark.parametrize("folder", ["", ".", "/a", "../a", "a/../b", ".sweep/a"])
def test_a_run_stays_inside_its_sweep(folder: str) -> None:
    with pytest.raises(ValueError, match="folder must be a path that leads to a place inside"):
        SweepRun(folder, TRAIN)


def test_runs_do_not_overlap() -> None:
    with pytest.raises(ValueError, match="two runs in 'a/'"):
        grid(SweepRun("a", TRAIN), SweepRun("a/", TRAIN))
    with pytest.raises(ValueError, match="the run 'a/b' inside the run 'a'"):
        grid(SweepRun("a/b", TRAIN), SweepRun("a", TRAIN))


def test_bad_jobs_and_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'package\.module:function', but got 'train'"):
        SweepRun("a", "train")
    with pytest.raises(ValueError, match="'a' must be what JSON can hold"):
        SweepRun("a", TRAIN, {"x": object()})
    with pytest.raises(ValueError, match="'a' must be what JSON can hold"):
        SweepRun("a", TRAIN, {"x": float("nan")})
    assert SweepRun("a", TRAIN, {"x": Path("y")}).plain_arguments() == {"x": "y"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"workers": 0}, "workers must be at least 1, but got 0"),
        ({"backend": "slurm"}, "backend must be 'local' or 'ray', but got 'slurm'"),
        ({"address": "here"}, "address and gpus are for the backend 'ray'"),
        ({"device": "gpu"}, "device must be 'auto', 'cpu', .* but got 'gpu'"),
        ({"device": "cuda:99"}, "device must be one .* but got 'cuda:99'"),
        ({"device": "cpu"}, "device must be left out for the sweep 'grid', .* but got 'cpu'"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run_sweep(grid(SweepRun("a", TRAIN)), tmp_path, **options)


def test_a_missing_ray_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"needs the package ray.*pip install 'drpm\[ray\]'"):
        run_sweep(grid(SweepRun("a", TRAIN)), tmp_path, backend="ray")


def test_a_missing_cluster_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with socket.socket() as taken:
        # Bound but not listening, so that whoever calls is turned away.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=f"no Ray cluster to be had at {address}, because"):
            run_sweep(grid(SweepRun("a", TRAIN)), tmp_path, backend="ray", address=address)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RunError("The disk is full."), "The disk is full."),
        (ValueError("first\nsecond"), "first."),
        (KeyError("x"), "KeyError: 'x'."),
        (RuntimeError(), "RuntimeError."),
        (ValueError(), "ValueError."),
    ],
)
def test_an_error_becomes_a_sentence(error: Exception, expected: str) -> None:
    assert sentence(error) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "none is left"),
        (MemoryError("no array of 3 TB."), "no array of 3 TB"),
        (
            RuntimeError(
                "CUDA out of memory. Tried to allocate 2 GiB. Process 1 has 1 GiB.\nMore."
            ),
            "CUDA out of memory. Tried to allocate 2 GiB",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "DefaultCPUAllocator: can't allocate memory",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
        (OSError(errno.ENOENT, "No such file"), None),
        (RuntimeError("shapes differ"), None),
        (ValueError("out of memory"), None),
    ],
)
def test_what_an_error_says_of_memory(error: Exception, expected: str | None) -> None:
    assert memory_refusal(error) == expected


def test_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "SWEEPS", {})
    with pytest.raises(ConfigError, match="'table-1' is not a sweep; there are none"):
        find("table-1")

    @register("table-1")
    def table() -> Sweep:
        return grid(SweepRun("a", TRAIN))

    assert find("table-1") == table()
    with pytest.raises(ConfigError, match="'tabel-1' is not a sweep; did you mean 'table-1'"):
        find("tabel-1")
    with pytest.raises(ConfigError, match="there are 'table-1'"):
        find("something else")
    with pytest.raises(ValueError, match="There is a sweep 'table-1' already"):
        register("table-1")(table)
