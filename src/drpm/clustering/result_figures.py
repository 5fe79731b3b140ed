"""What the clusters of finished runs generate, as figures of the page of results."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from drpm.clustering.paper_tables import Place, Table
from drpm.report.arrays import read_arrays
from drpm.report.figures import draw_samples
from drpm.report.style import png, reduced
from drpm.training.checkpoint import write_atomic
from drpm.training.runs import ARRAYS

FOLDER: Final = "figures"  # beside the page


class ResultFigure(NamedTuple):
    """A figure of the page.

    Arguments:
        name: That of its file.
        caption: Whose clusters it shows.
        run: The folder with the arrays.
    """

    name: str
    caption: str
    run: Path

    @property
    def markdown(self) -> str:
        """The figure as a part of the page."""
        return f"What each cluster generates: {self.caption}.\n\n![{self.caption}]({self.link})"

    @property
    def link(self) -> str:
        return f"{FOLDER}/{self.name}"


def result_figures(table: Table, results: Path) -> Iterator[ResultFigure]:
    """The figures of a table: one for each of its methods that has arrays with samples.

    Arguments:
        table: A table of the page.
        results: The folder of finished studies.
    """
    for row in table.rows:
        for place, group in zip(row.places, table.groups, strict=True):
            run = None if row.is_guest or place is None else _run(results, place)
            if run is not None and place is not None:
                seed = run.name.removeprefix("seed-")
                caption = f"{row.name}, {group}, seed {seed}"
                yield ResultFigure(f"{'-'.join(place)}.png", caption, run)


def write_figure(figure: ResultFigure, folder: Path) -> Path:
    """Draw a figure into the folder of the page's figures.

    Arguments:
        figure: What is drawn.
        folder: The page's own folder.
    """
    path = folder / figure.link
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, reduced(png(draw_samples(read_arrays(figure.run)))))
    return path


def _run(results: Path, place: Place) -> Path | None:
    """The run of the first seed that has samples to show."""
    for path in sorted(results.joinpath(*place).glob(f"seed-*/{ARRAYS}")):
        if read_arrays(path.parent).samples is not None:
            return path.parent
    return None
