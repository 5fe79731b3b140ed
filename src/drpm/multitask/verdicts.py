"""What results of several tasks say, in sentences, and whether the paper's claims hold."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from drpm.data.mosaic import noise_ratios, task_names
from drpm.multitask import sweeps
from drpm.multitask.config import METHOD_NAMES
from drpm.multitask.evaluation import chance_correlation, rank_correlation
from drpm.report.result_tables import Metrics, Table, read_runs, shown, shown_digits
from drpm.training.summaries import Summary, is_tied, summarize
from drpm.training.words import joined

# The noise ratios at which the paper sees more neurons for the right digit than without noise.
_CLAIMED: Final = (0.6, 0.7, 0.8)
# Where it sees that digit neglected.
_NEGLECTED: Final = 0.9
_CHANCE: Final = 0.05  # as usual


def moved_neurons(table: Table, results: Path) -> str:
    """For every order of the tasks, where the noisy digit has more neurons than without noise."""
    told = []
    for index, group in enumerate(table.groups):
        found = {
            ratio: _values(read_runs(table, results, row.places[index]), "size_right")
            for ratio, row in zip(sweeps.NOISE, table.rows, strict=True)
        }
        # One seed alone decides nothing.
        sizes = {ratio: values for ratio, values in found.items() if len(values) > 1}
        without = sizes.pop(sweeps.NOISE[0], None)
        if without is not None and sizes:
            told.append(f"- {group}: {_moved(without, sizes)}")
    if not told:
        return ""
    about = (
        "Whether the right digit has more neurons than without noise, by Welch's test: in brackets "
        "are how many more or fewer they are on average, and how often numbers of neurons that do "
        f"not depend on noise would differ as much. From {_CHANCE} on that is undecided; of twenty "
        "such tests, one decides by chance."
    )
    return "\n".join(["", about, "", *told, ""])


def _moved(without: Sequence[float], sizes: Mapping[float, Sequence[float]]) -> str:
    """Where the right digit has more neurons, and whether the paper's claim holds.

    Arguments:
        without: Its neurons without noise, for every seed.
        sizes: The same at every noise ratio.
    """
    first = summarize(without)
    kinds: dict[str, list[float]] = {"more": [], "fewer": [], "undecided": []}
    chances = {ratio: _chance(values, without) for ratio, values in sizes.items()}
    changes = {ratio: summarize(values).mean - first.mean for ratio, values in sizes.items()}
    for ratio, change in changes.items():
        decided = "more" if change > 0 else "fewer"
        kinds["undecided" if chances[ratio] >= _CHANCE else decided].append(ratio)
    shifts = {ratio: f"{change:+z.1f}" for ratio, change in changes.items()}
    more, fewer, undecided = (
        ", ".join(f"{ratio} ({shifts[ratio]}, {_told(chances[ratio])})" for ratio in ratios)
        or "no ratio"
        for ratios in kinds.values()
    )
    return (
        f"{shown(first, 1)} neurons without noise, more at {more}, fewer at {fewer}, undecided at "
        f"{undecided}.{_held_claim(kinds, shifts)}"
    )


def _chance(one: Sequence[float], other: Sequence[float]) -> float:
    """How likely two means are to differ as much by chance."""
    from scipy.stats import ttest_ind_from_stats

    # From means and deviations: from numbers that are nearly alike it would warn.
    (mean, deviation), (other_mean, other_deviation) = summarize(one), summarize(other)
    if not (deviation or other_deviation):
        return float(mean == other_mean)  # nothing strays, so that there is no chance in it
    test = ttest_ind_from_stats(
        mean,
        deviation or 0.0,
        len(one),
        other_mean,
        other_deviation or 0.0,
        len(other),
        equal_var=False,
    )
    return float(test.pvalue)


def _told(chance: float) -> str:
    return "p < 0.01" if chance < 0.01 else f"p = {chance:.2f}"


def _held_claim(kinds: Mapping[str, Sequence[float]], shifts: Mapping[float, str]) -> str:
    """Whether the paper's claim holds here; nothing before all of its noise ratios were run.

    Arguments:
        kinds: From ``more``, ``fewer`` and ``undecided`` to noise ratios.
        shifts: How many more or fewer neurons there are at each of them, as it is shown.
    """
    if not {*_CLAIMED} <= {ratio for ratios in kinds.values() for ratio in ratios}:
        return ""
    words = {"more": "holds", "fewer": "does not hold", "undecided": "is undecided"}
    held = [
        f"{words[kind]} at {joined([f'{ratio} ({shifts[ratio]})' for ratio in of_it])}"
        for kind, ratios in kinds.items()
        if (of_it := [ratio for ratio in ratios if ratio in _CLAIMED])
    ]
    told = (
        f" The paper sees more neurons at {_CLAIMED[0]} to {_CLAIMED[-1]}, which here "
        f"{joined(held)}."
    )
    if _NEGLECTED in shifts:
        told += (
            f" At {_NEGLECTED} it sees the right digit neglected; here that has "
            f"{shifts[_NEGLECTED]} neurons there."
        )
    return told


def standings(table: Table, results: Path) -> str:
    """For every number of tasks, who is ahead and where DRPM-MTL stands."""
    told = []
    for index, group in enumerate(table.groups):
        found = {
            row.name: _known(read_runs(table, results, row.places[index]), "accuracy")
            for row in table.rows
        }
        known = {name: score for name, score in found.items() if score is not None}
        if len(known) > 1:
            told.append(f"- {group}: {_standing(known, shown_digits(table))}")
    if not told:
        return ""
    about = (
        f"Which mean of ACC is the highest, and where {METHOD_NAMES['drpm']} stands; one deviation "
        "is the larger one of the two that are compared:"
    )
    return "\n".join(["\n", about, "", *told, ""])


def _standing(scores: Mapping[str, Summary], digits: int) -> str:
    """Who is ahead, and where DRPM-MTL stands.

    Arguments:
        scores: Of at least two methods.
        digits: How many are shown.
    """
    order = sorted(scores, key=lambda name: scores[name].mean, reverse=True)
    ours, first = METHOD_NAMES["drpm"], order[0]
    told = f"the highest is that of {_place(first, scores, digits)}."
    if ours not in scores:
        return f"{told} {ours} was not run yet."
    if ours == first:
        return told
    place = order.index(ours) + 1
    rank = "the lowest" if place == len(order) else f"number {place}"
    return f"{told} {rank.capitalize()} of {len(order)} is {_place(ours, scores, digits)}."


def _place(name: str, scores: Mapping[str, Summary], digits: int) -> str:
    """A method with its score, and the others that it cannot be told from."""
    own = scores[name]
    near = [each for each in scores if each != name and is_tied(scores[each], own)]
    beside = f", within one deviation of {joined(near)}" if near else ""
    return f"{name}, {shown(own, digits)}{beside}"


def unfinished(table: Table, results: Path, epochs: int, every: int) -> str:
    """Whether accuracies were still rising when training ended.

    Arguments:
        table: That of the mosaics.
        results: The folder of finished studies.
        epochs: How many training has.
        every: How many lie between two looks at the test part.
    """
    runs = [
        run
        for row in table.rows
        for place in row.places
        for run in read_runs(table, results, place)
        if run.get("best_test_epoch") is not None
    ]
    late = sum(1 for run in runs if (best := run["best_test_epoch"]) and best >= epochs - every)
    if not runs or late < len(runs) / 2:
        return ""
    return (
        f"\nIn {late} of {len(runs)} runs the mean accuracy was best at the last of {epochs} "
        "epochs, or at the look before it. It may still have been rising there, so that it says "
        "how fast methods learn rather than how far they get.\n"
    )


def ranked_neurons(table: Table, results: Path) -> str:
    """For every number of tasks, whether the neurons of a task go with its noise."""
    told = []
    for row in table.rows:
        for group, tasks, place in zip(table.groups, sweeps.TASKS, row.places, strict=True):
            runs = read_runs(table, results, place)
            sizes = [_known(runs, f"size_{task}") for task in task_names(tasks)]
            means = [size.mean for size in sizes if size is not None]
            if len(means) == tasks:
                told.append(f"- {row.name}, {group}: {_correlation(means)}")
    if not told:
        return ""
    about = (
        "Seeds share the places of all tasks in the image, so that they count as one: what is "
        "looked at here are mean sizes over seeds. The number of a task is its place in the image, "
        "and, where the penalty is, in the partition."
    )
    return "\n".join(["", about, "", *told, ""])


def _correlation(sizes: Sequence[float]) -> str:
    """What the neurons of all tasks have to do with their noise, and with their numbers.

    Arguments:
        sizes: Of every task, the mean over seeds.
    """
    tasks = len(sizes)
    noise, number = (
        rank_correlation(sizes, other) for other in (noise_ratios(tasks), range(tasks))
    )
    if not math.isfinite(noise):
        return "all have the same."
    stray = chance_correlation(tasks)
    return (
        f"from {min(sizes):.1f} to {max(sizes):.1f} neurons. The rank correlation with the noise "
        f"ratio is {noise:.2f}, that with the number of the task {number:.2f}; by chance alone "
        f"they would stray around zero by about {stray:.2f}. {_judged(sizes, noise, number)}"
    )


def _judged(sizes: Sequence[float], noise: float, number: float) -> str:
    """What two rank correlations say together."""
    # Two deviations, as usual.
    if abs(noise) <= 2 * chance_correlation(len(sizes)):
        return "So what noise has to do with it may be chance."
    told = f"Noisier digits get {'fewer' if noise < 0 else 'more'} neurons"
    doubts = []
    # Of one image sizes are whole numbers.
    if max(sizes) - min(sizes) < 1:
        doubts.append("by less than one of them")
    if abs(number) >= abs(noise):
        doubts.append("their places say as much")
    return f"{told}, but {', and '.join(doubts)}." if doubts else f"{told}."


def _known(runs: Sequence[Metrics], metric: str) -> Summary | None:
    """A metric over seeds; nothing where there are none, or one lacks it."""
    values = _values(runs, metric)
    return summarize(values) if values else None


def _values(runs: Sequence[Metrics], metric: str) -> list[float]:
    """A metric of every seed; of none where one lacks it."""
    values = [value for run in runs if (value := run.get(metric)) is not None]
    return values if len(values) == len(runs) else []
