"""Errors of runs, with one-sentence messages."""

import errno
from typing import Final

# Added to the signal's number, the exit code of a process stopped by a signal.
SIGNAL_EXIT: Final = 128

# Ends messages about runs that cannot be resumed.
START_OVER: Final = "choose another folder, or overwrite it (on the command line --overwrite)"

# Parts of out-of-memory messages of torch and its libraries.
_NO_MEMORY: Final = ("out of memory", "allocate memory", "alloc_failed", "allocation_failed")


class ConfigError(ValueError):
    """An invalid setting: its dotted name, what was expected and what was given."""


class RunError(RuntimeError):
    """A run that cannot start or resume: the folder or file, and the reason."""


class Interrupted(Exception):
    """A run that was stopped by a signal and has saved a checkpoint."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = SIGNAL_EXIT + number


def memory_refusal(error: BaseException) -> str | None:
    """The first line of an out-of-memory error; None for other errors."""
    words = str(error).strip()
    # Torch has an own class for this only on CUDA.
    known = any(x in words.lower() for x in _NO_MEMORY) and isinstance(error, RuntimeError)
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if not (known or full or isinstance(error, MemoryError)):
        return None
    # On CUDA a list of all processes follows.
    line = words.partition("\n")[0].partition(" Process ")[0]
    return line[:200].rstrip(".") or "none is left"


def sentence(error: BaseException) -> str:
    """An error in one sentence, with its type unless it is an error of this package."""
    text = str(error).strip().partition("\n")[0].strip()
    if not isinstance(error, RunError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
