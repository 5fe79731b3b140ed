"""The command line: ``drpm --help`` lists what it can do.

There is one module for each command or group of commands. Torch, matplotlib and the rest are
imported inside the commands that need them, so that ``--help`` and mistyped options answer at
once.
"""

from importlib import metadata
from typing import Annotated

import typer

from drpm.cli import bench, bounds, cluster, data, factors, multitask, reproduce, supervised
from drpm.cli.errors import EXIT_CODES, printing
from drpm.cli.help import PlainCommand, PlainGroup

__all__ = ["app", "main"]

app = typer.Typer(
    name="drpm",
    cls=PlainGroup,
    no_args_is_help=True,
    # A bug should look like one: the plain traceback, not a decorated page of local variables.
    pretty_exceptions_enable=False,
)

app.command(cls=PlainCommand)(cluster.cluster)
app.command(cls=PlainCommand)(factors.factors)
app.command(cls=PlainCommand)(multitask.multitask)
app.command(cls=PlainCommand)(supervised.supervised)
app.command(cls=PlainCommand)(bounds.bounds)
app.add_typer(data.app, name="data")
app.command(cls=PlainCommand)(reproduce.reproduce)
# The program reads its options itself, that for help among them.
app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})(bench.bench)


def main() -> None:
    """Run the command line."""
    with printing():
        app(prog_name="drpm")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"drpm {metadata.version('drpm')}")
        except metadata.PackageNotFoundError:
            typer.echo("drpm (run from a source tree that is not installed)")
        raise typer.Exit


@app.callback(epilog=EXIT_CODES)
def drpm(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Learn partitions: which things belong together, and how many make a group.

    It clusters data sets and files of your own, finds what two images share,
    divides a network among tasks, and does the experiments of the paper
    "Differentiable Random Partition Models" again. Every run leaves a folder
    with its model, its figures and a page that shows them.

    To start with:

      drpm cluster digits                   a small data set that comes along
      drpm cluster my.csv --clusters 5      a table of your own
    """
