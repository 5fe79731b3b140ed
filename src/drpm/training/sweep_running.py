"""Sweeps, brought to their end on this machine or on a cluster."""

import inspect
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from drpm.training.backends import Backend, LocalProcesses, RayTasks
from drpm.training.config import TrainingConfig
from drpm.training.devices import connect
from drpm.training.errors import SIGNAL_EXIT, ConfigError
from drpm.training.signals import StopRequest
from drpm.training.sweep_ledger import Ledger, Progress, RunState, State
from drpm.training.sweep_worker import ERROR, execute, resolve
from drpm.training.sweeps import CLAIMS, Sweep, SweepRun

BackendName: TypeAlias = Literal["local", "ray"]

# Seconds from one look at the signals to the next, and at runs that are in use elsewhere.
POLL: Final = 0.5
RECHECK: Final = 2.0


@dataclass(frozen=True)
class SweepReport:
    """What became of every run.

    Arguments:
        name: The sweep's name.
        out: Its folder.
        runs: The runs in the sweep's order.
        signal: The signal that stopped the sweep before its end, if one did.
    """

    name: str
    out: Path
    runs: tuple[RunState, ...]
    signal: int | None = None

    def of(self, *states: State) -> list[RunState]:
        """The runs that ended in one of these states."""
        return [run for run in self.runs if run.state in states]

    @property
    def finished(self) -> list[RunState]:
        return self.of("finished")

    @property
    def skipped(self) -> list[RunState]:
        return self.of("skipped")

    @property
    def failed(self) -> list[RunState]:
        return self.of("failed")

    @property
    def exit_status(self) -> int:
        """For the command line: as a shell has it after a signal, 1 if a run failed, else 0."""
        if self.signal is not None:
            return SIGNAL_EXIT + self.signal
        return 1 if self.failed else 0

    def summary(self) -> str:
        """The end of a sweep in words: one line for all, and one for each run that failed."""
        counts = Counter(run.state for run in self.runs)
        left = len(self.runs) - sum(run.settled for run in self.runs)
        line = (
            f"{self.name}: {len(self.runs)} run{'' if len(self.runs) == 1 else 's'}, "
            f"{counts['finished']} finished, "
            f"{counts['skipped']} skipped (finished before), {counts['failed']} failed"
        )
        lines = [line + (f", {left} left; the same command goes on." if left else ".")]
        for run in self.failed:
            lines.append(f"{run.folder} failed {run.attempts} times: {run.reason}")
            error = self.out / CLAIMS / run.folder / ERROR
            if error.exists():
                lines.append(f"    details: {error}")
        return "\n".join(lines)


