"""How a command refuses: one sentence on the error stream, and an exit code."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from drpm.training.errors import Interrupted, RunError, memory_refusal, reason

EXIT_CODES = (
    "Exit codes: 0 done; 1 refused or failed, told in one sentence; 2 wrong usage; "
    "128 + n stopped by signal n, with everything saved."
)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn a refusal of the library into a sentence and exit code 1, without a traceback.

    Refusals are ValueErrors, runs that cannot go on and failures of disk and memory; anything else
    is a bug and looks like one.
    """
    code = 1
    try:
        yield
    except (ValueError, RunError) as error:
        message = f"error: {error}"
    except OSError as error:
        if _output_is_lost(error):
            raise  # told of by printing
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        message = f"error: {why}."
    except (MemoryError, RuntimeError) as error:
        refused = memory_refusal(error)
        if refused is None:
            raise
        message = f"error: There is not enough memory for this ({refused})."
    except Interrupted as interruption:
        code, message = interruption.exit_code, str(interruption)
    else:
        return
    typer.echo(message, err=True)
    raise typer.Exit(code)


@contextmanager
def printing() -> Iterator[None]:
    """Turn output that cannot be written into a sentence and exit code 1, for any command.

    A reader that has had enough, as ``head`` has, is left to typer, which ends without a word.
    """
    if sys.stdout is None:
        _refuse_to_print("it is closed")
    # Letters that the output has no code for should not undo what was computed.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not _output_is_lost(error):
            raise
        # Python would try to write what is left once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _refuse_to_print(reason(error))


def _refuse_to_print(why: str) -> NoReturn:
    typer.echo(f"error: The standard output cannot be written, because {why}.", err=True)
    sys.exit(1)


def _output_is_lost(error: OSError) -> bool:
    """Whether it was the standard output that an error came from."""
    if error.filename is not None:
        return False
    try:
        # What the output has kept, or else a line, which tells nothing in front of an error.
        print(flush=True)
    except OSError:
        return True
    return False
