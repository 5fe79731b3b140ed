"""Sweeps: the runs behind a table or a figure, run one after the other or several at once.

Finished runs are skipped, interrupted ones are resumed, and one that fails is retried once, so the
same command completes a sweep that was stopped or killed.
"""

import json
import multiprocessing
import os
import signal
import sys
import tarfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, Literal, TypeAlias, final

from drpm.training.checkpoint import write_atomic
from drpm.training.config import TrainingConfig
from drpm.training.devices import connect
from drpm.training.errors import SIGNAL_EXIT, ConfigError, RunError, RunInUse, sentence
from drpm.training.loop import StopRequest
from drpm.training.runs import ARRAYS, CONFIG, RESULT, RunFolder

SWEEP: Final = "sweep.json"
ATTEMPTS: Final = 2
ARCHIVE: Final = ".tar.gz"
# Seconds from one look at the signals to the next.
_POLL: Final = 0.5
# Seconds that a process whose sweep was killed has to save its run.
_GRACE: Final = 30.0
# Bytes of arrays that are too large to be collected.
_LARGE: Final = 1_000_000


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    The job is called as ``job(folder, **arguments)`` in a process of its own. It starts or resumes
    the run in that folder and ends with :meth:`RunFolder.finish`. A device that was chosen for the
    sweep is another argument, ``device``.

    Args:
        folder: The run's folder, relative to that of the sweep.
        job: Where to import the function from: ``package.module:function``.
        arguments: What JSON can hold.
    """

    folder: str
    job: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """The state of a run: ``skipped`` was finished before, another process has one that is held."""

    folder: str
    state: Literal["waiting", "running", "finished", "skipped", "held", "failed"] = "waiting"
    attempts: int = 0
    reason: str = ""
    seconds: float = 0.0

    @property
    def settled(self) -> bool:
        return self.state not in ("waiting", "running")


# How an attempt ended that did not finish its run, and why.
Failure: TypeAlias = tuple[Literal["held", "failed"], str]


@dataclass(frozen=True)
class SweepReport:
    """The final state of every run of a sweep, and the signal that stopped it, if one did."""

    name: str
    out: Path
    runs: tuple[RunState, ...]
    signal: int | None = None

    @property
    def exit_status(self) -> int:
        """For the command line: as a shell has it after a signal, 1 if a run is not finished."""
        if self.signal is not None:
            return SIGNAL_EXIT + self.signal
        return int(any(run.state not in ("finished", "skipped") for run in self.runs))

    def summary(self) -> str:
        """One line for all runs, and one for each that is held or failed."""
        counts = Counter(run.state for run in self.runs)
        left = sum(not run.settled for run in self.runs)
        held = f", {counts['held']} held by another process" if counts["held"] else ""
        lines = [
            f"{self.name}: {len(self.runs)} run{'' if len(self.runs) == 1 else 's'}, "
            f"{counts['finished']} finished, "
            f"{counts['skipped']} skipped (finished before), {counts['failed']} failed{held}"
            + (f", {left} left; run the same command again to resume." if left else ".")
        ]
        for run in self.runs:
            if run.state == "held":
                lines.append(f"{run.folder} is held: {run.reason}")
            elif run.state == "failed":
                details = f"Details: {_error_file(self.out, run.folder)}"
                lines.append(f"{run.folder} failed {run.attempts} times: {run.reason} {details}")
        return "\n".join(lines)


def run_sweep(
    name: str,
    runs: Sequence[SweepRun],
    out: Path | str,
    *,
    backend: Literal["local", "ray"] = "local",
    workers: int | None = 1,
    address: str | None = None,
    gpus: float | None = None,
    device: str | None = None,
    progress: Callable[[RunState, int, int], None] = lambda run, settled, total: None,
) -> SweepReport:
    """Run all unfinished runs of a sweep.

    SIGINT and SIGTERM are passed on to the runs, which save a checkpoint.

    Args:
        name: The sweep's name.
        runs: The runs, in the order in which they are started.
        out: The folder of the run folders; on a cluster, one that all nodes share under the same
            path.
        backend: ``local`` for processes of this machine, ``ray`` for a cluster.
        workers: How many runs are in progress at once; None for the number of cores, or as many
            as the cluster has room for.
        address: The address of the Ray cluster.
        gpus: The GPUs of each run on the cluster, which may be a fraction; None for 1 if the
            cluster has GPUs. Local runs share what there is.
        device: The device of the runs, as in the training settings; None for that of each run.
        progress: Called at every change with the state of a run and the numbers of settled and of
            all runs.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, but got {workers}.")
    if backend == "local" and (address is not None or gpus is not None):
        raise ConfigError("address and gpus are for the backend 'ray', but it is 'local'.")
    if device is not None:
        config = TrainingConfig(device=device)
        if backend == "local":
            connect(config)
    out = Path(out).absolute()  # because workers may have another working directory
    _record(runs, out)
    done = {run.folder: _is_finished(out, run.folder) for run in runs}
    states = {x: RunState(x, "skipped" if done[x] else "waiting") for x in done}
    waiting = deque(run for run in runs if not done[run.folder])

    def update(run: SweepRun, **changes: Any) -> None:
        states[run.folder] = replace(states[run.folder], **changes)
        settled = sum(state.settled for state in states.values())
        progress(states[run.folder], settled, len(states))

    stop, interrupted = StopRequest(), False
    running: dict[Future[Failure], tuple[SweepRun, float]] = {}
    if waiting:
        extra = {} if device is None else {"device": device}
        with closing(open_workers(backend, workers, address, gpus)) as pool, stop:
            while running or (waiting and stop.signal is None):
                while waiting and stop.signal is None and len(running) < pool.size:
                    run = waiting.popleft()
                    attempts = states[run.folder].attempts + 1
                    update(run, state="running", attempts=attempts, reason="")
                    future = pool.submit(out, run.folder, run.job, {**run.arguments, **extra})
                    running[future] = run, time.monotonic()
                if stop.signal is not None and not interrupted:
                    pool.interrupt()
                    interrupted = True
                for future in wait(running, _POLL, FIRST_COMPLETED).done:
                    run, began = running.pop(future)
                    state, why = _outcome(future)
                    again = state == "failed" and states[run.folder].attempts < ATTEMPTS
                    # Finished, even if its process died afterwards.
                    if _is_finished(out, run.folder):
                        state, why = "finished", ""
                    elif again or stop.signal is not None:
                        state = "waiting"
                        waiting.append(run)
                    seconds = round(time.monotonic() - began, 3)
                    update(run, state=state, reason=why, seconds=seconds)
    unsettled = not all(state.settled for state in states.values())
    return SweepReport(name, out, tuple(states.values()), stop.signal if unsettled else None)


