"""What the page of results says of clusterings: tables, and what clusters generate."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from drpm.clustering.paper_tables import tables
from drpm.report.arrays import read_arrays
from drpm.report.figures import draw_samples
from drpm.report.result_page import ResultFigure, Section
from drpm.report.result_tables import Place, Table, table_lines
from drpm.report.style import png
from drpm.training.runs import ARRAYS

INTRODUCTION: Final = """\
## Clustering

Clusterings are judged on the test part by normalised mutual information (NMI), adjusted Rand index
(ARI) and accuracy under the best matching of clusters with classes (ACC), after the last epoch.
"""


def clustering_sections(results: Path) -> Iterator[Section]:
    """The part of the page on clusterings.

    Arguments:
        results: The folder of finished studies.
    """
    yield Section(INTRODUCTION)
    for table in tables():
        lines = [f"### {table.title}", "", table.about, "", *table_lines(table, results)]
        yield Section("\n".join(lines), tuple(_figures(table, results)))


def _figures(table: Table, results: Path) -> Iterator[ResultFigure]:
    """One for each of a table's own methods that has arrays with samples."""
    for row in table.rows:
        for place, group in zip(row.places, table.groups, strict=True):
            run = None if row.is_guest or place is None else _run(results, place)
            if run is not None and place is not None:
                caption = f"{row.name}, {group}, seed {run.name.removeprefix('seed-')}"
                name = f"{'-'.join(place)}.png"
                yield ResultFigure(
                    name, "What each cluster generates", caption, partial(_draw, run)
                )


def _run(results: Path, place: Place) -> Path | None:
    """The run of the first seed that has samples to show."""
    for path in sorted(results.joinpath(*place).glob(f"seed-*/{ARRAYS}")):
        if read_arrays(path.parent).samples is not None:
            return path.parent
    return None


def _draw(run: Path) -> bytes:
    return png(draw_samples(read_arrays(run)))
