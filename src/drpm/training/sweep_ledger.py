"""How far every run of a sweep is."""

import dataclasses
import json
import logging
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from drpm.training.backends import Outcome
from drpm.training.checkpoint import write_atomic
from drpm.training.errors import InUse, RunError, reason
from drpm.training.runs import RunFolder
from drpm.training.sweep_worker import claim
from drpm.training.sweeps import CLAIMS, Sweep, SweepRun

logger = logging.getLogger(__name__)

State: TypeAlias = Literal[
    "waiting", "running", "elsewhere", "finished", "skipped", "failed", "cut off"
]

SWEEP: Final = "sweep.json"
# After so many a run is given up.
FAILURES: Final = 2


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


class Ledger:
    """The state of every run, kept in ``sweep.json`` for whoever wants to look.

    Nothing is read from it but the arguments of earlier runs: what is finished and what is not,
    the run folders say.
    """

    def __init__(self, sweep: Sweep, out: Path, progress: Progress | None) -> None:
        self.sweep, self.out = sweep, out
        self._progress = progress
        self._began: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
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

    def settle(self, run: SweepRun, outcome: Outcome, *, stopping: bool, beside: int) -> State:
        """Enter an outcome; the state says whether the run has to be taken up again.

        Arguments:
            run: The run.
            outcome: What its worker said.
            stopping: Whether the sweep was asked to stop.
            beside: The number of others that left it no memory, which is no failure of its own.
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
            if beside:
                why = f"Beside {beside} other{'s' if beside > 1 else ''}: {why}"
            else:
                self._failures[run.folder] += 1
            state = "failed" if self._failures[run.folder] >= FAILURES else "waiting"
        self._update(run, state=state, reason=why, seconds=round(spent, 3))
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
