"""Scores against noise ratios: the paper's figure, and the same for mosaics of many digits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from drpm.multitask.config import METHOD_NAMES
from drpm.multitask.sweeps import NOISE
from drpm.report.result_tables import Metrics
from drpm.report.style import GREY, INK, WIDTH, colours, label, new_figure, title
from drpm.report.trends import (
    STRAYING,
    Trend,
    band_key,
    draw_panel,
    draw_points,
    legend_below,
    line_key,
    mark_level,
    strays,
    whisker_key,
)
from drpm.training.summaries import summarize

NO_PENALTY: Final = f"{METHOD_NAMES['drpm']}, no penalty"
TASKS: Final = ("left", "right")  # of MultiMNIST
_NAMES: Final = (*METHOD_NAMES.values(), NO_PENALTY)
_STYLES: Final = {"left": "-", "right": "--"}  # the right digit is the noisy one
_CHANCE: Final = 0.1  # of ten digits

Shaded = tuple[Trend, NDArray[np.float64]]


def draw_noise(
    found: Mapping[str, Mapping[float, Sequence[Metrics]]], names: Mapping[str, str], above: str
) -> Figure:
    """Accuracies of both tasks, their mean, how it differs, and the sizes of their shares.

    A method has the same colour everywhere, and a digit the same style.

    Arguments:
        found: From a method to a noise ratio to the metrics of every seed, as runs end with them.
        names: From a method to what it is called.
        above: The title.
    """
    figure = new_figure(WIDTH, 6.2)
    title(figure, above)
    (mean, each), (lead, neurons) = figure.subplots(2, 2, sharex=True)
    shaded = [(_trend(runs, names[x], "accuracy"), _shade(names[x])) for x, runs in found.items()]
    draw_panel(mean, "mean accuracy of both digits", shaded := _known(shaded))
    draw_panel(each, "accuracy of each digit", list(_by_digit(found, names, "accuracy")))
    _draw_lead(lead, found, names)
    _draw_neurons(neurons, list(_by_digit(found, names, "size")))
    for axes in (lead, neurons):
        axes.set_xlabel("noise ratio of the right digit", size=8, color=INK)
    _explain(figure, shaded)
    return figure


def _draw_neurons(axes: Axes, shaded: Sequence[Shaded]) -> None:
    """How many of them each digit has."""
    if not shaded:
        axes.set_visible(False)  # no method that shares them out was run yet
        return
    draw_panel(axes, "neurons of each digit", shaded)
    _scale_neurons(axes, shaded)


def _by_digit(
    found: Mapping[str, Mapping[float, Sequence[Metrics]]], names: Mapping[str, str], metric: str
) -> Iterator[Shaded]:
    """What is known of a metric of either digit."""
    for method, runs in found.items():
        for task in TASKS:
            trend = _trend(runs, f"{names[method]}, {task}", f"{metric}_{task}")
            if len(trend.places):
                yield trend._replace(style=_STYLES[task]), _shade(names[method])


def _trend(runs: Mapping[float, Sequence[Metrics]], name: str, metric: str) -> Trend:
    values = {ratio: [seed.get(metric) for seed in seeds] for ratio, seeds in runs.items()}
    return noise_trend(name, values)


def _known(shaded: Iterable[Shaded]) -> list[Shaded]:
    return [(trend, colour) for trend, colour in shaded if len(trend.places)]


def _draw_lead(
    axes: Axes,
    found: Mapping[str, Mapping[float, Sequence[Metrics]]],
    names: Mapping[str, str],
) -> None:
    """How far the last method is ahead of the first: on one axis with both, nobody could tell."""
    first, last = next(iter(found)), [*found][-1]
    leads = []
    # Each digit steps back: it is the mean that methods are compared by.
    for name, metric, style, shade in (
        ("left digit", "accuracy_left", _STYLES["left"], GREY),
        ("right digit", "accuracy_right", _STYLES["right"], GREY),
        ("mean of both", "accuracy", "-", "black"),
    ):
        one, other = (_trend(found[method], name, metric) for method in (last, first))
        lead = _difference(one, other)._replace(style=style)
        if shade == GREY:
            lead = lead._replace(deviations=np.zeros_like(lead.means))
        leads.append((lead, np.array(to_rgb(shade))))
    if not (known := _known(leads)):
        axes.set_visible(False)  # one of them was not run yet
        return
    draw_panel(axes, f"accuracy: {names[last]} less {names[first]}", known)
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1.5)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="lower left")


def _difference(one: Trend, other: Trend) -> Trend:
    """One trend less another, where both are known.

    Deviations add up as those of runs that have nothing in common. Runs of one seed begin with the
    same encoder and the same batches: as far as that makes them stray together, the band is too
    wide.
    """
    places, mine, its = np.intersect1d(one.places, other.places, return_indices=True)
    return Trend(
        one.name,
        places,
        one.means[mine] - other.means[its],
        np.hypot(one.deviations[mine], other.deviations[its]),
    )


def _explain(figure: Figure, shaded: Sequence[Shaded]) -> None:
    """What colours, styles and bands are."""
    keys: list[Line2D | Patch] = [line_key(x, marker="o", size=3) for _, x in shaded]
    keys += [line_key(GREY, style) for style in _STYLES.values()]
    names = [trend.name for trend, _ in shaded] + [f"{task} digit" for task in _STYLES]
    if any(strays(trend) for trend, _ in shaded):
        keys, names = [*keys, band_key()], [*names, f"band: {STRAYING}"]
    legend_below(figure, keys, names)


def _shade(name: str) -> NDArray[np.float64]:
    """The colour of a method, whichever others are drawn with it."""
    shade: NDArray[np.float64] = colours(len(_NAMES))[_NAMES.index(name)]
    return shade


def draw_mosaic(panels: Mapping[str, Sequence[Trend]], metric: str, above: str) -> Figure:
    """What tasks of one image are worth, or how many neurons they have, each at its noise ratio.

    Neighbours are different tasks in different places of the image, so that no line joins them.

    Arguments:
        panels: From how many tasks there are to a trend for each method.
        metric: ``accuracy`` or ``size``.
        above: The title.
    """
    figure = new_figure(WIDTH, 0.9 + 1.75 * len(panels))
    title(figure, label(above, 100))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (count, trends) in zip(grid, panels.items(), strict=True):
        shaded = _known((trend, _shade(trend.name)) for trend in trends)
        draw_points(axes, count, shaded)
        if metric == "size":
            _scale_neurons(axes, shaded)
        else:
            axes.set_ylim(0, 1)
            mark_level(axes, _CHANCE, "chance")
        axes.set_xticks(NOISE)  # those of forty tasks would overlap
    grid[-1].set_xlabel("noise ratio of the task", size=8, color=INK)
    names = {trend.name for trends in panels.values() for trend in trends if len(trend.places)}
    shown = [name for name in _NAMES if name in names]
    dots = [line_key(_shade(name), "", "o") for name in shown]
    if any(strays(trend) for trends in panels.values() for trend in trends):
        dots, shown = [*dots, whisker_key()], [*shown, f"line: {STRAYING}"]
    legend_below(figure, dots, shown)
    return figure


def _scale_neurons(axes: Axes, shaded: Sequence[Shaded]) -> None:
    """From zero on, with what each task would get of all neurons in the middle, or lower."""
    share = float(np.concatenate([trend.means for trend, _ in shaded]).mean())
    highest = max(float((trend.means + trend.deviations).max()) for trend, _ in shaded)
    axes.set_ylim(0, max(2 * share, 1.1 * highest))
    mark_level(axes, share, f"even share, {share:.3g}")


def noise_trend(name: str, values: Mapping[float, Sequence[float | None]]) -> Trend:
    """Numbers against the noise ratio, where they are known; seeds that have none do not count.

    Arguments:
        name: What the trend is called.
        values: From a noise ratio to a number for each seed.
    """
    known = {
        ratio: summarize(numbers)
        for ratio, each in sorted(values.items())
        if (numbers := [number for number in each if number is not None])
    }
    return Trend(
        name,
        np.array([*known], dtype=np.float64),
        np.array([summary.mean for summary in known.values()], dtype=np.float64),
        np.array([summary.deviation or 0.0 for summary in known.values()], dtype=np.float64),
    )
