"""What results of several tasks say, in sentences, and whether the paper's claims hold."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from drpm.data.mosaic import task_names
from drpm.multitask import sweeps
from drpm.multitask.config import METHOD_NAMES
from drpm.multitask.evaluation import chance_correlation
from drpm.report.result_tables import Metrics, Table, read_runs, shown, shown_digits
from drpm.training.summaries import Summary, is_tied, summarize

# The noise ratios at which the paper sees more neurons for the right digit than without noise.
_CLAIMED: Final = (0.6, 0.7, 0.8)


def moved_neurons(table: Table, results: Path) -> str:
    """At which noise ratios the noisy digit has more neurons than without noise."""
    found = {
        ratio: _known(read_runs(table, results, row.places[0]), "size_right")
        for ratio, row in zip(sweeps.NOISE, table.rows, strict=True)
    }
    # One seed alone decides nothing.
    sizes = {ratio: size for ratio, size in found.items() if size and size.deviation is not None}
    without = sizes.pop(sweeps.NOISE[0], None)
    if without is None or not sizes:
        return ""
    kinds: dict[str, list[float]] = {"more": [], "fewer": [], "undecided": []}
    for ratio, size in sizes.items():
        change = "more" if size.mean > without.mean else "fewer"
        kinds["undecided" if is_tied(size, without) else change].append(ratio)
    more, fewer, undecided = (", ".join(map(str, x)) or "no ratio" for x in kinds.values())
    return (
        f"\nWithout noise the right digit has {shown(without, 1)} neurons. It has more at "
        f"{more}, and fewer at {fewer}. Undecided, because means differ by no more than the larger "
        f"of both deviations: {undecided}.{_held_claim(sizes, kinds['more'])}\n"
    )


def _held_claim(sizes: Mapping[float, Summary], more: Sequence[float]) -> str:
    """Whether the paper's claim holds here; nothing before all of its noise ratios were run.

    Arguments:
        sizes: From every noise ratio to the neurons of the right digit.
        more: The ratios at which these are clearly more than without noise.
    """
    if not all(ratio in sizes for ratio in _CLAIMED):
        return ""
    against = [f"{ratio} ({shown(sizes[ratio], 1)})" for ratio in _CLAIMED if ratio not in more]
    held = f"this does not hold at {_joined(against)}" if against else "this holds at all of them"
    return f" The paper sees more at {_CLAIMED[0]} to {_CLAIMED[-1]}; here {held}."


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
    beside = f", within one deviation of {_joined(near)}" if near else ""
    return f"{name}, {shown(own, digits)}{beside}"


def ranked_neurons(table: Table, results: Path) -> str:
    """For every number of tasks, what the rank correlation of all seeds says."""
    told = []
    for group, tasks, place in zip(table.groups, sweeps.TASKS, table.rows[0].places, strict=True):
        runs = read_runs(table, results, place)
        values = [x for run in runs if (x := run["size_noise_correlation"]) is not None]
        if values:
            told.append(f"- {group}: {_correlation(values, tasks)}{_span(runs, tasks)}")
    return "\n".join(["", *told, ""]) if told else ""


def _correlation(values: Sequence[float], tasks: int) -> str:
    """What correlations of all seeds say.

    Arguments:
        values: One for each seed.
        tasks: How many tasks there are.
    """
    seeds, mean = len(values), summarize(values).mean
    stray = chance_correlation(tasks) / seeds**0.5
    told = (
        f"by chance alone, were seeds independent, the mean over {seeds} would stray around zero "
        f"by about {stray:.2f}, and it is {mean:.3f}. "
    )
    signs = {"negative": sum(x < 0 for x in values), "positive": sum(x > 0 for x in values)}
    sign, count = max(signs.items(), key=lambda item: item[1])
    if count < seeds or seeds == 1:
        return f"{told}{count} of {seeds} {'is' if count == 1 else 'are'} {sign}."
    # Seeds may agree by chance as well, where there are few of them.
    if abs(mean) <= 2 * stray:
        return f"{told}All are {sign}, but that may be chance."
    change = "fewer" if sign == "negative" else "more"
    return f"{told}All are {sign}: noisier digits get {change} neurons."


def _span(runs: Sequence[Metrics], tasks: int) -> str:
    """From the smallest to the largest task, and whether that is too little for ranks."""
    sizes = [_known(runs, f"size_{task}") for task in task_names(tasks)]
    means = [size.mean for size in sizes if size is not None]
    if not means:
        return ""
    low, high = min(means), max(means)
    told = f" Mean sizes of tasks are from {low:.1f} to {high:.1f} neurons"
    # Of one image sizes are whole numbers.
    return told + (", less than one apart, so that ranks say little." if high - low < 1 else ".")


def _known(runs: Sequence[Metrics], metric: str) -> Summary | None:
    """A metric over seeds; nothing where there are none, or one lacks it."""
    values = [value for run in runs if (value := run.get(metric)) is not None]
    return summarize(values) if values and len(values) == len(runs) else None


def _joined(names: Sequence[str]) -> str:
    """Names as a part of a sentence."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
