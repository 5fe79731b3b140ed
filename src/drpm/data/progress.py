"""Progress on a terminal; silence where there is none."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Go through items, showing how far it has come."""
    from rich.console import Console
    from rich.progress import track as rich_track

    # On the error stream: what a command prints may be read by another program.
    console = Console(stderr=True)
    yield from rich_track(
        items,
        description,
        total=total,
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


class DownloadBar:
    """A progress bar as pooch calls it."""

    def __init__(self, description: str) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task(description, total=None)
        self._progress.start()

    @property
    def total(self) -> int:
        """The number of bytes to come; pooch sets it."""
        return int(self._progress.tasks[0].total or 0)

    @total.setter
    def total(self, total: int) -> None:
        self._progress.update(self._task, total=total)

    def update(self, amount: int) -> None:
        """Count bytes that have come."""
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        """Start again at nothing."""
        self._progress.reset(self._task, total=self._progress.tasks[0].total)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
