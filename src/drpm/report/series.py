"""Values over an axis: training curves, and means with deviations over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from drpm.report.plots import INK, LEGEND, WIDTH, clip, colors, new_figure, strip_frame

_UNITS: Final = ("epoch", "step")  # the first that all records have is the x axis
_NOT_METRICS: Final = {*_UNITS, "stage", "phase", "wall_time"}
_MAX_PANELS: Final = 45


class Series(NamedTuple):
    """Means and deviations over seeds at some places ``x``, all of the shape (P,)."""

    name: str
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


def series_panels(
    panels: Mapping[str, Sequence[Series]],
    xlabel: str,
    title: str,
    *,
    columns: int = 1,
    height: float = 2.6,
    is_line: bool = True,
) -> Figure:
    """Panels with one legend; series of one name have the same color in all of them.

    Series are lines with bands of one deviation, or else points with error bars side by side. The
    height is that of a panel in inches.
    """
    down = -(-len(panels) // columns)
    figure = new_figure(WIDTH, 0.8 + height * down, title)
    grid = figure.subplots(down, columns, squeeze=False)
    names = list(dict.fromkeys(series.name for each in panels.values() for series in each))
    shades = dict(zip(names, colors(len(names)), strict=True))
    handles: dict[str, Any] = {}
    for index, (axes, (heading, found)) in enumerate(zip(grid.flat, panels.items(), strict=True)):
        places = np.unique(np.concatenate([series.x for series in found]))
        step = min(np.diff(places).min(), np.ptp(places) / 12) if len(places) > 1 else 1.0
        for series in found:
            shade = shades[series.name]
            low, high = series.mean - series.deviation, series.mean + series.deviation
            if is_line:
                axes.fill_between(series.x, low, high, color=shade, alpha=0.15, linewidth=0)
                (drawn,) = axes.plot(series.x, series.mean, color=shade, marker="o", markersize=3)
            else:
                shift = 0.8 * step * ((names.index(series.name) + 0.5) / len(names) - 0.5)
                axes.vlines(series.x + shift, low, high, color=shade, linewidth=1)
                (drawn,) = axes.plot(series.x + shift, series.mean, "o", color=shade, markersize=3)
            handles.setdefault(series.name, drawn)
        strip_frame(axes, "left", "bottom", grid="both")
        axes.set_xticks(places if len(places) <= 12 else np.linspace(places[0], places[-1], 10))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(clip(heading, 60), loc="left", size=8.5, color=INK)
        if index + columns >= len(panels):
            axes.set_xlabel(xlabel, size=8, color=INK)
    legend = figure.legend(
        handles.values(), handles, loc="outside lower left", ncols=len(handles), **LEGEND
    )
    legend.set_title(f"{'Bands' if is_line else 'Vertical lines'}: one deviation over seeds")
    legend.get_title().set_fontsize(7.5)
    legend.set_alignment("left")
    return figure


class Curve(NamedTuple):
    """One metric of one training stage; values that were not finite are NaN."""

    stage: str
    metric: str
    unit: str
    points: list[tuple[float, float]]


def training_curves(records: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The curves of ``metrics.jsonl``, stage by stage (``stage`` or ``phase`` of a record)."""
    by_stage: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        stage = record.get("stage") or record.get("phase") or ""
        by_stage.setdefault(str(stage), []).append(record)
    curves: dict[tuple[str, str], Curve] = {}
    for stage, found in by_stage.items():
        units = (x for x in _UNITS if all(_is_number(record.get(x)) for record in found))
        unit = next(units, "record")
        for place, record in enumerate(_without_short(found), 1):
            for name, value in record.items():
                if name not in _NOT_METRICS and (value is None or _is_number(value)):
                    curve = curves.setdefault((stage, name), Curve(stage, name, unit, []))
                    # A run folder writes null for what was not finite.
                    y = np.nan if value is None else float(value)
                    curve.points.append((float(record.get(unit, place)), y))
    return list(curves.values())


def _without_short(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leaves out training records over less than half as many steps as the longest.

    A record with a loss holds means over the steps since the one before. Those at a checkpoint or
    an interruption cover few steps and would look like dips.
    """
    lengths, before = {}, 0.0
    for record in records:
        if "loss" in record and _is_number(record.get("step")):
            lengths[id(record)], before = record["step"] - before, record["step"]
    enough = max(lengths.values(), default=0.0) / 2
    return [record for record in records if lengths.get(id(record), enough) >= enough]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def curve_panels(curves: Sequence[Curve]) -> Figure:
    """One panel for each training curve."""
    curves = curves[:_MAX_PANELS]
    has_stages = len({curve.stage for curve in curves}) > 1
    across = min(3, len(curves))
    down = -(-len(curves) // across)
    figure = new_figure({1: 5.0, 2: 7.5}.get(across, WIDTH), 0.45 + 1.8 * down, "Training curves")
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(curves) :]:
        axes.set_visible(False)
    for axes, curve in zip(grid.flat, curves, strict=False):
        _draw_curve(axes, curve, f"{curve.stage}: " if has_stages else "")
    return figure


def _draw_curve(axes: Axes, curve: Curve, prefix: str) -> None:
    strip_frame(axes, "left", "bottom", grid="both")
    x, y = np.array(curve.points, dtype=np.float64).T
    axes.plot(x, y, linewidth=1.2, marker="o" if len(y) <= 25 else None, markersize=2.5)
    finite = y[np.isfinite(y)]
    name = f"{prefix}{curve.metric.replace('_', ' ')}"
    if not len(finite):
        name += " (never finite)"
    elif finite.min() > 0 and finite.max() > 100 * finite.min():
        axes.set_yscale("log")
        name += " (log scale)"
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.tick_params(labelsize=7)
    axes.set_xlabel(curve.unit, size=7, color=INK)
    axes.set_title(clip(name, 44), loc="left", size=8.5, color=INK)
