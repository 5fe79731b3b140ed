"""Shared options, completion, tables and error handling."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from drpm.data.catalogue import DATASETS
from drpm.training.errors import Interrupted, RunError, memory_refusal


def complete_from(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete from a list of words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


Seed = Annotated[int, typer.Option(help="The random seed.", min=0, max=2**63 - 1)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Out = Annotated[Path, typer.Option(help="Folder of a new or interrupted run.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run in the folder, if there is one.")
]
NameOrPath = Annotated[
    str,
    typer.Argument(
        help="A data set (see drpm data list), or your own data: a .csv, .npy, .npz or .parquet "
        "file, or a folder of images.",
        metavar="DATA",
        autocompletion=complete_from(DATASETS),
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="An option of the data set; may be repeated."
    ),
]


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Report expected errors in one sentence and exit with code 1.

    These are ValueErrors, runs that cannot start or resume, and disk or memory errors. Other
    exceptions are bugs and keep their traceback.
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
    """Print a table, or tab-separated lines if the output is not a terminal."""
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
