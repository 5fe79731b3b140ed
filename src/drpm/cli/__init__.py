"""The command line: ``drpm --help`` lists what it can do.

There is one module for each command or group of commands. Torch, matplotlib and the rest are
imported inside the commands that need them, so that ``--help`` and mistyped options answer at
once.
"""

import io
import os
import sys
from importlib import metadata
from typing import Annotated

import typer

from drpm.cli import bench, bounds, data, reproduce, train
from drpm.cli.output import EXIT_CODES

__all__ = ["app", "main"]

app = typer.Typer(
    name="drpm",
    no_args_is_help=True,
    # A bug should look like one: the plain traceback, not a decorated page of local variables.
    pretty_exceptions_enable=False,
)

train.add_commands(app)
app.command()(bounds.bounds)
app.add_typer(data.app, name="data")
app.command()(reproduce.reproduce)
# The program reads its options itself, --help included.
app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})(bench.bench)


def main() -> None:
    """Run the command line."""
    # Threads of OpenMP (libgomp) that wait for each other soon leave their cores to other
    # processes. Read when torch is imported. On two cores, drpm cluster digits takes 79 to 129
    # steps per second with the default of 300,000 and 95 with 3,000; beside one busy process 1
    # and 26. The results have the same bits.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # Characters that the output cannot encode must not lose the results.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
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
    """Differentiable random partition models: train, evaluate and reproduce.

    The commands cluster data, learn the shared factors of image pairs, train
    multitask networks, learn partitions from labels, and reproduce the paper.
    Every run writes a folder with the model, figures and an HTML report.

    Examples:

      drpm cluster digits                   an included data set
      drpm cluster my.csv --clusters 5      your own table
    """
