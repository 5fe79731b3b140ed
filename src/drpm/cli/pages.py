"""The commands that write one page: ``drpm report`` and ``drpm explore``."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from drpm.cli.common import exit_on_error


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
    with exit_on_error():
        if out.suffix != ".html":
            raise ValueError(f"--out must end with .html, but got {out}.")
        from drpm.report.page import write_overview

        for folder, reason in write_overview(runs, out).items():
            typer.echo(f"Skipping {folder}: {reason}", err=True)
    typer.echo(f"Report: {out}")


def explore(
    out: Annotated[
        Path, typer.Option(help="The HTML file to write.", metavar="FILE", dir_okay=False)
    ] = Path("out/explore.html"),
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the page in a browser.")
    ] = False,
) -> None:
    """Explore a small partition in the browser.

    Writes a page that shows the exact distribution over the partitions of up
    to eight elements into up to four subsets. Move the scores, weights, size
    limits and the temperature, and see what changes. The page is one file that
    works without a server or a network. It opens if there is a display.
    """
    with exit_on_error():
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(render_explorer(), encoding="utf-8")
    typer.echo(f"Page: {out}")
    # Without a display, webbrowser may start a terminal browser.
    has_display = sys.platform == "darwin" or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    if has_display and not no_open:
        webbrowser.open(out.resolve().as_uri())


def render_explorer() -> str:
    """The HTML of :func:`explore`."""
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader("drpm.report")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True)
    return environment.get_template("explore.html").render()
