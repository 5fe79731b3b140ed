"""What the page of results says of clusterings: tables, and what clusters generate."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from drpm.clustering.paper_tables import MAIN, OBJECTIVES, VARYING, tables
from drpm.clustering.sweeps import CLUSTERS
from drpm.report.arrays import read_arrays
from drpm.report.figures import draw_samples
from drpm.report.images import draw_image_partition
from drpm.report.result_leads import leading_groups, leading_rows
from drpm.report.result_page import ResultFigure, Section
from drpm.report.result_tables import (
    Place,
    Row,
    Table,
    read_run,
    read_runs,
    seed_folders,
    summary_of,
    table_text,
)
from drpm.report.style import png, reduced
from drpm.report.trends import Trend, draw_trends
from drpm.training.runs import ARRAYS, RESULT

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
        text = table_text(table, results)
        if table.title == VARYING:
            text += leading_groups(table, results)
            # Samples of the most clusters, as in the paper: those of fewer say little more.
            figures = [*_trends(table, results), *_figures(table, table.rows[-1:], results)]
        else:
            text += leading_rows(table, results)
            figures = [*_figures(table, table.rows, results)]
        if table.title == OBJECTIVES:
            text += _differences(table, results)
        if table.title == MAIN:
            figures += _partitions(table, results)
        yield Section(text, tuple(figures))


def _differences(table: Table, results: Path) -> str:
    """How much the two rows of a table differ at most for the same seed, in a sentence."""
    told = []
    for index, group in enumerate(table.groups):
        one, other = (_by_seed(table, results, row.places[index]) for row in table.rows)
        largest = {
            shown: max(abs(one[seed][name] - other[seed][name]) for seed in one)
            for name, shown in table.metrics.items()
            if one and one.keys() == other.keys()
        }
        if largest:
            numbers = ", ".join(f"{gap:.4f} ({shown})" for shown, gap in largest.items())
            told.append(f"{group} {numbers}")
    return (
        f"\nLargest difference between the two for one seed: {'; '.join(told)}.\n" if told else ""
    )


def _by_seed(table: Table, results: Path, place: Place | None) -> dict[str, Mapping[str, float]]:
    """The scores of every seed that has all of them."""
    folders = [] if place is None else seed_folders(results.joinpath(*place))
    runs = {x.name: read_run(table, x / RESULT) for x in folders if (x / RESULT).exists()}
    scores = {
        seed: {name: value for name in table.metrics if (value := run[name]) is not None}
        for seed, run in runs.items()
    }
    return {seed: each for seed, each in scores.items() if len(each) == len(table.metrics)}


def _figures(table: Table, rows: Sequence[Row], results: Path) -> Iterator[ResultFigure]:
    """One for each of a table's own methods that has arrays with samples, in some rows."""
    for place, run, caption in _runs(table, rows, results):
        name = f"{'-'.join(place)}.png"
        yield ResultFigure(name, "What each cluster generates", caption, partial(_draw, run))


def _partitions(table: Table, results: Path) -> Iterator[ResultFigure]:
    """The paper's figure of a whole partition, for each of the same that has one to show."""
    for place, run, caption in _runs(table, table.rows, results):
        if read_arrays(run).partition_points is not None:
            name = f"{'-'.join(place)}-partition.png"
            draw = partial(_draw_partition, run)
            about = "A partition of the prior, and what it generates, cluster by cluster"
            yield ResultFigure(name, about, caption, draw)


def _runs(table: Table, rows: Sequence[Row], results: Path) -> Iterator[tuple[Place, Path, str]]:
    """Runs that have samples to show, each with its place and what it is called."""
    for row in rows:
        for place, group in zip(row.places, table.groups, strict=True):
            run = None if row.is_guest or place is None else _run(results, place)
            if run is not None and place is not None:
                seed = run.name.removeprefix("seed-")
                yield place, run, f"{row.name}, {group}, seed {seed}{_accuracy(table, run)}"


def _trends(table: Table, results: Path) -> Iterator[ResultFigure]:
    """Scores against the number of clusters, as soon as there are two of them."""
    panels: dict[str, list[Trend]] = {shown: [] for shown in table.metrics.values()}
    for index, method in enumerate(table.groups):
        found = {}
        for count, row in zip(CLUSTERS, table.rows, strict=True):
            runs = read_runs(table, results, row.places[index])
            if runs:
                found[count] = runs
        for name, shown in table.metrics.items():
            summaries = [summary_of(runs, name) for runs in found.values()]
            means, deviations = (
                np.array([getattr(x, part) for x in summaries], dtype=np.float64)
                for part in ("mean", "deviation")
            )
            panels[shown].append(Trend(method, np.array([*found], float), means, deviations))
    if any(len(trend.places) > 1 for trends in panels.values() for trend in trends):
        caption = "scores against the number of clusters"
        draw = partial(_draw_trends, panels, caption)
        yield ResultFigure("clusters.png", "The paper's figure", caption, draw)


def _draw_trends(panels: dict[str, list[Trend]], caption: str) -> bytes:
    return png(draw_trends(panels, "clusters", caption.capitalize()))


def _run(results: Path, place: Place) -> Path | None:
    """The run of the first seed that has samples to show."""
    for run in seed_folders(results.joinpath(*place)):
        if (run / ARRAYS).exists() and read_arrays(run).samples is not None:
            return run
    return None


def _accuracy(table: Table, run: Path) -> str:
    """What a run is worth, which of several seeds need not be what they are on average."""
    accuracy = read_run(table, run / RESULT)["accuracy"]
    return "" if accuracy is None else f", {table.metrics['accuracy']} {accuracy:.3f}"


def _draw(run: Path) -> bytes:
    return reduced(png(draw_samples(read_arrays(run))))


def _draw_partition(run: Path) -> bytes:
    arrays = read_arrays(run)
    points, clusters = arrays.partition_points, arrays.partition_clusters
    assert points is not None
    assert clusters is not None
    return reduced(png(draw_image_partition(points, clusters, arrays.num_clusters)))
