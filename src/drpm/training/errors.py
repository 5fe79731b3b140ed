"""Errors of runs, each a sentence that a person can act on, and signals that stop a run."""

import errno
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, final

# The exit code of a process that was ended by a signal is this plus the signal's number.
SIGNAL_EXIT: Final = 128

# The end of a sentence about a run that cannot be resumed.
START_OVER: Final = "choose another folder, or overwrite it (on the command line --overwrite)"

# How torch and the libraries below it report a lack of memory.
_NO_MEMORY: Final = ("out of memory", "allocate memory", "alloc_failed", "allocation_failed")


class ConfigError(ValueError):
    """An invalid setting: its dotted name, what was expected and what was given."""


class RunError(RuntimeError):
    """A run that cannot start or be resumed: the folder or file, and why."""


class RunInUse(RunError):
    """A run that another process holds."""


class Interrupted(Exception):
    """A run that was stopped by a signal and has saved a checkpoint."""

    def __init__(self, number: int, step: int, folder: Path) -> None:
        super().__init__(
            f"Stopped after step {step} and saved; run the same command again to resume ({folder})."
        )
        self.exit_code = SIGNAL_EXIT + number


@final
class StopRequest:
    """A context in which SIGINT and SIGTERM are recorded, so that a step can finish.

    A second signal of the same kind has its default effect.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread can have handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # None is a handler that Python did not set and cannot restore.
                if signal.getsignal(number) is not None:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, self._previous[number])

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def memory_refusal(error: BaseException) -> str | None:
    """The message of an error, in a line, if it is a lack of memory; else None."""
    words = str(error).strip()
    # Torch has a class of its own for this on CUDA alone.
    known = any(x in words.lower() for x in _NO_MEMORY) and isinstance(error, RuntimeError)
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if not (known or full or isinstance(error, MemoryError)):
        return None
    # On CUDA a list of all processes follows.
    line = words.partition("\n")[0].partition(" Process ")[0]
    return line[:200].rstrip(".") or "none is left"


def sentence(error: BaseException) -> str:
    """An error in one sentence; its type is named unless it is one of this package's own."""
    text = str(error).strip().partition("\n")[0].strip()
    if not isinstance(error, RunError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
