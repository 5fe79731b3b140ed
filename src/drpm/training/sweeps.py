"""Sweeps: the runs of a table or a figure, in sequence or in parallel."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, Literal, final

from drpm.training.checkpoint import write_atomic
from drpm.training.config import TrainingConfig
from drpm.training.devices import connect
from drpm.training.errors import ConfigError, Interrupted, RunError, sentence
from drpm.training.loop import defer_signals
from drpm.training.runs import RunFolder

SWEEP: Final = "sweep.json"
ATTEMPTS: Final = 2
_POLL: Final = 0.5  # seconds between checks for signals
_GRACE: Final = 30.0  # seconds to save a run whose sweep was killed


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: its folder, relative to that of the sweep, and its job.

    The job, ``package.module:function``, is called as ``job(folder, **arguments)`` in a separate
    process. It starts or resumes the run in that folder and calls :meth:`RunFolder.finish`. The
    device of the sweep, if any, is passed as ``device``.
    """

    folder: str
    job: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """The state of a run of a sweep; ``skipped``: finished before."""

    folder: str
    state: Literal["waiting", "running", "finished", "skipped", "failed"]
    attempts: int = 0
    reason: str = ""


def run_sweep(
    runs: Sequence[SweepRun],
    out: Path | str,
    *,
    backend: Literal["local", "ray"] = "local",
    workers: int = 1,
    address: str | None = None,
    gpus: float | None = None,
    device: str | None = None,
    progress: Callable[[RunState, int], None] = lambda run, settled: None,
) -> list[RunState]:
    """Run all unfinished runs of a sweep; return the state of every run.

    Args:
        runs: The runs, in starting order.
        out: The folder of the run folders; on a cluster, the same path on all nodes.
        backend: ``local`` for processes on this machine, ``ray`` for a cluster.
        workers: The number of parallel runs; 0 for one per core, or as many as fit on the cluster.
        address: The Ray cluster; None for that of the environment, or one on this machine.
        gpus: The GPUs of each run on the cluster; None for 1 if the cluster has GPUs.
        device: The device of the runs; None for that of each run.
        progress: Called at every change with a run and the number of completed runs.

    Raises:
        Interrupted: On SIGINT or SIGTERM, after the runs have saved a checkpoint.
    """
    if workers < 0:
        raise ConfigError(f"workers must be at least 0, but got {workers}.")
    if backend == "local" and (address is not None or gpus is not None):
        raise ConfigError("address and gpus are for the backend 'ray', but it is 'local'.")
    if device is not None:
        config = TrainingConfig(device=device)
        if backend == "local":
            connect(config)
    out = Path(out).absolute()  # workers may have another working directory
    _record(runs, out)
    waiting = deque(run for run in runs if not _is_finished(out, run.folder))
    states = {run.folder: RunState(run.folder, "skipped") for run in runs}
    states |= {run.folder: RunState(run.folder, "waiting") for run in waiting}

    def update(run: SweepRun, **changes: Any) -> None:
        states[run.folder] = replace(states[run.folder], **changes)
        left = sum(state.state in ("waiting", "running") for state in states.values())
        progress(states[run.folder], len(states) - left)

    if not waiting:
        return list(states.values())
    running: dict[Future[str], SweepRun] = {}
    interrupted = False
    extra = {} if device is None else {"device": device}
    pool: LocalProcesses | RayTasks = (
        RayTasks(workers, address, gpus) if backend == "ray" else LocalProcesses(workers)
    )
    with closing(pool), defer_signals() as signals:
        while running or (waiting and not signals):
            while waiting and not signals and len(running) < pool.size:
                run = waiting.popleft()
                attempts = states[run.folder].attempts + 1
                update(run, state="running", attempts=attempts, reason="")
                arguments = {**run.arguments, **extra}
                running[pool.submit(out, run.folder, run.job, arguments)] = run
            if signals and not interrupted:
                pool.interrupt()
                interrupted = True
            for future in wait(running, _POLL, FIRST_COMPLETED).done:
                run, error = running.pop(future), future.exception()
                if _is_finished(out, run.folder):  # even if its process died afterwards
                    update(run, state="finished")
                    continue
                again = bool(signals) or states[run.folder].attempts < ATTEMPTS
                waiting.extend([run] if again else [])
                reason = future.result() if error is None else sentence(error)
                update(run, state="waiting" if again else "failed", reason=reason)
    if signals and waiting:
        raise Interrupted(
            signals[0],
            f"Stopped with {len(waiting)} of {len(runs)} runs left; "
            f"run the same command again to resume ({out}).",
        )
    return list(states.values())