def run_sweep(
    sweep: Sweep,
    out: Path | str,
    *,
    backend: BackendName = "local",
    workers: int | None = 1,
    address: str | None = None,
    gpus: float | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> SweepReport:
    """Bring every run of a sweep to its end; a run that fails is tried once more, after the rest.

    SIGINT and SIGTERM are passed on to the runs, which save what they did.

    Arguments:
        sweep: The runs.
        out: The folder that holds their folders; on a cluster, one that all nodes share under
            the same path.
        backend: ``local`` for processes of this machine, ``ray`` for a cluster.
        workers: How many runs go on at once; None for as many as there are cores, or as the
            cluster has room for. Those that find no memory beside others are taken up again after
            the rest, and fewer of them at once.
        address: The Ray cluster.
        gpus: The GPUs of each run on the cluster, or its share of one; None for one if the
            cluster has any. On this machine all runs share what there is.
        device: Where the runs compute, as the training settings name it; None leaves it to them.
        progress: Told of every change.
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
    ledger = Ledger(sweep, Path(out).absolute(), progress)
    placed = {} if device is None else {"device": device}
    stop = StopRequest()
    if not ledger.all_settled():
        with closing(_open(backend, workers, address, gpus)) as pool, stop:
            try:
                _drive(ledger, pool, stop, placed)
            finally:
                ledger.close()
    number = None if ledger.all_settled() else stop.signal
    return SweepReport(sweep.name, ledger.out, tuple(ledger.states.values()), number)


def _require_device(sweep: Sweep, device: str, *, here: bool) -> None:
    """Refuse a device that there cannot be, and one for runs that do not let it be chosen."""
    config = TrainingConfig(device=device)
    if here:
        connect(config)
    for job in {run.job for run in sweep.runs}:
        if "device" not in inspect.signature(resolve(job)).parameters:
            raise ConfigError(
                f"device must be left out for the sweep {sweep.name!r}, whose runs do not let it "
                f"be chosen, but got {device!r}."
            )


def _open(
    backend: BackendName, workers: int | None, address: str | None, gpus: float | None
) -> Backend:
    if backend == "ray":
        return RayTasks(workers, address, gpus)
    return LocalProcesses(workers or import_module("joblib").cpu_count())


def _drive(ledger: Ledger, pool: Backend, stop: StopRequest, placed: Mapping[str, Any]) -> None:
    """Give the runs out and take their outcomes in, until all are settled or a signal comes."""
    line = _Line([run for run in ledger.sweep.runs if not ledger.states[run.folder].settled])
    elsewhere: list[SweepRun] = []
    running: dict[str, SweepRun] = {}
    company: dict[str, int] = {}  # the most others that went on beside a run
    recheck = 0.0
    stopping = False
    while running or line or elsewhere:
        if stop.signal is not None:
            if not stopping:
                pool.interrupt()
            stopping = True
            if not running:
                return
        elif elsewhere and time.monotonic() >= recheck:
            line.runs.extend(elsewhere)
            elsewhere.clear()
        while not stopping and pool.has_room() and (run := line.next(len(running))) is not None:
            if ledger.finished(run):
                # Another process did it while it waited here, or a worker that was given up.
                ledger.set(run, "finished" if ledger.states[run.folder].attempts else "skipped")
            elif ledger.in_use(run):
                ledger.set(run, "elsewhere")
                elsewhere.append(run)
                recheck = time.monotonic() + RECHECK
            else:
                ledger.start(run)
                running[run.folder] = run
                for key in running:
                    company[key] = max(company.get(key, 0), len(running) - 1)
                pool.start(run.folder, execute, ledger.out, run, placed)
        for folder, outcome in pool.collect(POLL):
            run, most = running.pop(folder), company.pop(folder, 0)
            # Those that ended together with it, or a moment before, had taken their part as well.
            others = len(running) or most
            beside = others if outcome.kind == "starved" and pool.shares_memory else 0
            match ledger.settle(run, outcome, stopping=stopping, beside=beside):
                case "waiting" if beside:
                    line.set_aside(run, beside)
                case "waiting":
                    line.runs.append(run)
                case "elsewhere":
                    elsewhere.append(run)
                    recheck = time.monotonic() + RECHECK


class _Line:
    """The runs that wait for their turn.

    One that found no memory beside others comes after the rest, beside fewer than that; one that
    found none again comes last, and alone.

    Arguments:
        runs: Those to begin with.
    """

    def __init__(self, runs: Sequence[SweepRun]) -> None:
        self.runs = deque(runs)
        self._aside: deque[SweepRun] = deque()
        self._alone: deque[SweepRun] = deque()
        self._starved: set[str] = set()
        self._most = len(runs)

    def __bool__(self) -> bool:
        return bool(self.runs or self._aside or self._alone)

    def next(self, running: int) -> SweepRun | None:
        """Whose turn it is beside so many others; nobody's where all had better wait."""
        if self.runs:
            return self.runs.popleft()
        if self._aside:
            return self._aside.popleft() if running < self._most else None
        return self._alone.popleft() if self._alone and not running else None

    def set_aside(self, run: SweepRun, beside: int) -> None:
        """Let a run wait that found no memory beside so many others."""
        self._most = min(self._most, beside)
        (self._alone if run.folder in self._starved else self._aside).append(run)
        self._starved.add(run.folder)
