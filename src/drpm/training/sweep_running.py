"""Running sweeps, in processes of this machine or on a Ray cluster.

Finished runs are skipped, interrupted ones are resumed, and one that fails is retried once, so the
same command completes a sweep that was stopped or killed.
"""

import inspect
import json
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from drpm.training.checkpoint import write_atomic
from drpm.training.config import TrainingConfig
from drpm.training.devices import connect
from drpm.training.errors import SIGNAL_EXIT, ConfigError, RunError, reason, sentence
from drpm.training.runs import RunFolder
from drpm.training.signals import StopRequest
from drpm.training.sweep_workers import (
    Attempt,
    Backend,
    error_file,
    is_finished,
    open_backend,
    resolve,
)
from drpm.training.sweeps import Sweep, SweepRun

BackendName: TypeAlias = Literal["local", "ray"]
State: TypeAlias = Literal[
    "waiting", "running", "in use", "finished", "skipped", "failed", "interrupted"
]

SWEEP: Final = "sweep.json"
ATTEMPTS: Final = 2
# Seconds from one look at the signals to the next.
POLL: Final = 0.5


@dataclass(frozen=True)
class RunState:
    """The state of one run of a sweep.

    ``skipped`` was finished before; ``in use`` is being run by another process; ``interrupted``
    was stopped together with the sweep.
    """

    folder: str
    state: State = "waiting"
    attempts: int = 0
    reason: str = ""
    seconds: float = 0.0

    @property
    def settled(self) -> bool:
        return self.state in ("finished", "skipped", "failed")


class SweepProgress(Protocol):
    """Called at every change with the state of a run and the number of settled runs."""

    def __call__(self, run: RunState, settled: int, total: int) -> None: ...


@dataclass(frozen=True)
class SweepReport:
    """The final state of every run.

    Args:
        name: The sweep's name.
        out: Its folder.
        runs: The runs in the sweep's order.
        signal: The signal that stopped the sweep, if one did.
    """

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
        """One line for all runs, and one for each that failed."""
        counts = Counter(run.state for run in self.runs)
        left = len(self.runs) - sum(run.settled for run in self.runs)
        line = (
            f"{self.name}: {len(self.runs)} run{'' if len(self.runs) == 1 else 's'}, "
            f"{counts['finished']} finished, "
            f"{counts['skipped']} skipped (finished before), {counts['failed']} failed"
        )
        end = f", {left} left; run the same command again to resume." if left else "."
        failed = [
            f"{run.folder} failed {run.attempts} times: {run.reason}"
            f" Details: {error_file(self.out, run.folder)}"
            for run in self.runs
            if run.state == "failed"
        ]
        return "\n".join([line + end, *failed])


