"""Pictures of the bounds study: masses in, PNG files out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from drpm.studies.bounds import Masses, summarize

# Okabe and Ito's palette: told apart by every common kind of colour vision.
EXACT_COLOUR = "#000000"
UPPER_COLOUR = "#D55E00"
LOWER_COLOUR = "#0072B2"
DRAWN_COLOUR = "#009E73"

RESOLUTION = 160


def draw_setting(masses: Masses) -> Figure:
    """One setting, with the looseness of the bounds in the legend."""
    figure = _figure(8.0, 5.0)
    axes = figure.subplots()
    _draw(axes, masses, point_size=5)
    summary = summarize(masses)
    looseness = {
        "Upper bound": f"median {summary.upper.median:.2f}, at most {summary.upper.max:.2f} nats",
        "Lower bound": f"median {summary.lower.median:.2f}, at most {summary.lower.max:.2f} nats",
    }
    handles, labels = axes.get_legend_handles_labels()
    labels = [f"{label} ({looseness[label]})" if label in looseness else label for label in labels]
    axes.legend(handles, labels, loc="lower left", fontsize=9, markerscale=3, framealpha=0.95)
    axes.set_title(f"{masses.setting.math_label}:  {_shape(masses)}", fontsize=13)
    axes.set_xlabel("Assignments, most likely first")
    axes.set_ylabel("Probability mass")
    return figure


def draw_all(results: Sequence[Masses]) -> Figure:
    """All settings side by side on the same axes, so that they can be compared."""
    figure = _figure(12.0, 8.0)
    grid = figure.subplots(2, 2, sharex=True, sharey=True, squeeze=False)
    for axes, masses in zip(grid.flat, results, strict=True):
        _draw(axes, masses, point_size=3)
        axes.set_title(masses.setting.math_label, fontsize=13)
    for axes in grid[:, 0]:
        axes.set_ylabel("Probability mass")
    for axes in grid[-1, :]:
        axes.set_xlabel("Assignments, most likely first")
    figure.suptitle(f"All assignments of {_shape(results[0])}", fontsize=14)
    # One legend for all panels; what the labels say in parentheses differs between them.
    handles = {
        label.partition(" (")[0]: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=len(handles),
        markerscale=3,
        frameon=False,
    )
    return figure


def save_figures(results: Sequence[Masses], folder: Path) -> list[Path]:
    """Write one picture per setting and one of all settings; return where they are."""
    figures = {f"bounds_{masses.setting.key}.png": draw_setting(masses) for masses in results}
    figures["bounds.png"] = draw_all(results)
    paths = []
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=RESOLUTION)
        paths.append(folder / name)
    return paths


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    # Attached to the file writer directly: no window system and no global state are involved.
    FigureCanvasAgg(figure)
    return figure


def _draw(axes: Axes, masses: Masses, *, point_size: float) -> None:
    order = masses.log_exact.argsort(descending=True)
    ranks = np.arange(1, len(order) + 1)
    exact, lower, upper = (
        log_mass[order].exp().numpy()
        for log_mass in (masses.log_exact, masses.log_lower, masses.log_upper)
    )
    counts = masses.counts[order].numpy()
    drawn = counts > 0

    # From back to front: the counts scatter around the exact mass, and where a bound is tight its
    # points must stay visible on both sides of the line.
    axes.scatter(
        ranks[drawn],
        counts[drawn] / masses.num_draws,
        s=0.6 * point_size,
        color=DRAWN_COLOUR,
        linewidths=0,
        label=f"Monte Carlo ({masses.num_draws:,} draws)",
    )
    axes.scatter(ranks, upper, s=point_size, color=UPPER_COLOUR, linewidths=0, label="Upper bound")
    axes.scatter(ranks, lower, s=point_size, color=LOWER_COLOUR, linewidths=0, label="Lower bound")
    axes.plot(ranks, exact, color=EXACT_COLOUR, linewidth=1.0, label="Exact")
    axes.set_yscale("log")
    axes.set_xlim(-0.01 * len(order), 1.01 * len(order))
    if not drawn.all():
        # A count of zero has no place on a log axis, and leaving it out would hide it: mark
        # such assignments along the bottom edge.
        missing = ranks[~drawn]
        axes.scatter(
            missing,
            np.full(len(missing), 0.015),
            s=14,
            marker="|",
            color=DRAWN_COLOUR,
            linewidths=0.8,
            transform=axes.get_xaxis_transform(),
            label=f"Never drawn ({len(missing):,} of {len(order):,})",
        )
    axes.grid(which="major", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _shape(masses: Masses) -> str:
    num_elements, num_subsets = len(masses.setting.log_scores), len(masses.setting.log_weights)
    return f"$n = {num_elements}$ elements to $K = {num_subsets}$ subsets"
