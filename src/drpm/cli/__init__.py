"""The command line: ``drpm --help`` lists what it can do.

There is one module for each command or group of commands. Torch, matplotlib and the rest are
imported inside the commands that need them, so that ``--help`` and mistyped options answer at
once.
"""

import os
from importlib import metadata
from typing import Annotated

import typer

from drpm.cli import bench, bounds, data, reproduce, train
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

train.add_commands(app)
app.command(cls=PlainCommand)(bounds.bounds)
app.add_typer(data.app, name="data")
app.command(cls=PlainCommand)(reproduce.reproduce)
# The program reads its options itself, that for help among them.
app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})(bench.bench)


def main() -> None:
    """Run the command line."""
    _wait_politely()
    with printing():
        app(prog_name="drpm")


def _wait_politely() -> None:
    """Let threads that wait for each other soon leave their cores to other processes.

    The OpenMP of torch (libgomp) reads this when it is loaded, so it is set before torch is
    imported. By itself it lets a waiting thread spin 300,000 times, and while it does so beside
    a busy process, the thread it waits for does not get a core.
    """
    # Steps per second of drpm cluster digits on two cores, alone and beside one busy process: 79 to
    # 129 and 1 with 300,000, 88 and 11 with 10,000, 95 and 26 with 3,000, 75 to 85 and 51 with
    # 1,000. The bits of the results are the same.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


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
