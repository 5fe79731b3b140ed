"""Pictures that runs describe themselves, on the page of results."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from drpm.report.exhibits import Exhibit, find_exhibit
from drpm.report.result_page import ResultFigure
from drpm.report.result_tables import seed_folders
from drpm.report.style import png, reduced


def exhibit_figures(study: Path, exhibit: str, name: str, whose: str) -> Iterator[ResultFigure]:
    """A picture of the first seed that has kept it, if there is one.

    Arguments:
        study: The folder of the runs of all seeds.
        exhibit: The name of the picture in a run.
        name: That of its file on the page.
        whose: The method and the data.
    """
    for run in seed_folders(study):
        if (found := find_exhibit(run, exhibit)) is not None:
            caption = f"{whose}, seed {run.name.removeprefix('seed-')}"
            yield ResultFigure(name, found.title, caption, partial(_draw, found), found.about)
            return


def _draw(exhibit: Exhibit) -> bytes:
    content = png(exhibit.draw())
    # Few colours are enough for grey images; with others they would change what is seen.
    values = exhibit.values
    is_grey = exhibit.kind == "grid" and (values.ndim == 4 or values.shape[2] == 1)
    return reduced(content) if is_grey else content
