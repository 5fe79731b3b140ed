"""The command line: ``drpm --help`` lists what it can do.

Torch, matplotlib and the rest are imported inside the commands that need them, so that ``--help``
and mistyped options answer at once.
"""

import io
import json
import os
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer

from drpm import __version__
from drpm.cli import data, pages, predict, reproduce, train
from drpm.cli.common import Json, Seed, one_sentence, print_table
from drpm.experiments.base import JOBS, find_job

__all__ = ["app", "main"]

app = typer.Typer(
    name="drpm",
    no_args_is_help=True,
    # A bug should look like one: the plain traceback, not a decorated page of local variables.
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    # Threads of OpenMP (libgomp) that wait for each other soon leave their cores to other
    # processes. Read when torch is imported. On two cores beside one busy process, drpm cluster
    # digits takes 1 step per second with the default of 300,000 and 26 with 3,000.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # Characters that the output cannot encode must not lose the results.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app(prog_name="drpm")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"drpm {__version__}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 success; 1 error; 2 usage error; "
    "128 + n stopped by signal n, with a checkpoint saved."
)
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


for command in JOBS:
    kind = find_job(command)
    app.command(command, help=kind.help)(train.make_command(kind))

app.command()(predict.predict)
app.command()(pages.report)
app.command()(pages.explore)


@app.command()
def bounds(
    out: Annotated[
        Path, typer.Option(help="Folder for the figure and the summary.", file_okay=False)
    ] = Path("out/bounds"),
    draws: Annotated[int, typer.Option(help="Monte Carlo samples per setting.", min=1)] = 1_000_000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare the paper's bounds on the probability of a partition with the exact one.

    There are five elements and five subsets, as in the paper. The table shows
    the distance of each bound from the exact log-probability over all 3,125
    assignments, in nats; the error of the sum of all probabilities; the largest
    error of a Monte Carlo estimate, in standard errors; and the number of
    assignments that were never sampled.
    """
    with one_sentence():
        # Before the work: a folder that cannot be written is refused at once.
        out.mkdir(parents=True, exist_ok=True)
        typer.echo(f"Sampling {draws:,} partitions for each of four settings", err=True)
        from drpm.studies import bounds as study

        document = study.run(out, draws, seed)
    if as_json:
        typer.echo(json.dumps({**document, "figure": str(out / "bounds.png")}, indent=2))
        return
    rows = []
    for name, found in document["settings"].items():
        gaps = [f"{x:.2f}" for bound in ("lower", "upper") for x in found[bound].values()]
        error, distance = abs(found["total_mass"] - 1), found["max_standard_errors"]
        checks = [f"{error:.0e}", "-" if distance is None else f"{distance:.2f}"]
        rows.append([name, *gaps, *checks, f"{found['num_never_drawn']:,}"])
    gaps = [f"{bound} {of}" for bound in ("Lower", "Upper") for of in ("median", "max", "mean")]
    print_table(["Setting", *gaps, "Sum error", "Monte Carlo", "Never sampled"], rows)
    typer.echo(f"Summary: {out / 'bounds.json'}")
    typer.echo(f"Figure: {out / 'bounds.png'}")


app.add_typer(data.app, name="data")
app.command()(reproduce.reproduce)


# The program reads its options itself, --help included.
@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Options of the program, such as --quick.", metavar="[OPTIONS]"),
    ] = None,
) -> None:
    """Measure time and memory of the distributions on this device."""
    with one_sentence():
        from drpm import __file__ as place

        root = Path(place).parents[2]
        if not (root / "benchmarks" / "__main__.py").is_file():
            raise ValueError(
                "The benchmark program is not part of the installed package: get the source, and "
                "run python -m benchmarks in its folder."
            )
    # Before the folder of the command, which may have a program of the same name.
    sys.path.insert(0, str(root))
    resolve_name("benchmarks.__main__:main")(arguments or [])
