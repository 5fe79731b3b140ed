"""The command ``drpm report``: several runs on one page."""

from pathlib import Path
from typing import Annotated

import typer

from drpm.cli.common import one_sentence


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of finished runs, or of runs seed-...", metavar="RUNS..."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write or replace.")] = Path(
        "report.html"
    ),
) -> None:
    """Compare finished runs on one HTML page.

    Shows the scores of every run, means over seeds, a picture of each run and
    links to their own pages. Folders that cannot be read are listed with the
    reason.
    """
    with one_sentence():
        if out.suffix != ".html":
            raise ValueError(f"--out must end with .html, but got {out}.")
        from drpm.report.page import write_overview

        faults = write_overview(runs, out)
        for folder, reason in faults.items():
            typer.echo(f"{folder} is left out: {reason}", err=True)
    typer.echo(f"Report: {out}")