def run_sweep(
    sweep: Sweep,
    out: Path | str,
    *,
    backend: BackendName = "local",
    workers: int | None = 1,
    address: str | None = None,
    gpus: float | None = None,
    device: str | None = None,
    progress: SweepProgress | None = None,
) -> SweepReport:
    """Run all unfinished runs of a sweep.

    SIGINT and SIGTERM are passed on to the runs, which save a checkpoint.

    Args:
        sweep: The runs.
        out: The folder of the run folders; on a cluster, one that all nodes share under the same
            path.
        backend: ``local`` for processes of this machine, ``ray`` for a cluster.
        workers: How many runs are in progress at once; None for the number of cores, or as many
            as the cluster has room for.
        address: The address of the Ray cluster.
        gpus: The GPUs of each run on the cluster, which may be a fraction; None for 1 if the
            cluster has GPUs. Local runs share what there is.
        device: The device of the runs, as in the training settings; None for that of each run.
        progress: Called at every change.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, but got {workers}.")
    if backend not in ("local", "ray"):
        raise ConfigError(f"backend must be 'local' or 'ray', but got {backend!r}.")
    if backend == "local" and (address is not None or gpus is not None):
        raise ConfigError("address and gpus are for the backend 'ray', but it is 'local'.")
    if device is not None:
        _require_device(sweep, device, here=backend == "local")
    # Absolute, because workers may have another working directory.
    running = _Running(sweep, Path(out).absolute(), progress)
    stop = StopRequest()
    if running.waiting:
        if backend == "local" and workers is None:
            workers = import_module("joblib").cpu_count()
        with closing(open_backend(backend, workers, address, gpus)) as pool, stop:
            extra = {} if device is None else {"device": device}
            running.run(pool, workers or len(sweep.runs), stop, extra)
    states = tuple(running.states.values())
    unsettled = not all(state.settled for state in states)
    return SweepReport(sweep.name, running.out, states, stop.signal if unsettled else None)


def _require_device(sweep: Sweep, device: str, *, here: bool) -> None:
    """Refuse a device that does not exist, or that the runs do not let one choose."""
    config = TrainingConfig(device=device)
    if here:
        connect(config)
    for job in {run.job for run in sweep.runs}:
        if "device" not in inspect.signature(resolve(job)).parameters:
            raise ConfigError(
                f"device must be left out for the sweep {sweep.name!r}, whose runs do not let it "
                f"be chosen, but got {device!r}."
            )


class _Running:
    """The states of all runs while a sweep is in progress."""

    def __init__(self, sweep: Sweep, out: Path, progress: SweepProgress | None) -> None:
        self.out, self._progress = out, progress
        self.states = {run.folder: RunState(run.folder) for run in sweep.runs}
        self.waiting: deque[SweepRun] = deque()
        self._began: dict[str, float] = {}
        try:
            out.mkdir(parents=True, exist_ok=True)
            _record(sweep, out)
        except OSError as error:
            raise RunError(
                f"The sweep's folder {out} cannot be written, because {reason(error)}."
            ) from error
        for run in sweep.runs:
            if is_finished(out, run):
                self._update(run, state="skipped")
            else:
                self.waiting.append(run)

    def run(self, pool: Backend, workers: int, stop: StopRequest, extra: Mapping[str, Any]) -> None:
        running: dict[Future[Attempt], SweepRun] = {}
        interrupted = False
        while running or (self.waiting and stop.signal is None):
            while self.waiting and stop.signal is None and len(running) < workers:
                run = self.waiting.popleft()
                self._began[run.folder] = time.monotonic()
                attempts = self.states[run.folder].attempts + 1
                self._update(run, state="running", attempts=attempts, reason="")
                running[pool.submit(self.out, run, extra)] = run
            if stop.signal is not None and not interrupted:
                pool.interrupt()
                interrupted = True
            for future in wait(running, POLL, FIRST_COMPLETED).done:
                self._settle(running.pop(future), future, stopping=stop.signal is not None)

    def _settle(self, run: SweepRun, future: "Future[Attempt]", *, stopping: bool) -> None:
        error = future.exception()
        kind, why = future.result() if error is None else Attempt("failed", sentence(error))
        before = self.states[run.folder]
        state: State
        if is_finished(self.out, run):
            # Even if its process died afterwards.
            state, why = ("skipped" if kind == "skipped" else "finished"), ""
        elif kind == "in use":
            state = "in use"
        elif stopping:
            state = "interrupted"
        else:
            state = "waiting" if before.attempts < ATTEMPTS else "failed"
            if kind == "finished":
                why = f"Its result is not in {self.out}, which all nodes must share."
        if state == "waiting":
            self.waiting.append(run)
        seconds = before.seconds + time.monotonic() - self._began[run.folder]
        self._update(run, state=state, reason=why, seconds=round(seconds, 3))

    def _update(self, run: SweepRun, **changes: Any) -> None:
        self.states[run.folder] = state = replace(self.states[run.folder], **changes)
        if self._progress is not None:
            settled = sum(other.settled for other in self.states.values())
            self._progress(state, settled, len(self.states))


def _record(sweep: Sweep, out: Path) -> None:
    """Record the arguments of all runs; refuse a folder with runs of other arguments."""
    path = out / SWEEP
    before: dict[str, Any] = {}
    try:
        content = json.loads(path.read_bytes())
        name = content["name"]
        before = {entry["folder"]: entry["arguments"] for entry in content["runs"]}
    except FileNotFoundError:
        name = sweep.name
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"The file {path} is not what a sweep writes; remove it, or choose another folder."
        ) from error
    if name != sweep.name:
        raise RunError(
            f"The folder {out} holds the sweep {name!r}; choose another one for {sweep.name!r}."
        )
    for run in sweep.runs:
        now = json.loads(json.dumps(dict(run.arguments)))
        if before.get(run.folder, now) != now and RunFolder(out / run.folder).status != "new":
            raise RunError(
                f"The run {run.folder!r} in {out} was started with other arguments; "
                "choose another folder, or remove that run."
            )
        before[run.folder] = now
    runs = [{"folder": folder, "arguments": given} for folder, given in before.items()]
    write_atomic(path, json.dumps({"name": name, "runs": runs}, indent=1).encode() + b"\n")
