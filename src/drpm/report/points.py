"""A latent space in the plane, coloured by cluster and, where they are known, by label."""

from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from drpm.report.arrays import Arrays
from drpm.report.matrices import best_matching
from drpm.report.style import (
    FAINT,
    INK,
    MAX_COLOURS,
    WIDTH,
    bare,
    colours,
    counted,
    heading,
    label,
    new_figure,
    title,
)

_MAX_POINTS: Final = 10_000  # drawn; beyond, points only cover each other


def draw_latent(arrays: Arrays) -> Figure:
    """The points by cluster and, where there are labels, the same points by label."""
    assert arrays.latent is not None
    assert arrays.latent_clusters is not None
    points, clusters, labels = arrays.latent, arrays.latent_clusters, arrays.latent_labels
    # In a random but fixed order, so that no group lies on top because it comes last.
    drawn = np.random.default_rng(0).permutation(len(points))[:_MAX_POINTS]
    num_panels = 1 if labels is None else 2
    width = WIDTH / 2 if num_panels == 2 else 6.0
    figure = new_figure(num_panels * width, 1.35 + (width - 0.3) * _steepness(points))
    panels = figure.subplots(1, num_panels, squeeze=False)[0]
    above = f"Latent space, {counted(len(points), 'point')}"
    title(figure, above if len(drawn) == len(points) else f"{above}, {len(drawn):,} of them drawn")
    palette = colours(arrays.num_clusters)
    names = [str(index) for index in range(arrays.num_clusters)]
    _scatter(panels[0], points[drawn], clusters[drawn], palette, names)
    heading(panels[0], "by cluster")
    if labels is not None:
        num_labels = int(labels.max(initial=-1)) + 1
        if arrays.label_names is not None:
            num_labels = len(arrays.label_names)
        palette = _matching_colours(labels, clusters, num_labels, arrays.num_clusters)
        names = [arrays.label_name(index) for index in range(num_labels)]
        _scatter(panels[1], points[drawn], labels[drawn], palette, names)
        heading(panels[1], "by label")
    return figure


def _steepness(points: NDArray[Any]) -> float:
    """Height over width of the points, within what makes a picture."""
    across, up = np.ptp(points, axis=0).astype(np.float64)
    return float(np.clip(up / across, 0.5, 1.2)) if across > 0 else 1.0


def _matching_colours(
    labels: NDArray[Any], clusters: NDArray[Any], num_labels: int, num_clusters: int
) -> NDArray[np.float64]:
    """Each label in the colour of the cluster that fits it best: what agrees looks the same."""
    known = labels >= 0
    table = np.zeros((num_labels, num_clusters), np.int64)
    np.add.at(table, (labels[known], clusters[known]), 1)
    matched = best_matching(table)
    palette = colours(max(num_labels, num_clusters))
    # Labels without a cluster of their own get the colours that are left.
    unused = iter(sorted(set(range(len(palette))) - set(matched.values())))
    places = [matched[index] if index in matched else next(unused) for index in range(num_labels)]
    return palette[places]


def _scatter(
    axes: Axes,
    points: NDArray[Any],
    groups: NDArray[Any],
    palette: NDArray[np.float64],
    names: list[str],
) -> None:
    unknown = np.asarray([[0.83, 0.83, 0.83]])
    # A group of -1 is unknown and takes the last colour.
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=float(np.clip(20_000 / max(len(points), 1), 3, 10)),
        c=np.concatenate((palette, unknown))[groups],
        linewidths=0,
        alpha=0.85,
    )
    bare(axes, "left", "right", "top", "bottom")
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    # The units of an embedding mean nothing; equal distances must look equal.
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    _name_groups(axes, points, groups, names)
    # More colours than this cannot be looked up; the names at the groups have to do.
    if len(names) <= MAX_COLOURS:
        _legend(axes, palette, names)


def _name_groups(axes: Axes, points: NDArray[Any], groups: NDArray[Any], names: list[str]) -> None:
    """Write each name in the middle of its group, unless another one stands there already."""
    outline = [withStroke(linewidth=2.5, foreground="white")]
    distance = 0.03 * float(np.ptp(points, axis=0).max())
    taken: list[NDArray[Any]] = []
    for index, name in enumerate(names):
        members = points[groups == index]
        if not len(members):
            continue
        # The point next to the middle: where a group is in pieces, the middle is nowhere.
        offsets = members - np.median(members, axis=0)
        place = members[np.square(offsets).sum(1).argmin()]
        if any(np.abs(place - other).max() < distance for other in taken):
            continue
        taken.append(place)
        axes.text(
            place[0],
            place[1],
            label(name, 12),
            ha="center",
            va="center",
            size=8,
            weight="bold",
            color=INK,
            path_effects=outline,
        )


def _legend(axes: Axes, palette: NDArray[np.float64], names: list[str]) -> None:
    handles = [
        Line2D([], [], linestyle="", marker="o", markersize=5, color=tuple(colour))
        for colour in palette
    ]
    longest = max((len(name) for name in names), default=0)
    across = 10 if longest <= 3 else 5 if longest <= 9 else 3
    # Legends are filled column by column; this order makes them read row by row.
    order = [place for start in range(across) for place in range(start, len(names), across)]
    axes.legend(
        [handles[place] for place in order],
        [label(names[place], 16) for place in order],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncols=min(across, max(len(names), 1)),
        fontsize=8,
        frameon=False,
        labelcolor=INK,
        handlelength=1,
        handletextpad=0.3,
        columnspacing=1,
    )
