"""Fills the tables of the results document and draws its figures.

    python -m drpm.cli.results_page results docs/results.md

The text of the document is written by hand; see :mod:`drpm.report.tables`. The figures go into the
folder ``figures`` beside it.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from PIL import Image

from drpm.clustering import results as clustering
from drpm.factors import results as factors
from drpm.multitask import results as multitask
from drpm.report.plots import png
from drpm.report.tables import fill_tables, step_times
from drpm.supervised import results as supervised
from drpm.training.checkpoint import write_atomic
from drpm.training.errors import RunError, reason

_APPLICATIONS: Final = (clustering, factors, multitask, supervised)
TABLES: Final[Mapping[str, Callable[[Path], str]]] = {
    **{name: table for module in _APPLICATIONS for name, table in module.TABLES.items()},
    "step-times": step_times,
}
FIGURES: Final[Mapping[str, Callable[[Path], Figure]]] = {
    name: draw for module in _APPLICATIONS for name, draw in module.FIGURES.items()
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Updates the document; returns 1 after a one-sentence error."""
    parser = argparse.ArgumentParser(prog="python -m drpm.cli.results_page")
    parser.add_argument("results", type=Path, help="the folder of results")
    parser.add_argument("page", type=Path, help="the document to update")
    chosen = parser.parse_args(arguments)
    try:
        text = chosen.page.read_text(encoding="utf-8")
        write_atomic(chosen.page, fill_tables(text, TABLES, chosen.results).encode())
        folder = chosen.page.parent / "figures"
        folder.mkdir(exist_ok=True)
        for name, draw in FIGURES.items():
            write_atomic(folder / f"{name}.png", _with_palette(png(draw(chosen.results))))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {chosen.page} was not updated, because {reason(error)}.", file=sys.stderr)
        return 1
    return 0


def _with_palette(png: bytes) -> bytes:
    """A PNG file with 256 colors, about a third as large."""
    content = BytesIO()
    with Image.open(BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
        few.save(content, "PNG", optimize=True)
    return content.getvalue()


if __name__ == "__main__":
    sys.exit(main())
