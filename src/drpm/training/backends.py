"""Where the calls of a sweep are made: in processes of this machine, or on a Ray cluster."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final

from drpm.training.errors import RunError, reason

# Seconds that a worker whose sweep was killed gets to save what it did.
GRACE: Final = 30.0

_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Outcome(NamedTuple):
    """What became of one call; the reason is a sentence, empty where all is well.

    ``busy`` says that somebody else is at it, ``skipped`` that somebody else has done it,
    ``starved`` that there was not enough memory for it.
    """

    kind: Literal["finished", "skipped", "busy", "failed", "starved"]
    reason: str = ""


Call: TypeAlias = Callable[..., Outcome]


class Backend(Protocol):
    """Makes calls elsewhere and tells how each of them ended, whatever happens to its process.

    ``shares_memory``: Whether calls that go on at once take it from each other.
    """

    shares_memory: bool

    def has_room(self) -> bool:
        """Whether another call can be started now."""

    def start(self, key: str, call: Call, *arguments: Any) -> None:
        """Make a call; its outcome is collected under the key."""

    def collect(self, timeout: float) -> list[tuple[str, Outcome]]:
        """The calls that have ended, after waiting for one at most so many seconds."""

    def interrupt(self) -> None:
        """Ask the calls in progress to save what they did and to end."""

    def close(self) -> None:
        """End everything that was started, calls in progress included."""


@final
class LocalProcesses:
    """Processes of this machine, through joblib's executor (loky).

    Each process has an executor of its own, because in a shared one the death of a process takes
    all the others with it, and nobody could tell whose fault it was. A process is kept for
    another call only after a good one: a failure can leave a CUDA context beyond repair. Once a
    call has found no memory none is kept, because even an idle process holds some.

    Arguments:
        workers: How many calls are made at once.
    """

    shares_memory = True

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._loky = import_module("joblib.externals.loky")
        self._idle: list[Any] = []
        self._keeps = True
        self._busy: dict[Future[Outcome], tuple[str, Any]] = {}

    def has_room(self) -> bool:
        return len(self._busy) < self._workers

    def start(self, key: str, call: Call, *arguments: Any) -> None:
        executor = self._idle.pop() if self._idle else self._new()
        try:
            future = executor.submit(_call_for, os.getpid(), call, *arguments)
        except BrokenExecutor:
            # It died while it had nothing to do, which is nobody's fault.
            executor = self._new()
            future = executor.submit(_call_for, os.getpid(), call, *arguments)
        self._busy[future] = (key, executor)

    def collect(self, timeout: float) -> list[tuple[str, Outcome]]:
        if not self._busy:
            time.sleep(timeout)
        ended = []
        for future in wait_for(self._busy, timeout, FIRST_COMPLETED).done:
            key, executor = self._busy.pop(future)
            outcome = _local_outcome(future)
            if outcome.kind == "starved":
                self._keeps = False
            if outcome.kind in ("failed", "starved"):
                executor.shutdown(wait=False, kill_workers=True)
            else:
                self._idle.append(executor)
            ended.append((key, outcome))
        while self._idle and not self._keeps:
            self._idle.pop().shutdown(wait=False, kill_workers=True)
        return ended

    def interrupt(self) -> None:
        # SIGTERM, even where the terminal has sent SIGINT to the workers as well: a second
        # signal of the same kind would not let them finish their step.
        for _, executor in self._busy.values():
            for number in list(executor._processes):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGTERM)

    def close(self) -> None:
        for _, executor in self._busy.values():
            executor.shutdown(wait=True, kill_workers=True)
        for executor in self._idle:
            executor.shutdown(wait=True)
        self._busy, self._idle = {}, []

    def _new(self) -> Any:
        return self._loky.ProcessPoolExecutor(
            max_workers=1,
            env=_threads(self._workers),
            initializer=_end_with,
            initargs=(os.getpid(),),
        )


def _threads(workers: int) -> dict[str, str]:
    """Each worker's share of the cores; else every one of them would start a thread per core."""
    if workers == 1 or any(name in os.environ for name in _THREADS):
        return {}
    share = max(1, import_module("joblib").cpu_count() // workers)
    return dict.fromkeys(_THREADS, str(share))


def _end_with(parent: int) -> None:
    """Stop this worker when the sweep that started it is gone: it would wait for work for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        # The first signal lets a run finish its step and save; the next one ends the process.
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(GRACE)

    threading.Thread(target=watch, daemon=True).start()


def _call_for(parent: int, call: Call, *arguments: Any) -> Outcome:
    outcome = call(*arguments)
    if os.getppid() != parent:
        # Nobody is there to be told, and what loky does at its exit waits for an answer.
        os._exit(1)
    return outcome


def _local_outcome(future: "Future[Outcome]") -> Outcome:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenExecutor):
        code = re.search(r"\{(.+?)\}", str(error))
        how = f"exit code {code[1]}" if code else "killed, or out of memory"
        return Outcome("failed", f"Its worker process died ({how}).")
    return Outcome("failed", sentence(error))


@final
class RayTasks:
    """Tasks on a Ray cluster, one for each call.

    Plain tasks and not joblib's Ray backend: that one is a fixed pool of actors, in which the
    loss of a node is an error of the whole batch, and whose lost actors are never replaced. A
    task fails alone, is started again on whichever node lives, and finds nodes that join later.

    Arguments:
        workers: How many tasks are handed to the cluster at once; None for all of them.
        address: The cluster; None for the one of the environment, or one on this machine alone.
        gpus: The GPUs of a task, or its share of one; None for one if the cluster has any.
    """

    def __init__(self, workers: int | None, address: str | None, gpus: float | None) -> None:
        try:
            self._ray = import_module("ray")
        except ImportError as error:
            raise RunError(
                "The backend 'ray' needs the package ray, which is not installed; "
                "install it with: pip install 'drpm[ray]'."
            ) from error
        self._workers = workers
        self._busy: dict[Any, str] = {}
        self._ours = not self._ray.is_initialized()
        if self._ours:
            self._connect(address)
        if gpus is None:
            gpus = 1.0 if self._ray.cluster_resources().get("GPU", 0) else 0.0
        self.shares_memory = gpus < 1
        self._remote = self._ray.remote(
            num_cpus=1,
            num_gpus=gpus,
            # The sweep itself tries again: it knows what is finished and what is in use.
            max_retries=0,
            # A process for each call: a failure can leave a CUDA context beyond repair.
            max_calls=1,
            scheduling_strategy="SPREAD",
        )(_call)

    def _connect(self, address: str | None) -> None:
        if address is not None and (place := re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)):
            # Ray itself tries for minutes.
            try:
                socket.create_connection((place[1], int(place[2])), timeout=10).close()
            except (OSError, OverflowError) as error:
                why = reason(error) if isinstance(error, OSError) else "there is no such port"
                raise RunError(
                    f"There is no Ray cluster to be had at {address}, because {why}."
                ) from error
        # Where Ray is started here, it is not to tell its makers about it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="WARNING")
        except (OSError, RuntimeError, ValueError) as error:
            where = f"at {address}" if address else "here"
            raise RunError(
                f"There is no Ray cluster to be had {where}: {sentence(error)}"
            ) from error

    def has_room(self) -> bool:
        return self._workers is None or len(self._busy) < self._workers

    def start(self, key: str, call: Call, *arguments: Any) -> None:
        self._busy[self._remote.remote(call, *arguments)] = key

    def collect(self, timeout: float) -> list[tuple[str, Outcome]]:
        if not self._busy:
            time.sleep(timeout)
            return []
        ended, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=timeout)
        return [(self._busy.pop(task), self._outcome(task)) for task in ended]

    def interrupt(self) -> None:
        # Reaches a task as SIGINT would, so that it can finish its step.
        for task in self._busy:
            self._ray.cancel(task, force=False)

    def close(self) -> None:
        for task in self._busy:
            self._ray.cancel(task, force=True)
        self._busy = {}
        if self._ours:
            self._ray.shutdown()

    def _outcome(self, task: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(task)
        except errors.RayTaskError as error:
            return Outcome("failed", sentence(error.cause))
        except errors.OutOfMemoryError:
            return Outcome("starved", "Its node ran out of memory.")
        except errors.TaskCancelledError:
            return Outcome("failed", "It was cancelled.")
        except errors.RayError:
            # Ray's own words fill a page; this is all that they say.
            return Outcome("failed", "Its worker or the node it was on died.")
        return outcome


def _call(call: Call, *arguments: Any) -> Outcome:
    return call(*arguments)


def sentence(error: BaseException) -> str:
    """What went wrong, in one sentence; the kind of error is named where the words need it."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else ""
    if not isinstance(error, RunError | ValueError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = text or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
