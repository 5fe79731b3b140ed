"""The progress of a training, on the error stream."""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from drpm.training.loop import Progress

# Lines go to log files, where more would be noise.
_SECONDS_PER_LINE: Final = 10.0


def make_progress(console: Console | None = None) -> Progress:
    """A bar on a terminal, lines elsewhere."""
    console = console or Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(console)


_CENTURY = 100 * 365 * 86400  # longer times overflow


@final
class _Pace:
    """Steps per second since the start."""

    def __init__(self, clock: Callable[[], float], total: int, done: int) -> None:
        self._clock, self._total, self._first = clock, total, done
        self._since = clock()

    def rate(self, step: int) -> float:
        return (step - self._first) / max(self._clock() - self._since, 1e-9)

    def left(self, step: int) -> timedelta:
        rate = self.rate(step)
        seconds = round((self._total - step) / rate) if rate > 0 else 0
        return timedelta(seconds=min(seconds, _CENTURY))


def _numbers(metrics: Mapping[str, float], rate: float) -> str:
    loss = f"loss {metrics['loss']:.4g}, " if "loss" in metrics else ""
    return f"{loss}{rate:,.0f} steps/s" if rate >= 10 else f"{loss}{rate:.2g} steps/s"


@final
class Bar:
    """A bar with the loss, the rate and the time left."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bar = RichProgress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
        )

    def start(self, total_steps: int, done: int) -> None:
        self._pace = _Pace(self._clock, total_steps, done)
        self._task = self._bar.add_task("", total=total_steps, completed=done)
        self._bar.start()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = _numbers(metrics, self._pace.rate(step))
        self._bar.update(self._task, completed=step, description=numbers)

    def stop(self) -> None:
        self._bar.stop()


@final
class Lines:
    """A line every ten seconds, with the loss, the rate and the time left."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock

    def start(self, total_steps: int, done: int) -> None:
        self._total, self._last = total_steps, -_SECONDS_PER_LINE
        self._begin = self._clock()
        self._pace = _Pace(self._clock, total_steps, done)
        if done:
            self._print(f"resuming after step {done:,} of {total_steps:,}")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        now = self._clock() - self._begin
        if now - self._last < _SECONDS_PER_LINE and step < self._total:
            return
        self._last = now
        numbers = _numbers(metrics, self._pace.rate(step))
        left = f", {self._pace.left(step)} left" if step < self._total else ""
        self._print(f"step {step:,} of {self._total:,}: {numbers}{left}")

    def stop(self) -> None:
        pass

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)
