"""How a command refuses: one sentence on the error stream, and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from drpm.training.errors import Interrupted, RunError

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
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        message = f"error: {why}"
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        message = f"error: There is not enough memory for this ({_first_line(error)})."
    except Interrupted as interruption:
        code, message = interruption.exit_code, str(interruption)
    else:
        return
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _is_out_of_memory(error: Exception) -> bool:
    # Torch has a class of its own for this on CUDA alone.
    words = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in words or "allocate memory" in words


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200].rstrip(".") or "none is left"
