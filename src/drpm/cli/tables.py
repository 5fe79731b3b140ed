"""Tables for people, and lines for programs."""

from collections.abc import Sequence

import typer


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; lines with tabs where another program reads."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        for row in (header, *rows):
            typer.echo("\t".join(row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column, title in enumerate(header):
        table.add_column(title, no_wrap=column == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)