def _record(runs: Sequence[SweepRun], out: Path) -> None:
    """Record the arguments of all runs; raise if started runs have other arguments."""
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


def error_file(out: Path, folder: str) -> Path:
    """The file with the traceback of a failed run."""
    return out / "errors" / f"{folder}.txt"


def execute(out: Path, folder: str, job: str, arguments: Mapping[str, Any]) -> str:
    """Attempt one run in a worker; return the reason if it did not finish."""
    try:
        if not _is_finished(out, folder):  # by another process
            resolve_name(job)(out / folder, **arguments)
    except BaseException as error:
        # Including SystemExit and KeyboardInterrupt, which must not end the worker.
        with suppress(OSError):
            path = error_file(out, folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(traceback.format_exc(), encoding="utf-8")
        return sentence(error)
    return "The job returned without a finished run in its folder."


@final
class LocalProcesses:
    """A new process for every call, so that crashes are isolated."""

    def __init__(self, workers: int) -> None:
        affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        self.size = workers or cores
        self._others = {*multiprocessing.active_children()}
        shared = self.size > 1 and "OMP_NUM_THREADS" not in os.environ
        self._threads = max(1, cores // self.size) if shared else None

    def submit(self, *args: Any) -> "Future[str]":
        """Call :func:`execute` in a worker."""
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, context, _start_worker, (self._threads,))
        future = pool.submit(execute, *args)
        pool.shutdown(wait=False)
        return future

    def interrupt(self) -> None:
        """Tell running calls to save and stop."""
        # SIGTERM, since the terminal may have sent SIGINT already: a second signal of the same kind
        # would kill the processes within a step.
        for process in {*multiprocessing.active_children()} - self._others:
            process.terminate()

    def close(self) -> None:
        """Kill running calls."""
        for process in {*multiprocessing.active_children()} - self._others:
            process.kill()


def _start_worker(threads: int | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if threads is not None:
        import_module("torch").set_num_threads(threads)


def _end_with_parent() -> None:
    """Stop this process when the process of the sweep ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        # The first signal lets a run finish its step and save; the next one ends the process.
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_GRACE)


@final
class RayTasks:
    """A task on a Ray cluster for every call."""

    def __init__(self, workers: int, address: str | None, gpus: float | None) -> None:
        self.size = workers or sys.maxsize
        try:
            self._ray = import_module("ray")
        except ImportError as error:
            raise RunError(
                "The backend 'ray' needs the package ray, which is not installed; "
                "install it with: pip install 'drpm[ray]'."
            ) from error
        # Applies to a cluster started here.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="WARNING")
        except (OSError, RuntimeError, ValueError) as error:
            raise RunError(
                f"No Ray cluster was found at {address or 'this machine'}: {sentence(error)}"
            ) from error
        if gpus is None:
            gpus = 1.0 if self._ray.cluster_resources().get("GPU", 0) else 0.0
        # The sweep retries by itself. One process per call, because a failure can leave a CUDA
        # context unusable.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0, "max_calls": 1}
        self._remote = self._ray.remote(scheduling_strategy="SPREAD", **options)(execute)
        self._tasks: list[Any] = []

    def submit(self, *args: Any) -> "Future[str]":
        self._tasks.append(self._remote.remote(*args))
        return self._tasks[-1].future()  # type: ignore[no-any-return]

    def interrupt(self) -> None:
        # Raises KeyboardInterrupt in a task, unless `defer_signals` collects it.
        for task in self._tasks:
            self._ray.cancel(task, force=False)

    def close(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()
