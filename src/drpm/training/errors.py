"""What can go wrong around a run, each told in one sentence that a person can act on."""

import errno
from pathlib import Path
from typing import Final

# What a shell reports for a process that a signal has ended is this plus the signal's number.
SIGNAL_EXIT: Final = 128

# What to do about a run that is not to go on, in words that fit after a semicolon.
BEGIN_ANEW: Final = "choose another folder, or overwrite it (on the command line --overwrite)"

# How torch and the libraries below it say that there is not enough.
_NO_MEMORY: Final = ("out of memory", "allocate memory", "alloc_failed", "allocation_failed")


class ConfigError(ValueError):
    """A setting that cannot be: its dotted name, what was expected and what came."""


class RunError(RuntimeError):
    """A run that cannot start or go on: the folder or file, and why."""


class InUse(RunError):
    """Somebody else is at this run; the message says who."""


class Interrupted(Exception):
    """A run was asked to stop, and has saved what it did."""

    def __init__(self, number: int, step: int, folder: Path) -> None:
        super().__init__(
            f"Stopped after step {step} and saved; run the same command again to go on ({folder})."
        )
        self.exit_code = SIGNAL_EXIT + number


def memory_refusal(error: BaseException) -> str | None:
    """What an error says, in a line, if it is that there was not enough memory; else nothing."""
    words = str(error).strip()
    # Torch has a class of its own for this on CUDA alone.
    known = any(x in words.lower() for x in _NO_MEMORY) and isinstance(error, RuntimeError)
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if not (known or full or isinstance(error, MemoryError)):
        return None
    # On CUDA a list of all processes follows.
    line = words.partition("\n")[0].partition(" Process ")[0]
    return line[:200].rstrip(".") or "none is left"


def reason(error: OSError) -> str:
    """Why the operating system refused, in words that fit after "because"."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    if error.errno == errno.EDQUOT:
        return "the disk quota is used up"
    if error.errno == errno.EEXIST and error.filename is not None:
        return f"a file is in the place of the folder {error.filename}"
    if error.errno == errno.ENOTDIR:
        return "a file is in the place of a folder that it should lie in"
    text = error.strerror or str(error) or type(error).__name__
    return f"of the error '{text}'"


def sentence(error: BaseException) -> str:
    """An error in one sentence; its type is named unless it is one of this package's own."""
    text = str(error).strip().partition("\n")[0].strip()
    if not isinstance(error, RunError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
