"""The results as one picture: cost against n, time above, memory below."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks import public_code
from benchmarks.cases import DRPM, GRAPH, OPERATIONS, TEXTBOOK
from benchmarks.results import Results
from benchmarks.series import Series, main_series

# Okabe and Ito's palette, with a marker each: the lines are told apart without colour too.
STYLES: dict[str, dict[str, Any]] = {
    DRPM: {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    TEXTBOOK: {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    GRAPH: {"color": "#56B4E9", "marker": "v", "linestyle": "-"},
}
PUBLIC_STYLE: dict[str, Any] = {"color": "#666666", "marker": "^", "linestyle": ":"}

Points = Sequence[tuple[int, float | None]]


def save_plot(results: Results, path: Path) -> None:
    """Draw the costs over n at the main group count, and write them as a PNG."""
    series = main_series(results.measurements)
    operations = list(dict.fromkeys(operation for operation, _ in series))
    num_groups = next(iter(series.values()))[0].case.num_groups

    # Wide enough for the title and the legend, even with a single panel.
    width = max(3.3 * len(operations) + 1.2, 7.5)
    figure = Figure(figsize=(width, 6.6), layout="constrained")
    # Attached to the file writer directly: no window system and no global state are involved.
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, len(operations), sharex=True, sharey="row", squeeze=False)
    for (time_axes, memory_axes), operation in zip(grid.T, operations, strict=True):
        time_axes.set_title(OPERATIONS[operation], fontsize=11)
        memory_axes.set_xlabel("Number of elements n")
        _draw_measured(time_axes, memory_axes, series, operation)
        if operation == public_code.OPERATION and num_groups == public_code.NUM_GROUPS:
            _draw_public(time_axes, memory_axes, results.device_type)
        _name_exponents(time_axes, results, operation)
        _finish(time_axes, _seconds_tick)
        _finish(memory_axes, _bytes_tick)
    grid[0, 0].set_ylabel("Time")
    grid[1, 0].set_ylabel("Peak extra memory")
    figure.suptitle(
        f"Cost of one partition into K = {num_groups} groups on "
        f"{results.environment['device_name']}",
        fontsize=13,
    )
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(len(handles), max(1, int(width / 3.6))),
        frameon=False,
    )
    figure.savefig(path, dpi=160)


def _draw_measured(time_axes: Axes, memory_axes: Axes, series: Series, operation: str) -> None:
    for implementation, style in STYLES.items():
        points = series.get((operation, implementation), [])
        times = [(point.case.num_elements, point.seconds) for point in points]
        memories = [(point.case.num_elements, point.peak_bytes) for point in points]
        _draw(time_axes, times, implementation, style)
        _draw(memory_axes, memories, implementation, style)


def _draw_public(time_axes: Axes, memory_axes: Axes, device_type: str) -> None:
    figures = public_code.FIGURES.get(device_type, ())
    label = (
        f"authors' public code (measured separately, {public_code.HARDWARE.get(device_type, '')})"
    )
    times = [(figure.num_elements, figure.seconds) for figure in figures]
    memories = [(figure.num_elements, figure.peak_bytes) for figure in figures]
    _draw(time_axes, times, label, PUBLIC_STYLE)
    _draw(memory_axes, memories, label, PUBLIC_STYLE)


def _draw(axes: Axes, points: Points, label: str, style: dict[str, Any]) -> None:
    # A peak of zero, too small for the system to notice, has no place on a log axis.
    shown = [(size, value) for size, value in points if value]
    if shown:
        axes.plot(*zip(*shown, strict=True), label=label, markersize=5, linewidth=1.6, **style)


def _name_exponents(axes: Axes, results: Results, operation: str) -> None:
    fits = [fit for fit in results.growth if fit.operation == operation]
    for line, fit in enumerate(fits):
        axes.annotate(
            f"~ n$^{{{fit.exponent:.2f}}}$",
            xy=(0.04, 0.95 - 0.085 * line),
            xycoords="axes fraction",
            color=STYLES[fit.implementation]["color"],
            verticalalignment="top",
        )


def _finish(axes: Axes, name_tick: Callable[[float], str]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: name_tick(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(which="major", color="0.88", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _seconds_tick(seconds: float) -> str:
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _bytes_tick(number: float) -> str:
    for unit, size in (("kB", 1e3), ("MB", 1e6)):
        if number < 999 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e9:,.0f} GB"
