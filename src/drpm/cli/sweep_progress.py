"""How far a sweep is, for people to see: on the error stream, apart from results."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from drpm.training.sweep_ledger import Progress, RunState


@contextmanager
def follow(name: str, console: Console | None = None) -> "Iterator[Progress]":
    """Show a sweep to the end of the block: a live table on a terminal, lines elsewhere.

    Arguments:
        name: The sweep's name.
        console: Where; by default the error stream.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console)
        return
    board = Board(name)
    # Rendered several times a second, so that the clocks of the runs go on between changes.
    with Live(get_renderable=board.render, console=console, transient=True):
        yield board


def _told(run: "RunState") -> str:
    """What became of a run, in words."""
    again = f", attempt {run.attempts}" if run.attempts > 1 else ""
    match run.state:
        case "finished":
            return f"finished in {_clock(run.seconds)}{again}"
        case "running":
            return f"running{again}"
        case "failed" if run.reason:
            return f"failed{again}: {run.reason}"
        case "waiting" if run.reason:
            return f"failed{again}, will be tried again: {run.reason}"
        case "elsewhere":
            return "in use by another process"
        case _:
            return f"{run.state}{again}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


@final
class Lines:
    """A line for every change; what was finished before is left to the summary."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, run: "RunState", settled: int, total: int) -> None:
        if run.state != "skipped":
            line = f"{settled} of {total} runs: {run.folder} {_told(run)}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


@final
class Board:
    """A bar for the whole sweep, above the runs that go on or went wrong."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._start = clock()
        self._settled, self._total = 0, 0
        self._began: dict[str, float] = {}
        self._shown: dict[str, RunState] = {}

    def __call__(self, run: "RunState", settled: int, total: int) -> None:
        self._settled, self._total = settled, total
        if run.state == "running":
            self._began[run.folder] = self._clock()
        if run.state in ("finished", "skipped", "cut off"):
            self._shown.pop(run.folder, None)
        else:
            self._shown[run.folder] = run

    def render(self) -> RenderableType:
        now = self._clock()
        heading = Table.grid(padding=(0, 1))
        heading.add_row(
            Text(self._name, "bold"),
            ProgressBar(total=self._total or None, completed=self._settled, width=40),
            f"{self._settled} of {self._total} runs",
            _clock(now - self._start),
        )
        rows = Table.grid(padding=(0, 1))
        for folder, run in self._shown.items():
            style = "red" if run.state == "failed" else ""
            ticking = _clock(now - self._began[folder]) if run.state == "running" else ""
            rows.add_row(Text(f"  {folder}"), Text(_told(run), style), ticking)
        return Group(heading, rows)
