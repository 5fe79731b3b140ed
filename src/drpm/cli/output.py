"""What commands print: tables, and errors of one sentence."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from drpm.training.errors import Interrupted, RunError, memory_refusal

EXIT_CODES = (
    "Exit codes: 0 success; 1 error; 2 usage error; "
    "128 + n stopped by signal n, with a checkpoint saved."
)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn an error of the library into a sentence and exit code 1, without a traceback.

    Such errors are ValueErrors, runs that cannot start or resume, and failures of disk and memory;
    anything else is a bug and shows its traceback.
    """
    code = 1
    try:
        yield
    except (ValueError, RunError) as error:
        message = f"error: {error}"
    except (OSError, MemoryError, RuntimeError) as error:
        refused = memory_refusal(error)
        if refused is not None:
            message = f"error: Out of memory ({refused})."
        elif isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            message = f"error: {where}{error.strerror or error}."
        else:
            raise
    except Interrupted as interruption:
        code, message = interruption.exit_code, str(interruption)
    else:
        return
    typer.echo(message, err=True)
    raise typer.Exit(code)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal, and lines with tabs where another program reads."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        for row in (header, *rows):
            typer.echo("\t".join(row))
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column, title in enumerate(header):
        table.add_column(title, no_wrap=column == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)
