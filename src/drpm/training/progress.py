"""The progress of a training, on the error stream: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

# Lines go to log files, where more would be noise.
_SECONDS_PER_LINE: Final = 10.0


def make_progress() -> "TrainingProgress":
    """The progress of a training, for the argument ``progress`` of its functions."""
    return TrainingProgress()


@final
class TrainingProgress:
    """Steps taken, loss, steps per second and time left.

    Args:
        console: Where; by default the error stream.
        clock: The time in seconds.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console or Console(stderr=True), clock

    def start(self, total_steps: int, done: int) -> None:
        self._total, self._first, self._begin = total_steps, done, self._clock()
        self._last_line = -_SECONDS_PER_LINE
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        hidden = not self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, disable=hidden)
        self._task = self._bar.add_task("", total=total_steps, completed=done)
        self._bar.start()
        if done:
            self._print(f"resuming after step {done:,} of {total_steps:,}")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        elapsed = self._clock() - self._begin
        rate = (step - self._first) / max(elapsed, 1e-9)
        text = f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s"
        if "loss" in metrics:
            text = f"loss {metrics['loss']:.4g}, {text}"
        if step < self._total:
            seconds = (self._total - step) / max(rate, 1e-9)
            text += f", {timedelta(seconds=round(seconds))} left"
        self._bar.update(self._task, completed=step, description=text)
        due = elapsed - self._last_line >= _SECONDS_PER_LINE or step == self._total
        if due and not self._console.is_terminal:
            self._last_line = elapsed
            self._print(f"step {step:,} of {self._total:,}: {text}")

    def stop(self) -> None:
        self._bar.stop()

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)
