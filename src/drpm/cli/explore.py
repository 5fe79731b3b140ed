"""The command ``drpm explore``: a page with a small partition to play with."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from drpm.cli.common import one_sentence


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
    with one_sentence():
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(render_page(), encoding="utf-8")
    typer.echo(f"Page: {out}")
    if not no_open and _has_display():
        webbrowser.open(out.resolve().as_uri())


def render_page() -> str:
    """The page, with its styles and its program."""
    from jinja2 import Environment, PackageLoader

    # The templates are found without the import of drpm.report, which takes seconds.
    loader = PackageLoader("drpm", "report/templates")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True)
    return environment.get_template("explore.html").render()


def _has_display() -> bool:
    """Whether a browser can open a window; without one, some would take over the terminal."""
    return sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
