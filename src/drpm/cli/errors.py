"""How a command refuses: one sentence on the error stream, and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn a refusal of the library into a sentence and exit code 1, without a traceback.

    Refusals are ValueErrors and failures of the disk; anything else is a bug and looks like one.
    """
    try:
        yield
    except ValueError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    else:
        return
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
