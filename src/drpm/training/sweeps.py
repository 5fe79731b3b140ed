"""Sweeps: the grid of runs behind a table or a figure.

A sweep is a name and a list of runs, each with a folder of its own. Running it again skips what
is finished and continues what was cut off, so that a sweep that was stopped, wherever and
however, is brought to its end by the same command.

A run is claimed before it is touched, through a lock file that belongs to it, so that sweeps in
several processes (or on several machines that share the folder) divide the runs among them.
"""

import dataclasses
import inspect
import json
import logging
import re
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, Protocol, TypeAlias

from drpm.training.backends import Backend, LocalProcesses, Outcome, RayTasks, sentence
from drpm.training.checkpoint import write_atomic
from drpm.training.config import TrainingConfig, nearest
from drpm.training.devices import connect
from drpm.training.errors import (
    SIGNAL_EXIT,
    ConfigError,
    InUse,
    RunError,
    memory_refusal,
    reason,
)
from drpm.training.runs import RunFolder
from drpm.training.signals import StopRequest

logger = logging.getLogger(__name__)

Job: TypeAlias = Callable[..., object]
State: TypeAlias = Literal[
    "waiting", "running", "elsewhere", "finished", "skipped", "failed", "cut off"
]
BackendName: TypeAlias = Literal["local", "ray"]

SWEEP: Final = "sweep.json"
# Beside the runs and not in them: a job makes its own run folder and takes that folder's lock.
CLAIMS: Final = ".sweep"
ERROR: Final = "error.txt"

