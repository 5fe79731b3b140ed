"""All pictures of a finished run."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from drpm.report.arrays import Arrays, read_arrays
from drpm.report.bars import draw_sizes
from drpm.report.curves import draw_curves, read_stages
from drpm.report.exhibits import read_exhibits
from drpm.report.images import draw_image_partition, draw_image_samples
from drpm.report.matrices import draw_confusion
from drpm.report.points import draw_latent
from drpm.report.style import bears_name, counted, number, png
from drpm.report.tables import draw_row_partition, draw_row_samples
from drpm.training.errors import RunError
from drpm.training.runs import FIGURES, RESULT, RunFolder

NAMES: Final = ("samples", "examples", "partition", "latent", "confusion", "sizes", "curves")


class Picture(NamedTuple):
    """A picture, and what stands above it and in its place where it cannot be seen."""

    name: str
    title: str
    description: str
    png: bytes

    @property
    def width(self) -> int:
        """In pixels, as the head of every PNG file says."""
        return int.from_bytes(self.png[16:20], "big")


def write_figures(folder: Path | str) -> list[Path]:
    """Draw what there is to draw of a finished run, into ``figures`` of its folder.

    Pictures of an earlier call that there is nothing left to draw for are removed; other files
    stay.

    Arguments:
        folder: The folder of the run.

    Returns:
        The PNG files, in the order of a page.

    Raises:
        RunError: Where the run is not finished, a file of it is damaged or nothing can be written.
    """
    run = open_finished(folder)
    with run.lock():
        return save_pictures(run, draw_pictures(run))


def open_finished(folder: Path | str) -> RunFolder:
    """The run of a folder, which must have a result."""
    run = RunFolder.open(folder)
    if run.status != "finished":
        raise RunError(
            f"The run {folder} is not finished: its {RESULT} is missing or damaged; resume it "
            "first."
        )
    return run


def draw_pictures(run: RunFolder) -> list[Picture]:
    """All pictures that the run has something for."""
    return [
        Picture(name, title, description, png(draw(), name))
        for name, title, description, draw in _plans(run)
    ]


def save_pictures(run: RunFolder, pictures: list[Picture]) -> list[Path]:
    """Write pictures into the run's folder, in place of the earlier ones."""
    paths = [run.write_atomic(f"{FIGURES}/{picture.name}.png", picture.png) for picture in pictures]
    for path in set(run.figures_dir.glob("*.png")) - {
        run.figures_dir / f"{picture.name}.png" for picture in pictures
    }:
        with suppress(OSError):
            # Exhibits have any name, so what the report wrote must say so itself.
            if path.stem in NAMES or bears_name(path, path.stem):
                path.unlink()
    return paths


def _plans(run: RunFolder) -> Iterator[tuple[str, str, str, Callable[[], Figure]]]:
    """Name, title, description and drawing of each picture, in the order of a page."""
    arrays = read_arrays(run.path)
    exhibits = read_exhibits(run.path, NAMES)
    yield from _generated(arrays)
    if arrays.latent is not None and len(arrays.latent):
        by_label = "" if arrays.latent_labels is None else " and, beside it, by label"
        description = (
            f"{counted(len(arrays.latent), 'point')} of the latent space in the plane, coloured by "
            f"cluster{by_label}."
        )
        yield "latent", "Latent space", description, lambda: draw_latent(arrays)
    if arrays.confusion is not None:
        description = (
            f"How the points of {counted(len(arrays.confusion), 'label')} lie in "
            f"{counted(arrays.num_clusters, 'cluster')}; the clusters are in the order of the "
            "labels they match best, and the colour is the share of the label."
        )
        yield "confusion", "Labels and clusters", description, lambda: draw_confusion(arrays)
    if (sizes := arrays.sizes) is not None:
        described = ", ".join(number(size) for size in sizes[:20]) + (", …" * (len(sizes) > 20))
        description = f"How many points each cluster holds: {described}."
        yield "sizes", "Sizes of the clusters", description, lambda: draw_sizes(sizes)
    for exhibit in exhibits:
        yield exhibit.name, exhibit.title, exhibit.about, exhibit.draw
    if stages := read_stages(run.metrics()):
        terms = list(dict.fromkeys(curve.term for stage in stages for curve in stage.curves))
        description = f"The course of training, a panel for each of: {', '.join(terms)}."
        yield "curves", "Training", description, lambda: draw_curves(stages)


def draw_samples(arrays: Arrays) -> Figure:
    """What each cluster generates: images, or rows of a table."""
    assert arrays.samples is not None
    if arrays.samples.ndim > 3:
        return draw_image_samples(arrays.samples)
    columns = [arrays.column_name(index) for index in range(arrays.samples.shape[2])]
    whole = None if arrays.num_columns is None else int(arrays.num_columns)
    return draw_row_samples(arrays.samples, columns, whole)


def _generated(arrays: Arrays) -> Iterator[tuple[str, str, str, Callable[[], Figure]]]:
    """What a model made: images, or the rows of a table."""
    count = arrays.num_clusters
    if (samples := arrays.samples) is not None:
        title = "What each cluster generates"
        if samples.ndim > 3:
            description = (
                f"Generated images of {counted(count, 'cluster')}, {samples.shape[1]} of each, one "
                "row for each cluster."
            )
        else:
            whole = arrays.num_columns
            chosen = "" if whole is None else f", of {whole:,}, that tell the clusters apart best"
            description = (
                f"The distribution of {counted(samples.shape[2], 'column')}{chosen}, in "
                f"{counted(count, 'cluster')}, {counted(samples.shape[1], 'generated row')} of "
                "each."
            )
        yield "samples", title, description, lambda: draw_samples(arrays)
    if (examples := arrays.examples) is not None:
        description = (
            f"Real images of {counted(count, 'cluster')}, {examples.shape[1]} of each, one row for "
            "each cluster: those nearest to what it generates."
        )
        yield (
            "examples",
            "Real examples of each cluster",
            description,
            lambda: draw_image_samples(examples, "Real images nearest to what is generated"),
        )
    points, clusters = arrays.partition_points, arrays.partition_clusters
    if points is not None and clusters is not None and len(points):
        title = "One sampled partition"
        sizes = ", ".join(map(str, np.bincount(clusters, minlength=count).tolist()[:20]))
        description = (
            f"{counted(len(points), 'point')} generated from one sampled partition, cluster by "
            f"cluster; the sizes are {sizes}{', …' * (count > 20)}."
        )
        if points.ndim > 2:
            yield (
                "partition",
                title,
                description,
                lambda: draw_image_partition(points, clusters, count),
            )
        else:
            names = [arrays.column_name(index) for index in range(points.shape[1])]
            yield (
                "partition",
                title,
                description,
                lambda: draw_row_partition(points, clusters, count, names),
            )
