"""The command ``drpm bench``: the benchmark program of the source checkout."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import drpm
from drpm.cli.output import one_sentence


def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Options of the program, such as --quick.", metavar="[OPTIONS]"),
    ] = None,
) -> None:
    """Measure time and memory of the distributions on this device."""
    with one_sentence():
        root = Path(drpm.__file__).parents[2]
        if not (root / "benchmarks" / "__main__.py").is_file():
            raise ValueError(
                "The benchmark program is not part of the installed package: get the source, and "
                "run python -m benchmarks in its folder."
            )
    # Not the folder of the command, which may have a program of the same name.
    path = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "benchmarks", *(arguments or [])]
    raise typer.Exit(subprocess.call(command, env={**os.environ, **environment}))