ATTEMPTS: Final = 2
# Seconds from one look at the signals to the next, and at runs that are in use elsewhere.
POLL: Final = 0.5
RECHECK: Final = 2.0


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    The job is called as ``job(folder, **arguments)`` in a process of its own. It begins the run in
    that folder, or continues the one it finds there, and ends with :meth:`RunFolder.finish`.
    A job that can choose where it computes has another argument, ``device``, with a default.

    Arguments:
        folder: The run's folder, from the sweep's folder on.
        job: The function, or where to import it from: ``package.module:function``.
        arguments: What JSON can hold, and dataclasses and paths of it.
    """

    folder: str
    job: str | Job
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.folder).parts
        if not parts or "/" in parts or ".." in parts or parts[0] == CLAIMS:
            raise ValueError(
                f"folder must be a path that leads to a place inside the sweep's folder, "
                f"but got {self.folder!r}."
            )
        if isinstance(self.job, str) and not re.fullmatch(r"[\w.]+:\w+", self.job):
            raise ValueError(
                f"job must be a function or have the form 'package.module:function', "
                f"but got {self.job!r}."
            )
        self.plain_arguments()

    def plain_arguments(self) -> Any:
        """The arguments as JSON holds them."""
        try:
            return json.loads(json.dumps(dict(self.arguments), allow_nan=False, default=_plain))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"arguments of the run {self.folder!r} must be what JSON can hold: {error}."
            ) from error


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is not")


@dataclass(frozen=True)
class Sweep:
    """A name and a list of runs.

    Arguments:
        name: What the sweep is called, as in ``drpm reproduce NAME``.
        runs: The runs, in the order in which they are begun.
    """

    name: str
    runs: tuple[SweepRun, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))
        seen: set[PurePosixPath] = set()
        for run in self.runs:
            path = PurePosixPath(run.folder)
            if path in seen:
                raise ValueError(f"The sweep {self.name!r} has two runs in {run.folder!r}.")
            seen.add(path)
        for path in seen:
            for parent in path.parents:
                if parent in seen:
                    raise ValueError(
                        f"The sweep {self.name!r} has the run {str(path)!r} inside the run "
                        f"{str(parent)!r}."
                    )


# The sweeps there are. Applications fill it, so that this module need not know them.
SWEEPS: dict[str, Callable[[], Sweep]] = {}


def register(name: str) -> Callable[[Callable[[], Sweep]], Callable[[], Sweep]]:
    """Make a sweep known under a name; for use above a function that returns it.

    The first line of the function's docstring is what lists of sweeps say about it.

    Example:
        >>> @register("an-example")
        ... def example() -> Sweep:
        ...     "A run that is not there."
        ...     return Sweep("an-example", [SweepRun("seed-0", "package.module:train")])
        >>> find("an-example").runs[0].folder
        'seed-0'
        >>> del SWEEPS["an-example"]
    """

    def add(make: Callable[[], Sweep]) -> Callable[[], Sweep]:
        if name in SWEEPS:
            raise ValueError(f"There is a sweep {name!r} already.")
        SWEEPS[name] = make
        return make

    return add


def describe(name: str) -> str:
    """What a registered sweep says about itself, in one line."""
    return (inspect.getdoc(SWEEPS[name]) or "").partition("\n")[0]


def find(name: str) -> Sweep:
    """The sweep that is registered under a name."""
    if name in SWEEPS:
        return SWEEPS[name]()
    known = sorted(SWEEPS)
    if meant := nearest(name, known):
        end = f"did you mean {' or '.join(map(repr, meant))}?"
    else:
        end = f"there are {', '.join(map(repr, known))}." if known else "there are none."
    raise ConfigError(f"{name!r} is not a sweep; {end}")


@dataclass(frozen=True)
class RunState:
    """How far one run of a sweep is.

    ``skipped`` was finished before, or by another process; ``elsewhere`` is in use by another
    process; ``cut off`` was interrupted together with the sweep.
    """

    folder: str
    state: State = "waiting"
    attempts: int = 0
    reason: str = ""
    seconds: float = 0.0

    @property
    def settled(self) -> bool:
        return self.state in ("finished", "skipped", "failed")


class Progress(Protocol):
    """Whoever wants to follow a sweep: told of every change, with how many runs are settled."""

    def __call__(self, run: RunState, settled: int, total: int) -> None: ...


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
            cluster has room for. Fewer do where memory is not enough for all of them.
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
    ledger = _Ledger(sweep, Path(out).absolute(), progress)
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
        if "device" not in inspect.signature(_resolve(job)).parameters:
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


def _drive(ledger: "_Ledger", pool: Backend, stop: StopRequest, placed: Mapping[str, Any]) -> None:
    """Give the runs out and take their outcomes in, until all are settled or a signal comes."""
    queue = deque(run for run in ledger.sweep.runs if not ledger.states[run.folder].settled)
    elsewhere: list[SweepRun] = []
    running: dict[str, SweepRun] = {}
    most = len(queue)  # at once
    recheck = 0.0
    stopping = False
    while running or queue or elsewhere:
        if stop.signal is not None:
            if not stopping:
                pool.interrupt()
            stopping = True
            if not running:
                return
        elif elsewhere and time.monotonic() >= recheck:
            queue.extend(elsewhere)
            elsewhere.clear()
        while queue and not stopping and len(running) < most and pool.has_room():
            run = queue.popleft()
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
                pool.start(run.folder, execute, ledger.out, run, placed)
        for folder, outcome in pool.collect(POLL):
            run = running.pop(folder)
            crowded = outcome.kind == "starved" and bool(running)
            if crowded:
                # So many have room beside each other.
                most = len(running)
            match ledger.settle(run, outcome, stopping=stopping, crowded=crowded):
                case "waiting":
                    queue.append(run)
                case "elsewhere":
                    elsewhere.append(run)
                    recheck = time.monotonic() + RECHECK


class _Ledger:
    """The state of every run, kept in ``sweep.json`` for whoever wants to look.

    Nothing is read from it but the arguments of earlier runs: what is finished and what is not,
    the run folders say.
    """

    def __init__(self, sweep: Sweep, out: Path, progress: Progress | None) -> None:
        self.sweep, self.out = sweep, out
        self._progress = progress
        self._began: dict[str, float] = {}
        self.states = {run.folder: RunState(run.folder) for run in sweep.runs}
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._refuse_another()
            for run in sweep.runs:
                if self.finished(run):
                    self.states[run.folder] = RunState(run.folder, "skipped")
            self._write()
        except OSError as error:
            raise RunError(
                f"The sweep's folder {out} cannot be written, because {reason(error)}."
            ) from error
        for state in self.states.values():
            if state.settled:
                self._tell(state)

    def _refuse_another(self) -> None:
        """Finished runs are skipped, so they had better be those of this very sweep."""
        try:
            content = json.loads((self.out / SWEEP).read_bytes())
            name = content["name"]
            before = {entry["folder"]: entry["arguments"] for entry in content["runs"]}
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"The file {self.out / SWEEP} is not what a sweep writes; "
                "remove it, or choose another folder."
            ) from error
        if name != self.sweep.name:
            raise RunError(
                f"The folder {self.out} holds the sweep {name!r}; "
                f"choose another one for {self.sweep.name!r}."
            )
        for run in self.sweep.runs:
            now = run.plain_arguments()
            if before.get(run.folder, now) != now and self._folder(run).status != "new":
                raise RunError(
                    f"The run {run.folder!r} in {self.out} was begun with other arguments; "
                    "choose another folder, or remove that run."
                )

    def _folder(self, run: SweepRun) -> RunFolder:
        return RunFolder(self.out / run.folder)

    def finished(self, run: SweepRun) -> bool:
        return self._folder(run).status == "finished"

    def in_use(self, run: SweepRun) -> bool:
        """Whether somebody else is at it; what else is wrong, its worker will find out."""
        try:
            with claim(self.out, run):
                return False
        except InUse:
            return True
        except (OSError, RunError):
            return False

    def all_settled(self) -> bool:
        return all(state.settled for state in self.states.values())

    def start(self, run: SweepRun) -> None:
        self._began[run.folder] = time.monotonic()
        attempts = self.states[run.folder].attempts + 1
        self._update(run, state="running", attempts=attempts, reason="")

    def set(self, run: SweepRun, state: State) -> None:
        self._update(run, state=state, reason="")

    def settle(self, run: SweepRun, outcome: Outcome, *, stopping: bool, crowded: bool) -> State:
        """Enter an outcome; the state says whether the run has to be taken up again.

        Arguments:
            run: The run.
            outcome: What its worker said.
            stopping: Whether the sweep was asked to stop.
            crowded: Whether it was the others that left it no memory, which is no fault of its own.
        """
        before = self.states[run.folder]
        spent = before.seconds + time.monotonic() - self._began.pop(run.folder)
        kind, why = outcome
        seen = self.finished(run)
        if kind == "finished" and not seen:
            kind, why = (
                "failed",
                f"Its worker finished it, but its result is not in {self.out}, "
                "which all nodes must share.",
            )
        state: State
        attempts = before.attempts - crowded
        if kind == "busy":
            state = "elsewhere"
            self._update(run, state=state, attempts=before.attempts - 1)
            return state
        if kind == "skipped" and before.attempts == 1:
            state, why = "skipped", ""
        elif seen:
            # Even if the worker was lost afterwards, before it could say so.
            state, why = "finished", ""
        elif stopping:
            state = "cut off"
        else:
            state = "failed" if attempts >= ATTEMPTS else "waiting"
        self._update(run, state=state, attempts=attempts, reason=why, seconds=round(spent, 3))
        return state

    def close(self) -> None:
        """Leave nothing that reads as if it were still going on."""
        for folder, state in self.states.items():
            if state.state == "running":
                self.states[folder] = replace(state, state="cut off")
        self._save()

    def _update(self, run: SweepRun, **changes: Any) -> None:
        before = self.states[run.folder]
        after = self.states[run.folder] = replace(before, **changes)
        if after != before:
            self._save()
            self._tell(after)

    def _tell(self, state: RunState) -> None:
        if self._progress is not None:
            settled = sum(other.settled for other in self.states.values())
            self._progress(state, settled, len(self.states))

    def _save(self) -> None:
        try:
            self._write()
        except OSError as error:
            # The run folders hold the truth, so the runs need not suffer from this.
            logger.warning("%s was not written, because %s.", self.out / SWEEP, reason(error))

    def _write(self) -> None:
        own = [
            {**dataclasses.asdict(self.states[run.folder]), "arguments": run.plain_arguments()}
            for run in self.sweep.runs
        ]
        turn = self.out / CLAIMS
        turn.mkdir(exist_ok=True)
        with RunFolder(turn).lock(wait=True):
            content = {"name": self.sweep.name, "runs": [*own, *self._others()]}
            write_atomic(self.out / SWEEP, json.dumps(content, indent=1).encode() + b"\n")

    def _others(self) -> list[Any]:
        """What the file says of other runs of the sweep, which another process may be doing."""
        try:
            runs = json.loads((self.out / SWEEP).read_bytes())["runs"]
            return [entry for entry in runs if entry["folder"] not in self.states]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # nobody has written it yet, or it was refused before


# What happens in the worker.


@contextmanager
def claim(out: Path, run: SweepRun) -> Iterator[None]:
    """Be the only sweep that touches a run, from here to the end of the block."""
    place = out / CLAIMS / run.folder
    place.mkdir(parents=True, exist_ok=True)
    with RunFolder(place).lock():
        if (out / run.folder).is_dir():
            # Somebody may be at the run by hand, without a sweep. This lock is given back at
            # once, for the job to take it.
            with RunFolder(out / run.folder).lock():
                pass
        yield


def execute(out: Path, run: SweepRun, placed: Mapping[str, Any] | None = None) -> Outcome:
    """Do one run: in the worker, under its claim, whatever the job may raise.

    Arguments:
        out: The sweep's folder.
        run: The run.
        placed: Further arguments, which say where it is done and not what.
    """
    folder = out / run.folder
    try:
        with claim(out, run):
            # Looked at again under the claim: another process may just have finished it.
            if RunFolder(folder).status == "finished":
                return Outcome("skipped")
            # Whatever lies there tells of an earlier attempt.
            (out / CLAIMS / run.folder / ERROR).unlink(missing_ok=True)
            try:
                _resolve(run.job)(folder, **{**run.arguments, **(placed or {})})
            except BaseException:
                _write_traceback(out, run)
                raise
            if RunFolder(folder).status != "finished":
                return Outcome("failed", "Its job returned without finishing the run.")
            return Outcome("finished")
    except InUse as error:
        return Outcome("busy", str(error))
    except BaseException as error:
        if (why := memory_refusal(error)) is not None:
            return Outcome("starved", f"There is not enough memory for it ({why}).")
        # Interrupts too: a process that had to be told to stop has told all there is to tell.
        return Outcome("failed", sentence(error))


def _resolve(job: str | Job) -> Job:
    if not isinstance(job, str):
        return job
    module, _, name = job.partition(":")
    function: Job = getattr(import_module(module), name)
    return function


def _write_traceback(out: Path, run: SweepRun) -> None:
    with suppress(OSError):
        (out / CLAIMS / run.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
