"""Whether the paper's claims on shared factors hold here, in sentences."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from drpm.factors import published, sweeps
from drpm.factors.config import FactorsConfig
from drpm.report.result_tables import Metrics, Table, read_runs, summary_of
from drpm.training import presets
from drpm.training.summaries import Summary, is_as_good
from drpm.training.words import joined

_OURS: Final = "drpm"
_EXACT: Final = "drpm-exact"


def verdicts(table: Table, results: Path) -> Iterator[str]:
    """What the paper claims of a table, and where that is so; nothing of what was not run.

    Arguments:
        table: Whose metrics say what there is to tell.
        results: The folder of finished studies.
    """
    if "shared_accuracy" in table.metrics:
        yield from _ranking(table, results)
        yield from _shared_part(table, results)
        yield from _exact_ones(table, results)
    if "count_error" in table.metrics:
        yield from _overestimates(table, results)
        yield from _count_errors(table, results)
        yield from _empty_ones(table, results)


def is_known(runs: Sequence[Metrics], metric: str) -> bool:
    """Whether there are runs, and all of them have a metric."""
    return bool(runs) and None not in [run[metric] for run in runs]


def _found(
    table: Table, results: Path, metric: str, methods: Sequence[str] = tuple(published.MAIN)
) -> dict[int, dict[str, Summary]]:
    """A metric of methods by the number of shared factors, where all have it."""
    found = {}
    for index, shared in enumerate(sweeps.SHARED):
        runs = {
            method: read_runs(table, results, row.places[index])
            for method, row in zip(sweeps.METHODS, table.rows, strict=True)
            if method in methods
        }
        if all(is_known(each, metric) for each in runs.values()):
            found[shared] = {method: summary_of(each, metric) for method, each in runs.items()}
    return found


def _ranking(table: Table, results: Path) -> Iterator[str]:
    first, near, behind = 0, 0, []
    for metric, above in table.metrics.items():
        for shared, means in _found(table, results, metric).items():
            best = max(means, key=lambda method: means[method].mean)
            if means[_OURS].mean == means[best].mean:
                first += 1
            elif is_as_good(means[_OURS], means[best]):
                near += 1
            else:
                behind.append(f"{_column(above, shared)} (after {_name(table, best)})")
    columns = first + near + len(behind)
    if columns:
        where = f"; not in {', '.join(behind)}" if behind else ""
        yield (
            f"Of the paper's methods, DRPM-VAE is {_places(first, near, columns)}, where the paper "
            f"has it first or level with the first in all{where}."
        )


def _shared_part(table: Table, results: Path) -> Iterator[str]:
    found = _found(table, results, "shared_accuracy")
    if found:
        above = [shared for shared, means in found.items() if means[_OURS].mean > means["hg"].mean]
        everywhere = len(above) == len(found)
        yield (
            "S goes by the dimensions that a method shares, and the next table says how many of "
            f"these are in use; that of DRPM-VAE is above HG-VAE's for {_all_or_some(above, found)}"
            f"{', as in the paper' if everywhere else '; in the paper it always is'}."
        )


def _places(first: int, near: int, columns: int) -> str:
    """In how many columns a method comes first, or as good as first."""
    of_all = f"of {columns} columns"
    if first and near:
        return f"first in {first} and within the first one's deviation in {near} {of_all}"
    if near:
        return f"within the first one's deviation in {near} {of_all} and first in none"
    return f"first in {first or 'none'} {of_all}"


def _exact_ones(table: Table, results: Path) -> Iterator[str]:
    found = {
        _column(above, shared): means
        for metric, above in table.metrics.items()
        for shared, means in _found(table, results, metric, sweeps.METHODS).items()
    }
    if found:
        ahead = [
            column
            for column, means in found.items()
            if all(means[_EXACT].mean > means[method].mean for method in published.MAIN)
        ]
        where = joined(ahead) if ahead else "no column"
        yield f"The exact DRPM-VAE is ahead of all the paper's methods in {where}."


def _overestimates(table: Table, results: Path) -> Iterator[str]:
    found = _found(table, results, "mean_count")
    for method in ("label", "ada") if found else ():
        above = [
            shared
            for shared, means in found.items()
            if means[method].mean > shared + (means[method].deviation or 0.0)
        ]
        name = _name(table, method)
        if not above:
            yield (
                f"{name} does not take more dimensions as shared than there are shared factors by "
                "more than its deviation; in the paper it does, for every n_s."
            )
            continue
        everywhere = len(above) == len(found)
        rule = f" That these are {_by_rule()} is its rule, and not learned."
        yield (
            f"{name} takes more dimensions as shared than there are shared factors, by more than "
            f"its deviation, for {_all_or_some(above, found)}"
            f"{', as in the paper' if everywhere else '; in the paper it does for every n_s'}."
            f"{rule if method == 'label' else ''}"
        )


def _by_rule() -> str:
    """How many dimensions are shared where one factor is known to differ."""
    latent = presets.load(FactorsConfig, sweeps.PRESET).latent
    return f"{latent - 1} of {latent}"


def _count_errors(table: Table, results: Path) -> Iterator[str]:
    found = _found(table, results, "count_error")
    if not found:
        return
    larger = [shared for shared, means in found.items() if _is_larger(means[_OURS], means["hg"])]
    yield (
        f"DRPM-VAE's error is larger than HG-VAE's for {_all_or_some(larger, found)}, which in "
        "the paper it is not."
        if larger
        else "DRPM-VAE's error is nowhere larger than HG-VAE's by more than the latter's "
        "deviation, as in the paper."
    )
    below = {
        method: [
            shared for shared, means in found.items() if _is_larger(means[method], means[_OURS])
        ]
        for method in ("hg", "label", "ada")
    }
    near = _all_or_some(below.pop("hg"), found)
    yield f"It is smaller than that by more than its own deviation for {near}."
    told = joined(
        [
            f"than {_name(table, method)}'s for {_all_or_some(smaller, found)}"
            for method, smaller in below.items()
        ]
    )
    everywhere = all(len(smaller) == len(found) for smaller in below.values())
    yield (
        f"By as much it is smaller {told}"
        f"{', as in the paper' if everywhere else '; in the paper it is for every n_s'}."
    )


def _is_larger(one: Summary, other: Summary) -> bool:
    """Whether an error is above a smaller one by more than the deviation of that one."""
    return one.mean > other.mean + (other.deviation or 0.0)


def _empty_ones(table: Table, results: Path) -> Iterator[str]:
    shared_used = _found(table, results, "shared_used")
    counts = _found(table, results, "mean_count")
    for method in ("ada", "hg", _OURS):
        empty = [
            shared
            for shared, means in shared_used.items()
            if means[method].mean < 0.5 <= counts[shared][method].mean
        ]
        if empty:
            yield (
                f"Nearly all that {_name(table, method)} shares hardly varies for "
                f"{_all_or_some(empty, shared_used)}: there its number counts dimensions that "
                "stand for next to nothing, and what S tells comes from traces in them."
            )


def _column(above: str, shared: int) -> str:
    return f"{above} of n_s = {shared}"


def _name(table: Table, method: str) -> str:
    return table.rows[sweeps.METHODS.index(method)].name


def _all_or_some(chosen: list[int], found: Mapping[int, object]) -> str:
    if len(chosen) == len(found) == len(sweeps.SHARED):
        return "every n_s"
    if not chosen:
        return "no n_s"
    return f"n_s = {', '.join(map(str, chosen))}"
