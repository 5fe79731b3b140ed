"""The workers of a sweep: processes of this machine, or tasks on a Ray cluster."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, final

from drpm.training.errors import RunError, sentence
from drpm.training.runs import RunFolder

# Seconds that a process whose sweep was killed has to save its run.
_GRACE: Final = 30.0


def is_finished(out: Path, folder: str) -> bool:
    return RunFolder(out / folder).status == "finished"


def error_file(out: Path, folder: str) -> Path:
    return out / "errors" / f"{folder}.txt"


def execute(out: Path, folder: str, job: str, arguments: Mapping[str, Any]) -> str:
    """Attempt one run in a worker, whatever its job raises.

    Args:
        out: The sweep's folder.
        folder: The run's folder in it.
        job: The function as ``package.module:function``.
        arguments: Its arguments.

    Returns:
        The reason of a failure in one sentence; empty if the job returned.
    """
    try:
        # Another process may have finished it in the meantime.
        if not is_finished(out, folder):
            resolve_name(job)(out / folder, **arguments)
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too, which end the run and not the worker.
        with suppress(OSError):
            path = error_file(out, folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(traceback.format_exc(), encoding="utf-8")
        return sentence(error)
    return ""


@final
class LocalProcesses:
    """A new process for every call, so that one that crashes affects no other.

    Args:
        workers: How many calls are in progress at once; None for the number of cores.
    """

    def __init__(self, workers: int | None) -> None:
        cores = import_module("joblib").cpu_count()
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

    Args:
        workers: How many calls are in progress at once; None for as many as there is room for.
        address: The cluster; None for the one of the environment, or one on this machine alone.
        gpus: The GPUs of a task; None for 1 if the cluster has GPUs.
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

    def submit(self, *args: Any) -> "Future[str]":
        self._tasks.append(self._remote.remote(*args))
        future: Future[str] = self._tasks[-1].future()
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
