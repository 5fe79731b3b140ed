"""Figures of the bounds study."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from drpm.studies.bounds import Masses, summarize


def draw_settings(results: Sequence[Masses]) -> Figure:
    """The exact probability of every assignment, its bounds and its Monte Carlo estimate.

    Args:
        results: One setting, or several for panels with shared axes.
    """
    columns = min(2, len(results))
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(8, 5) if len(results) == 1 else (12, 4 * rows), layout="constrained")
    # Attached to the file writer directly: no window system and no global state are involved.
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    handles = {}
    for axes, masses in zip(grid.flat, results, strict=True):
        _draw(axes, masses)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            # What stands in brackets differs between panels.
            handles[label if len(results) == 1 else label.partition(" (")[0]] = handle
    for axes in grid[:, 0]:
        axes.set_ylabel("Probability")
    for axes in grid[-1]:
        axes.set_xlabel("Assignments, most likely first")
    num_subsets, num_elements = (
        len(x) for x in (results[0].setting.log_weights, results[0].setting.log_scores)
    )
    figure.suptitle(f"All assignments of {num_elements} elements to {num_subsets} subsets")
    figure.legend(
        [*handles.values()],
        [*handles],
        loc="outside lower center",
        ncols=min(5, 2 * len(results)),
        markerscale=3,
        frameon=False,
    )
    return figure


def save_figures(results: Sequence[Masses], folder: Path) -> list[Path]:
    """Writes one figure for each setting and one of all settings, and returns their paths."""
    figures = {f"bounds_{masses.setting.key}.png": draw_settings([masses]) for masses in results}
    figures["bounds.png"] = draw_settings(results)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=160)
    return [folder / name for name in figures]


def _draw(axes: Axes, masses: Masses) -> None:
    order = masses.log_exact.argsort(descending=True)
    ranks = np.arange(1, len(order) + 1)
    exact, lower, upper = (
        log_mass[order].exp().numpy()
        for log_mass in (masses.log_exact, masses.log_lower, masses.log_upper)
    )
    counts = masses.counts[order].numpy()
    drawn = counts > 0
    summary = summarize(masses)
    # From back to front: the counts scatter around the exact probability, and the points of a
    # tight bound must stay visible on both sides of the line. Okabe and Ito's palette.
    for name, x, y, color in (
        (f"Monte Carlo ({masses.num_draws:,} draws)", drawn, counts / masses.num_draws, "#009E73"),
        (f"Upper bound (median {summary.upper.median:.2f} nats off)", ..., upper, "#D55E00"),
        (f"Lower bound (median {summary.lower.median:.2f} nats off)", ..., lower, "#0072B2"),
    ):
        axes.scatter(ranks[x], y[x], s=3, color=color, linewidths=0, label=name)
    axes.plot(ranks, exact, color="black", linewidth=1.0, label="Exact")
    if not drawn.all():
        # A count of zero has no place on a log axis: such assignments are marked at its bottom.
        missing = ranks[~drawn]
        name = f"Never drawn ({len(missing):,} of {len(order):,})"
        bottom = axes.get_xaxis_transform()
        axes.plot(missing, 0 * missing + 0.015, "|", color="#009E73", transform=bottom, label=name)
    axes.set_yscale("log")
    axes.set_title(masses.setting.math_label)
    axes.grid(which="major", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
