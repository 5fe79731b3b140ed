"""The progress of a sweep, on the error stream: a bar on a terminal, and a line for each change."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from drpm.training.sweep_running import RunState, SweepProgress


@contextmanager
def follow(name: str, console: Console | None = None) -> "Iterator[SweepProgress]":
    """Show the progress of a sweep to the end of the block.

    Args:
        name: The sweep's name.
        console: Where; by default the error stream.
    """
    console = console or Console(stderr=True)
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(name, total=None)

    def show(run: "RunState", settled: int, total: int) -> None:
        bar.update(task, completed=settled, total=total)
        # What was finished before is left to the summary.
        if run.state != "skipped":
            line = f"{settled} of {total} runs: {run.folder} {_described(run)}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    with bar:
        yield show


def _described(run: "RunState") -> str:
    again = f", attempt {run.attempts}" if run.attempts > 1 else ""
    match run.state:
        case "finished":
            return f"finished in {timedelta(seconds=round(run.seconds))}{again}"
        case "failed":
            return f"failed{again}: {run.reason}"
        case "waiting":
            return f"failed, will be retried: {run.reason}"
        case "in use":
            return "is in use by another process"
        case state:
            return f"{state}{again}"
