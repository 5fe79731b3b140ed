"""Errors of runs, with one-sentence messages."""

import errno
from typing import Final

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


class Interrupted(Exception):
    """A run that was stopped by a signal and has saved a checkpoint."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = SIGNAL_EXIT + number


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
