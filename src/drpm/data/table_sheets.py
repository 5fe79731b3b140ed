"""Pictures of tables: the distribution of each column, or the rows as lines of colour."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from drpm.data.types import Dataset, Split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#333333"

_GREY = "#8a8a8a"
_MAX_HISTOGRAMS = 24
_MAX_COLOURS = 10  # beyond ten the colours could not be told apart
_MAX_ROWS = 400


def shorten(name: str, longest: int = 14) -> str:
    """A name that fits, its end cut off where it is too long."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def table_figure(dataset: Dataset, split: Split) -> "Figure":
    """The figure of a table, without a title."""
    classes: tuple[str, ...] = ()
    target = None
    for name, names in dataset.classes.items():
        if name in split.targets:
            target, classes = split.targets[name].cpu().numpy(), names
            break
    values = split.inputs.detach().float().cpu().numpy()
    if values.shape[1] <= _MAX_HISTOGRAMS:
        return _histograms(values, dataset.columns, target, classes)
    return _heatmap(values, target, classes)


def _histograms(
    values: NDArray[np.float32],
    columns: tuple[str, ...],
    target: NDArray[np.int64] | None,
    classes: tuple[str, ...],
) -> "Figure":
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    count = values.shape[1]
    across = min(count, 4)
    down = -(-count // across)
    figure = Figure(figsize=(2.3 * across + 0.4, 1.6 * down + 0.9))
    grid = figure.subplots(down, across, squeeze=False)
    figure.subplots_adjust(
        left=0.03,
        right=0.97,
        top=1 - 0.7 / figure.get_figheight(),
        bottom=0.45 / figure.get_figheight(),
        wspace=0.15,
        hspace=0.75,
    )
    labelled = target is not None and len(classes) <= _MAX_COLOURS
    palette = colormaps["tab10"](range(_MAX_COLOURS))
    for place, axes in enumerate(grid.flat):
        if place >= count:
            axes.set_visible(False)
            continue
        column = values[:, place]
        edges = np.linspace(column.min(), column.max(), 31)
        if labelled:
            groups = [column[target == index] for index in range(len(classes))]
            axes.hist(
                groups,
                edges,
                stacked=True,
                color=list(palette[: len(classes)]),
                label=list(map(shorten, classes)),
            )
        else:
            axes.hist(column, edges, color="#4c72b0")
        name = columns[place] if columns else f"column {place + 1}"
        axes.set_title(shorten(name, 28), size=8, color=INK, pad=3)
        axes.set_yticks([])
        axes.tick_params(labelsize=6, colors=_GREY, length=2)
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(_GREY)
    if labelled:
        figure.legend(
            *grid.flat[0].get_legend_handles_labels(),
            loc="lower center",
            ncols=len(classes),
            fontsize=7,
            frameon=False,
            labelcolor=INK,
            handlelength=1,
            columnspacing=1,
        )
    return figure


def _heatmap(
    values: NDArray[np.float32], target: NDArray[np.int64] | None, classes: tuple[str, ...]
) -> "Figure":
    """Rows as lines of colour, those of a class together."""
    from matplotlib.figure import Figure

    shown = np.arange(min(len(values), _MAX_ROWS))
    if target is not None:
        shown = shown[np.argsort(target[shown], kind="stable")]
    figure = Figure(figsize=(8.5, 5.2))
    axes = figure.add_axes((0.12, 0.09, 0.8, 0.8))
    rows = values[shown]
    limit = float(np.quantile(np.abs(rows), 0.99)) or 1.0
    signed = float(rows.min()) < 0
    picture = axes.imshow(
        rows,
        aspect="auto",
        interpolation="nearest",
        cmap="RdBu_r" if signed else "magma",
        vmin=-limit if signed else 0,
        vmax=limit,
        extent=(0.5, values.shape[1] + 0.5, len(shown) - 0.5, -0.5),  # columns count from one
    )
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("column", size=8, color=_GREY)
    axes.tick_params(labelsize=7, colors=_GREY, length=2)
    if target is not None:
        found, starts = np.unique(target[shown], return_index=True)
        ends = np.append(starts[1:], len(shown))
        names = [shorten(classes[int(index)]) if index >= 0 else "" for index in found]
        axes.set_yticks((starts + ends) / 2 - 0.5, names)
        axes.hlines(starts[1:] - 0.5, *axes.get_xlim(), color="white", linewidth=0.6)
    bar = figure.colorbar(picture, ax=axes, pad=0.015, fraction=0.03)
    bar.ax.tick_params(labelsize=6, colors=_GREY, length=2)
    bar.outline.set_visible(False)
    return figure