def _record(runs: Sequence[SweepRun], out: Path) -> None:
    """Record the arguments of all runs; refuse a folder with runs of other arguments."""
    path = out / SWEEP
    out.mkdir(parents=True, exist_ok=True)
    try:
        known = dict(json.loads(path.read_bytes())["runs"]) if path.exists() else {}
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"The file {path} is not a valid sweep file; remove it, or choose another folder."
        ) from error
    for run in runs:
        now = json.loads(json.dumps(dict(run.arguments)))
        if known.get(run.folder, now) != now and RunFolder(out / run.folder).status != "new":
            raise RunError(
                f"The run {run.folder!r} in {out} was started with different arguments; "
                "choose another folder, or remove that run."
            )
        known[run.folder] = now
    write_atomic(path, json.dumps({"runs": known}, indent=1).encode() + b"\n")


def _is_finished(out: Path, folder: str) -> bool:
    return RunFolder(out / folder).status == "finished"


def _error_file(out: Path, folder: str) -> Path:
    return out / "errors" / f"{folder}.txt"


def _outcome(future: "Future[Failure]") -> tuple[str, str]:
    error = future.exception()
    state, why = future.result() if error is None else ("failed", sentence(error))
    return state, why or "The job returned without a finished run in its folder."


# The workers.


def execute(out: Path, folder: str, job: str, arguments: Mapping[str, Any]) -> Failure:
    """Attempt one run in a worker, whatever its job raises.

    Returns whether the run is held by another process, and why in one sentence; empty if the job
    returned.
    """
    try:
        # Another process may have finished it in the meantime.
        if not _is_finished(out, folder):
            resolve_name(job)(out / folder, **arguments)
    except RunInUse as error:
        return "held", sentence(error)
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too, which end the run and not the worker.
        with suppress(OSError):
            path = _error_file(out, folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(traceback.format_exc(), encoding="utf-8")
        return "failed", sentence(error)
    return "failed", ""


@final
class LocalProcesses:
    """A new process for every call, so that one that crashes affects no other."""

    def __init__(self, workers: int | None) -> None:
        cores = import_module("joblib").cpu_count()
        self.size = workers or cores
        self._others = {*multiprocessing.active_children()}
        shared = self.size > 1 and "OMP_NUM_THREADS" not in os.environ
        self._threads = max(1, cores // self.size) if shared else None

    def submit(self, *args: Any) -> "Future[Failure]":
        """Call :func:`execute` in a worker."""
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, context, _start_worker, (self._threads,))
        future = pool.submit(execute, *args)
        pool.shutdown(wait=False)
        return future

    def interrupt(self) -> None:
        """Ask the calls in progress to save their runs and to end."""
        # SIGTERM, even if the terminal has sent SIGINT to the processes as well: a second signal
        # of the same kind would not let them finish their step.
        for process in {*multiprocessing.active_children()} - self._others:
            process.terminate()

    def close(self) -> None:
        """End everything, including calls in progress."""
        for process in {*multiprocessing.active_children()} - self._others:
            process.kill()


def _start_worker(threads: int | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if threads is not None:
        import_module("torch").set_num_threads(threads)


def _end_with_parent() -> None:
    """Stop this process when the sweep that started it has been killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        # The first signal lets a run finish its step and save; the next one ends the process.
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_GRACE)


@final
class RayTasks:
    """A task on a Ray cluster for every call.

    Without an address it is the cluster of the environment, or one on this machine alone.
    """

    def __init__(self, workers: int | None, address: str | None, gpus: float | None) -> None:
        self.size = workers or sys.maxsize
        try:
            self._ray = import_module("ray")
        except ImportError as error:
            raise RunError(
                "The backend 'ray' needs the package ray, which is not installed; "
                "install it with: pip install 'drpm[ray]'."
            ) from error
        # A cluster that is started here does not report its usage.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="WARNING")
        except (OSError, RuntimeError, ValueError) as error:
            raise RunError(
                f"There is no Ray cluster at {address or 'this machine'}: {sentence(error)}"
            ) from error
        if gpus is None:
            gpus = 1.0 if self._ray.cluster_resources().get("GPU", 0) else 0.0
        # The sweep itself retries. A process for each call, because a failure can leave a CUDA
        # context unusable.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0, "max_calls": 1}
        self._remote = self._ray.remote(scheduling_strategy="SPREAD", **options)(execute)
        self._tasks: list[Any] = []

    def submit(self, *args: Any) -> "Future[Failure]":
        self._tasks.append(self._remote.remote(*args))
        future: Future[Failure] = self._tasks[-1].future()
        return future

    def interrupt(self) -> None:
        # Raises KeyboardInterrupt in a task, or notes it where a step has to be finished first.
        for task in self._tasks:
            self._ray.cancel(task, force=False)

    def close(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()


def open_workers(
    backend: str, workers: int | None, address: str | None, gpus: float | None
) -> LocalProcesses | RayTasks:
    """The workers of a backend; ``size`` is how many calls are in progress at once."""
    return RayTasks(workers, address, gpus) if backend == "ray" else LocalProcesses(workers)


# Results.


def collect(source: Path, name: str, studies: Sequence[str], target: Path) -> list[str]:
    """Copy the settings and results of finished runs, without models and checkpoints.

    The arrays of figures are copied for the first seed of our own models, if they are small.

    Args:
        source: The folder of a sweep.
        name: The sweep's name, which becomes a folder in the target.
        studies: The folders of its runs or studies.
        target: A folder, to which the files are added, or an archive that ends in ``.tar.gz``.

    Returns:
        The copied files, by their path in the target.
    """
    found: dict[str, Path] = {}
    for study in studies:
        for run in (source / study, *sorted((source / study).glob("seed-*"))):
            place = f"{name}/{run.relative_to(source)}"
            ours = "/drpm" in place and run.name == "seed-0"
            for path in (run / CONFIG, run / RESULT, *([run / ARRAYS] if ours else [])):
                small = path.exists() and path.stat().st_size < _LARGE
                if RunFolder(run).status == "finished" and small:
                    found[f"{place}/{path.name}"] = path
    if not found:
        raise RunError(f"The folder {source} contains no finished run of {name!r} to collect.")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.name.endswith(ARCHIVE):
        with tarfile.open(target, "w:gz") as archive:
            for place, path in found.items():
                archive.add(path, place)
    else:
        for place, path in found.items():
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(target / place, path.read_bytes())
    return list(found)
