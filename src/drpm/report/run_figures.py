"""All figures of a finished run."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drpm.report import plots
from drpm.report.figure_data import FigureSpec, figure_specs, read_arrays
from drpm.report.numbers import counted
from drpm.report.plots import colors, png
from drpm.report.series import curve_panels, training_curves
from drpm.training.errors import RunError
from drpm.training.runs import ARRAYS, RunFolder

MAX_CLUSTERS: Final = 50  # rows of images
MAX_IMAGES: Final = 32  # of a cluster
_MAX_PANELS: Final = 24  # columns of a table with a panel each
_heat_map: Final = partial(plots.matrix, texts=np.empty((0, 0)), limits=(-2.5, 2.5))

Arrays = Mapping[str, NDArray[Any]]


class RunFigure(NamedTuple):
    """A drawn figure, its title, and a description for those who cannot see it."""

    name: str
    title: str
    description: str
    png: bytes


def draw_figures(run: RunFolder) -> list[RunFigure]:
    """Draws all figures that the run has data for."""
    drawn = []
    for name, title, description, draw in _planned(run):
        try:
            drawn.append(RunFigure(name, title, description, png(draw())))
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            raise RunError(
                f"The file {run.path / ARRAYS} does not hold what the figure {name} needs: {error}"
            ) from error
    return drawn


def draw_spec(spec: FigureSpec) -> Figure:
    """Draws a figure that a run describes itself."""
    figure: Figure = getattr(plots, spec.kind)(spec.values, spec.rows, spec.columns, spec.title)
    return figure


def draw_stored(run: str, name: str, results: Path) -> Figure:
    """Draws a figure that a run in a folder of results describes itself."""
    (spec,) = (x for x in figure_specs(read_arrays(results / run)) if x.name == name)
    return draw_spec(spec)


def _planned(run: RunFolder) -> Iterator[tuple[str, str, str, Callable[[], Figure]]]:
    """Name, title, description and drawing of each figure, in the order of the page."""
    arrays = read_arrays(run.path)
    for name, (key, title, draw) in _OF_CLUSTERS.items():
        if len(arrays.get(key, ())):
            yield name, title, title, partial(draw, arrays)
    for spec in figure_specs(arrays):
        yield spec.name, spec.title, spec.about, partial(draw_spec, spec)
    if curves := training_curves(run.metrics()):
        metrics = ", ".join(dict.fromkeys(curve.metric for curve in curves))
        yield "curves", "Training", f"Training curves of {metrics}.", partial(curve_panels, curves)


def draw_samples(arrays: Arrays) -> Figure:
    """What each cluster generates: images, or the distribution of table columns."""
    samples = arrays["samples"]
    if samples.ndim > 3:
        return _cluster_images(samples, "Generated images, one row for each cluster")
    columns = _column_names(arrays, samples.shape[2])
    if len(columns) <= _MAX_PANELS and len(samples) <= 30:
        title = "Generated rows: median, middle 50 % and 90 % of each column"
        return plots.intervals(samples, columns, title)
    title = "Generated rows: mean of each column, in standard deviations"
    if (whole := arrays.get("num_columns")) is not None:
        title += f" ({len(columns)} of {whole:,} columns)"
    means = _standardized(samples.reshape(-1, len(columns))).reshape(samples.shape).mean(1)
    return _heat_map(means, [f"cluster {index}" for index in range(len(means))], columns, title)


def draw_examples(arrays: Arrays) -> Figure:
    """Real images of each cluster."""
    return _cluster_images(arrays["examples"], "Real images, one row for each cluster")


def draw_partition(arrays: Arrays) -> Figure:
    """The points of one sampled partition, cluster by cluster."""
    points, clusters = arrays["partition_points"], arrays["partition_clusters"]
    sizes = np.bincount(clusters, minlength=_num_clusters(arrays))
    title = f"One sampled partition of {counted(len(points), 'point')} (sizes in brackets)"
    names = [f"cluster {index} ({size})" for index, size in enumerate(sizes)]
    if points.ndim > 2:
        shown = names[:MAX_CLUSTERS]
        rows = [points[clusters == index][:MAX_IMAGES] for index in range(len(shown))]
        return plots.grid(rows, shown, (), title, colors(len(sizes)))
    labels = [""] * len(points)
    for name, size, end in zip(names, sizes, np.cumsum(sizes), strict=True):
        # Clusters of one or two rows are lower than their name.
        if size >= 3:
            labels[end - 1 - size // 2] = name
    order = np.argsort(clusters, kind="stable")
    columns = _column_names(arrays, points.shape[1])
    return _heat_map(_standardized(points)[order], labels, columns, title)


def draw_latent(arrays: Arrays) -> Figure:
    """The latent space by cluster and, where labels are known, by label."""
    points, clusters = arrays["latent"], arrays["latent_clusters"]
    num_clusters = _num_clusters(arrays)
    names = [str(index) for index in range(num_clusters)]
    panels = {"by cluster": (clusters, colors(num_clusters), names)}
    if (labels := arrays.get("latent_labels")) is not None:
        num_labels = max(int(labels.max(initial=-1)) + 1, len(arrays.get("label_names", ())))
        table = np.zeros((num_labels, num_clusters), np.int64)
        np.add.at(table, (labels[labels >= 0], clusters[labels >= 0]), 1)
        matched = _best_matching(table)
        # A label has the color of its cluster; labels without one get the colors that are left.
        shades = colors(max(num_labels, num_clusters))
        unused = iter(sorted(set(range(len(shades))) - set(matched.values())))
        chosen = [matched[i] if i in matched else next(unused) for i in range(num_labels)]
        panels["by label"] = (labels, shades[chosen], _label_names(arrays, num_labels))
    return plots.scatter(points, panels, f"Latent space, {counted(len(points), 'point')}")


def draw_confusion(arrays: Arrays) -> Figure:
    """Counts of labels by clusters, the clusters in the order of the labels they match."""
    counts = arrays["confusion"]
    matched = _best_matching(counts)
    order = [column for _, column in sorted(matched.items())]
    order += sorted(set(range(counts.shape[1])) - set(order))
    totals = counts.sum(1, keepdims=True)
    agreed = sum(float(counts[pair]) for pair in matched.items()) / max(totals.sum(), 1)
    return plots.matrix(
        (counts / np.maximum(totals, 1))[:, order],
        _label_names(arrays, len(counts)),
        [str(index) for index in order],
        f"Labels (rows) and clusters (columns): {agreed:.1%} on matching pairs",
        np.vectorize(lambda count: f"{count:,}")(counts[:, order]),
        (0, 1),
    )


def draw_sizes(arrays: Arrays) -> Figure:
    """The number of points in each cluster."""
    sizes = arrays["sizes"]
    names = [str(index) for index in range(len(sizes))]
    title = f"Points in each cluster, {sizes.sum():,} in all"
    return plots.bars(sizes[:, None], names, (), title, colors(len(sizes)))


# From the name of a figure to the array that it needs, its title and its drawing.
_OF_CLUSTERS: Final[Mapping[str, tuple[str, str, Callable[[Arrays], Figure]]]] = {
    "samples": ("samples", "What each cluster generates", draw_samples),
    "examples": ("examples", "Real images nearest to what is generated", draw_examples),
    "partition": ("partition_points", "One sampled partition", draw_partition),
    "latent": ("latent", "Latent space", draw_latent),
    "confusion": ("confusion", "Labels and clusters", draw_confusion),
    "sizes": ("sizes", "Sizes of the clusters", draw_sizes),
}


def _cluster_images(images: NDArray[Any], title: str) -> Figure:
    shown = images[:MAX_CLUSTERS, :MAX_IMAGES]
    names = [f"cluster {index}" for index in range(len(shown))]
    return plots.grid(list(shown), names, (), title, colors(len(images)))


def _best_matching(counts: NDArray[Any]) -> dict[int, int]:
    """The one-to-one pairs of rows and columns with the largest total: column by row."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(counts, maximize=True)
    return dict(zip(rows.tolist(), columns.tolist(), strict=True))


def _num_clusters(arrays: Arrays) -> int:
    counts = [len(arrays[name]) for name in ("samples", "examples", "sizes") if name in arrays]
    members = [x for name, x in arrays.items() if name in ("partition_clusters", "latent_clusters")]
    return max(*counts, *(int(x.max(initial=-1)) + 1 for x in members), 0)


def _label_names(arrays: Arrays, count: int) -> list[str]:
    return [str(name) for name in arrays.get("label_names", range(count))]


def _column_names(arrays: Arrays, count: int) -> list[str]:
    default = [f"column {index + 1}" for index in range(count)]
    return [str(name) for name in arrays.get("column_names", default)]


def _standardized(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Columns of mean zero and deviation one; a constant column is zero."""
    values = rows.astype(np.float64)
    deviation = values.std(0)
    result: NDArray[np.float64] = (values - values.mean(0)) / np.where(deviation > 0, deviation, 1)
    return result
