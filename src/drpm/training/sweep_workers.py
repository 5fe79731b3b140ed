"""The workers of a sweep: processes of this machine, or tasks on a Ray cluster."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, final

from drpm.training.errors import InUse, RunError, sentence
from drpm.training.runs import RunFolder
from drpm.training.sweeps import Job, SweepRun

# Seconds that a process whose sweep was killed has to save its run.
GRACE: Final = 30.0


class Attempt(NamedTuple):
    """The result of one attempt; the reason is a sentence, empty if all is well."""

    kind: Literal["finished", "skipped", "in use", "failed"]
    reason: str = ""


def is_finished(out: Path, run: SweepRun) -> bool:
    return RunFolder(out / run.folder).status == "finished"


def execute(out: Path, run: SweepRun, extra: Mapping[str, Any]) -> Attempt:
    """Attempt one run, in a worker, whatever its job raises.

    Args:
        out: The sweep's folder.
        run: The run.
        extra: Further arguments of the job.
    """
    # Another process may have finished it in the meantime.
    if is_finished(out, run):
        return Attempt("skipped")
    try:
        resolve(run.job)(out / run.folder, **{**run.arguments, **extra})
    except InUse as error:
        return Attempt("in use", str(error))
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too, which end the run and not the worker.
        with suppress(OSError):
            path = error_file(out, run.folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(traceback.format_exc(), encoding="utf-8")
        return Attempt("failed", sentence(error))
    if not is_finished(out, run):
        return Attempt("failed", "Its job returned without finishing the run.")
    return Attempt("finished")


def error_file(out: Path, folder: str) -> Path:
    return out / "errors" / f"{folder}.txt"


def resolve(job: str | Job) -> Job:
    if not isinstance(job, str):
        return job
    module, _, name = job.partition(":")
    function: Job = getattr(import_module(module), name)
    return function


class Backend(Protocol):
    def submit(self, *args: Any) -> "Future[Attempt]":
        """Call :func:`execute` in a worker."""

    def interrupt(self) -> None:
        """Ask the calls in progress to save their runs and to end."""

    def close(self) -> None:
        """End everything, including calls in progress."""


def open_backend(
    backend: str, workers: int | None, address: str | None, gpus: float | None
) -> Backend:
    return RayTasks(address, gpus) if backend == "ray" else LocalProcesses(workers or 1)


@final
class LocalProcesses:
    """A new process for every call, so that one that crashes affects no other.

    Args:
        workers: How many calls are in progress at once.
    """

    def __init__(self, workers: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._threads = ThreadPoolExecutor(workers)
        self._processes: set[Any] = set()
        self._stopping = False
        shared = workers > 1 and "OMP_NUM_THREADS" not in os.environ
        cores = import_module("joblib").cpu_count() if shared else 0
        self._share = max(1, cores // workers) if shared else None

    def submit(self, *args: Any) -> "Future[Attempt]":
        return self._threads.submit(self._call, *args)

    def _call(self, *args: Any) -> Attempt:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(sender, self._share, *args))
        process.start()
        sender.close()
        self._processes.add(process)
        if self._stopping:
            process.terminate()
        try:
            outcome: Attempt = receiver.recv()
        except EOFError:
            process.join()
            outcome = Attempt("failed", f"Its process died (exit code {process.exitcode}).")
        process.join()
        self._processes.discard(process)
        return outcome

    def interrupt(self) -> None:
        # SIGTERM, even if the terminal has sent SIGINT to the processes as well: a second signal
        # of the same kind would not let them finish their step.
        self._stopping = True
        for process in list(self._processes):
            process.terminate()

    def close(self) -> None:
        for process in list(self._processes):
            process.kill()
        self._threads.shutdown()


def _work(sender: Any, threads: int | None, *args: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if threads is not None:
        import_module("torch").set_num_threads(threads)
    outcome = execute(*args)
    with suppress(BrokenPipeError):
        sender.send(outcome)


def _end_with_parent() -> None:
    """Stop this process when the sweep that started it has been killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        # The first signal lets a run finish its step and save; the next one ends the process.
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(GRACE)


@final
class RayTasks:
    """A task on a Ray cluster for every call.

    Args:
        address: The cluster; None for the one of the environment, or one on this machine alone.
        gpus: The GPUs of a task; None for 1 if the cluster has GPUs.
    """

    def __init__(self, address: str | None, gpus: float | None) -> None:
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
            self._ray.init(
                address=address,
                ignore_reinit_error=True,
                log_to_driver=False,
                logging_level="WARNING",
            )
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

    def submit(self, *args: Any) -> "Future[Attempt]":
        self._tasks.append(self._remote.remote(*args))
        future: Future[Attempt] = self._tasks[-1].future()
        return future

    def interrupt(self) -> None:
        # Raises KeyboardInterrupt in a task, or notes it where a step has to be finished first.
        for task in self._tasks:
            self._ray.cancel(task, force=False)

    def close(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()
