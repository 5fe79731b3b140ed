"""How training went: one small panel for each term, the stages apart."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from drpm.report.style import FAINT, INK, LINE, PAD, WIDTH, bare, heading, label, new_figure, title

_STAGE_NAMES: Final = ("stage", "phase")
_PLACES: Final = ("epoch", "step")  # where a record belongs, the first that all records have
_NOT_TERMS: Final = {*_PLACES, *_STAGE_NAMES, "wall_time"}
_ACROSS: Final = 3
_MAX_PANELS: Final = 45
_FEW: Final = 25  # points that are marked, because a line between so few would tell less

# Beyond this ratio of the largest to the smallest value a linear axis shows only the start.
_WIDE: Final = 100


class Curve(NamedTuple):
    """The values of one term; those that were not finite are NaN."""

    term: str
    places: NDArray[np.float64]
    values: NDArray[np.float64]


class Stage(NamedTuple):
    """The curves of one stage of the training, and what their places count."""

    name: str
    unit: str
    curves: list[Curve]


def read_stages(records: Sequence[Mapping[str, Any]]) -> list[Stage]:
    """The curves of a run's metrics, stage by stage in order of appearance.

    A record names its stage under ``stage`` or ``phase``; those that name none are one stage.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        name = next((str(record[key]) for key in _STAGE_NAMES if record.get(key)), "")
        by_name.setdefault(name, []).append(record)
    stages = [_stage(name, members) for name, members in by_name.items()]
    return [stage for stage in stages if stage.curves]


def draw_curves(stages: Sequence[Stage]) -> Figure:
    """One panel for each term of each stage."""
    stages = _first_panels(stages)
    downs = [-(-len(stage.curves) // _ACROSS) for stage in stages]
    across = min(_ACROSS, max(len(stage.curves) for stage in stages))
    named = len(stages) > 1
    heights = [1.65 * down + (0.55 if named else 0.1) for down in downs]
    width = {1: 5.0, 2: 7.5}.get(across, WIDTH)
    figure = new_figure(width, sum(heights) + 0.35)
    title(figure, "Training curves")
    parts = figure.subfigures(len(stages), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, stage, down in zip(parts, stages, downs, strict=True):
        _draw_stage(part, stage, down, across)
        if named:
            name = label(stage.name or "unnamed stage", 60)
            part.suptitle(name, x=PAD / width, ha="left", size=9, weight="bold", color=INK)
    return figure


def _stage(name: str, records: Sequence[Mapping[str, Any]]) -> Stage:
    records = _merged(records)
    for unit in _PLACES:
        if all(_is_number(record.get(unit)) for record in records):
            places = [float(record[unit]) for record in records]
            break
    else:
        unit, places = "record", [float(place) for place in range(1, len(records) + 1)]
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for place, record in zip(places, records, strict=True):
        for term, value in record.items():
            if term in _NOT_TERMS or not (_is_number(value) or value is None):
                continue
            x, y = curves.setdefault(term, ([], []))
            x.append(place)
            # A run folder writes null for what was not finite.
            y.append(np.nan if value is None else float(value))
    return Stage(
        name, unit, [Curve(term, np.asarray(x), np.asarray(y)) for term, (x, y) in curves.items()]
    )


def _merged(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same records, but each mean of training is over enough steps.

    A record with a loss holds means over the steps since the one before. It is written at the end
    of an epoch, but also after so many steps, and wherever a run was saved or cut off. Means over
    few steps stray more than others and look like dips, so that neighbours are joined until they
    cover as many steps as such records usually do.
    """
    reports = [record for record in records if "loss" in record]
    steps = [record.get("step") for record in reports]
    if not reports or not all(map(_is_number, steps)):
        return list(records)
    lengths = np.diff(np.asarray([0, *steps], dtype=np.float64))
    if (lengths <= 0).any():
        return list(records)
    means = {
        id(reports[group[-1]]): _mean([reports[i] for i in group], lengths[group])
        for group in _groups(lengths.tolist(), _usual(lengths))
    }
    return [
        means.get(id(record), record)
        for record in records
        if "loss" not in record or id(record) in means
    ]


def _usual(lengths: NDArray[np.float64]) -> float:
    """The length that half of all steps are in one of at least."""
    longest_first = np.sort(lengths)[::-1]
    return float(longest_first[np.searchsorted(longest_first.cumsum(), lengths.sum() / 2)])


def _groups(lengths: Sequence[float], enough: float) -> list[list[int]]:
    """Neighbours that are enough together; what is left at the end goes to the last of them."""
    groups: list[list[int]] = [[]]
    for index in range(len(lengths)):
        groups[-1].append(index)
        if sum(lengths[i] for i in groups[-1]) >= enough:
            groups.append([])
    *whole, rest = groups
    if whole:
        whole[-1] += rest
    return whole or [rest]


def _mean(records: Sequence[Mapping[str, Any]], weights: NDArray[np.float64]) -> dict[str, Any]:
    """The last of some records, with the means over all of them."""
    found = dict(records[-1])
    if len(records) == 1:
        return found
    for term in found.keys() - _NOT_TERMS:
        values = [record.get(term) for record in records]
        if all(map(_is_number, values)):
            found[term] = float(np.average(np.asarray(values, dtype=np.float64), weights=weights))
        elif None in values:
            found[term] = None
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first_panels(stages: Sequence[Stage]) -> list[Stage]:
    """As many curves as a picture can hold."""
    chosen, left = [], _MAX_PANELS
    for stage in stages:
        if left:
            chosen.append(stage._replace(curves=stage.curves[:left]))
            left -= len(chosen[-1].curves)
    return chosen


def _draw_stage(part: SubFigure, stage: Stage, down: int, across: int) -> None:
    grid = part.subplots(down, across, squeeze=False, sharex=True)
    for index, axes in enumerate(grid.flat):
        if index >= len(stage.curves):
            axes.set_visible(False)
            continue
        _draw_curve(axes, stage.curves[index])
        # The last panel of each column carries the numbers, also where the last row is not full.
        if index + across >= len(stage.curves):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(stage.unit, size=8, color=INK)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    bare(axes, "left", "bottom")
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    finite = curve.values[np.isfinite(curve.values)]
    marker = "o" if len(curve.values) <= _FEW else None
    axes.plot(curve.places, curve.values, color=LINE, linewidth=1.2, marker=marker, markersize=2.5)
    name = label(curve.term.replace("_", " "), 34)
    if not len(finite):
        name += " (never finite)"
        axes.set_yticks([])
    elif finite.min() > 0 and finite.max() > _WIDE * finite.min():
        axes.set_yscale("log")
        axes.tick_params(axis="y", which="minor", left=False, labelleft=False)
        name += " (log scale)"
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
        # No factor or offset in a corner: what stands at the axis is the value.
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.tick_params(labelsize=7)
    heading(axes, name)
