"""Sweeps: the runs behind a table or a figure, run one after the other or several at once.

Finished runs are skipped, interrupted ones are resumed, and one that fails is retried once, so the
same command completes a sweep that was stopped or killed.
"""

import inspect
import json
import tarfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, Literal, TypeAlias

from drpm.training.checkpoint import write_atomic
from drpm.training.config import TrainingConfig
from drpm.training.devices import connect
from drpm.training.errors import SIGNAL_EXIT, ConfigError, RunError, StopRequest, reason, sentence
from drpm.training.runs import ARRAYS, CONFIG, RESULT, RunFolder
from drpm.training.sweep_workers import error_file, is_finished, open_workers

BackendName: TypeAlias = Literal["local", "ray"]

SWEEP: Final = "sweep.json"
ATTEMPTS: Final = 2
ARCHIVE: Final = ".tar.gz"
# Seconds from one look at the signals to the next.
_POLL: Final = 0.5
# Bytes of arrays that are too large to be collected.
_LARGE: Final = 1_000_000


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    The job is called as ``job(folder, **arguments)`` in a process of its own. It starts or resumes
    the run in that folder and ends with :meth:`RunFolder.finish`. A job that can choose its device
    has another argument, ``device``, with a default.

    Args:
        folder: The run's folder, relative to that of the sweep.
        job: Where to import the function from: ``package.module:function``.
        arguments: What JSON can hold.
    """

    folder: str
    job: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A name and a list of runs.

    Args:
        name: The name, as in ``drpm reproduce NAME``.
        runs: The runs, in the order in which they are started; none lies inside another.
    """

    name: str
    runs: tuple[SweepRun, ...]


@dataclass(frozen=True)
class RunState:
    """The state of one run of a sweep; ``skipped`` was finished before."""

    folder: str
    state: Literal["waiting", "running", "finished", "skipped", "failed"] = "waiting"
    attempts: int = 0
    reason: str = ""
    seconds: float = 0.0

    @property
    def settled(self) -> bool:
        return self.state in ("finished", "skipped", "failed")


# Called at every change with the state of a run and the numbers of settled and of all runs.
SweepProgress: TypeAlias = Callable[[RunState, int, int], None]


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
        left = sum(not run.settled for run in self.runs)
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
    progress: SweepProgress = lambda run, settled, total: None,
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
    if backend == "local" and (address is not None or gpus is not None):
        raise ConfigError("address and gpus are for the backend 'ray', but it is 'local'.")
    if device is not None:
        _require_device(sweep, device, here=backend == "local")
    out = Path(out).absolute()  # because workers may have another working directory
    _record(sweep, out)
    states = {run.folder: RunState(run.folder) for run in sweep.runs}
    waiting: deque[SweepRun] = deque()
    for run in sweep.runs:
        if is_finished(out, run.folder):
            states[run.folder] = RunState(run.folder, "skipped")
        else:
            waiting.append(run)

    def update(run: SweepRun, **changes: Any) -> None:
        states[run.folder] = replace(states[run.folder], **changes)
        settled = sum(state.settled for state in states.values())
        progress(states[run.folder], settled, len(states))

    stop, interrupted = StopRequest(), False
    running: dict[Future[str], tuple[SweepRun, float]] = {}
    if waiting:
        extra = {} if device is None else {"device": device}
        with closing(open_workers(backend, workers, address, gpus)) as pool, stop:
            while running or (waiting and stop.signal is None):
                while waiting and stop.signal is None and len(running) < pool.size:
                    run = waiting.popleft()
                    attempts = states[run.folder].attempts + 1
                    update(run, state="running", attempts=attempts, reason="")
                    arguments = {**run.arguments, **extra}
                    future = pool.submit(out, run.folder, run.job, arguments)
                    running[future] = run, time.monotonic()
                if stop.signal is not None and not interrupted:
                    pool.interrupt()
                    interrupted = True
                for future in wait(running, _POLL, FIRST_COMPLETED).done:
                    run, began = running.pop(future)
                    seconds = round(time.monotonic() - began, 3)
                    # Finished, even if its process died afterwards.
                    if is_finished(out, run.folder):
                        update(run, state="finished", seconds=seconds)
                    elif stop.signal is None and states[run.folder].attempts == ATTEMPTS:
                        update(run, state="failed", reason=_reason(future), seconds=seconds)
                    else:
                        waiting.append(run)
                        update(run, state="waiting", reason=_reason(future), seconds=seconds)
    unsettled = not all(state.settled for state in states.values())
    return SweepReport(sweep.name, out, tuple(states.values()), stop.signal if unsettled else None)


def _require_device(sweep: Sweep, device: str, *, here: bool) -> None:
    """Refuse a device that does not exist, or that the runs do not let one choose."""
    config = TrainingConfig(device=device)
    if here:
        connect(config)
    for job in {run.job for run in sweep.runs}:
        if "device" not in inspect.signature(resolve_name(job)).parameters:
            raise ConfigError(
                f"device must be omitted for the sweep {sweep.name!r}, whose runs do not take "
                f"one, but got {device!r}."
            )


def _record(sweep: Sweep, out: Path) -> None:
    """Record the arguments of all runs; refuse a folder with runs of other arguments."""
    path = out / SWEEP
    try:
        out.mkdir(parents=True, exist_ok=True)
        known = dict(json.loads(path.read_bytes())["runs"]) if path.exists() else {}
    except OSError as error:
        raise RunError(
            f"The sweep's folder {out} cannot be written, because {reason(error)}."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"The file {path} is not a valid sweep file; remove it, or choose another folder."
        ) from error
    for run in sweep.runs:
        now = json.loads(json.dumps(dict(run.arguments)))
        if known.get(run.folder, now) != now and RunFolder(out / run.folder).status != "new":
            raise RunError(
                f"The run {run.folder!r} in {out} was started with different arguments; "
                "choose another folder, or remove that run."
            )
        known[run.folder] = now
    write_atomic(path, json.dumps({"runs": known}, indent=1).encode() + b"\n")


def _reason(future: "Future[str]") -> str:
    error = future.exception()
    why = future.result() if error is None else sentence(error)
    return why or "The job returned without a finished run in its folder."


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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.name.endswith(ARCHIVE):
            with tarfile.open(target, "w:gz") as archive:
                for place, path in found.items():
                    archive.add(path, place)
        else:
            for place, path in found.items():
                (target / place).parent.mkdir(parents=True, exist_ok=True)
                write_atomic(target / place, path.read_bytes())
    except OSError as error:
        raise RunError(f"{target} was not written, because {reason(error)}.") from error
    return list(found)
