"""Whether the paper's claims on shared factors hold here, in sentences."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from drpm.factors import published, sweeps
from drpm.report.result_tables import Table, read_runs, summary_of
from drpm.training.summaries import Summary, is_as_good

_OURS: Final = "drpm"


def verdicts(table: Table, results: Path) -> Iterator[str]:
    """What the paper claims of a table, and where that is so; nothing of what was not run.

    Arguments:
        table: Whose metrics say what there is to tell.
        results: The folder of finished studies.
    """
    if "shared_accuracy" in table.metrics:
        yield from _ranking(table, results)
    if "count_error" in table.metrics:
        yield from _overestimates(table, results)
        yield from _count_errors(table, results)
        yield from _empty_ones(table, results)


def _found(table: Table, results: Path, metric: str) -> dict[int, dict[str, Summary]]:
    """A metric of the paper's methods by the number of shared factors, where all have it."""
    found = {}
    for index, shared in enumerate(sweeps.SHARED):
        runs = {
            method: read_runs(table, results, row.places[index])
            for method, row in zip(sweeps.METHODS, table.rows, strict=True)
            if method in published.MAIN
        }
        if all(each and None not in [run[metric] for run in each] for each in runs.values()):
            found[shared] = {method: summary_of(each, metric) for method, each in runs.items()}
    return found


def _ranking(table: Table, results: Path) -> Iterator[str]:
    first, behind = 0, []
    for metric, above in table.metrics.items():
        for shared, means in _found(table, results, metric).items():
            best = max(means, key=lambda method: means[method].mean)
            if best == _OURS or is_as_good(means[_OURS], means[best]):
                first += 1
            else:
                behind.append(f"{above} of n_s = {shared} (after {_name(table, best)})")
    if first or behind:
        where = f"; not in {', '.join(behind)}" if behind else ""
        yield (
            f"DRPM-VAE is first, or within the first one's deviation of it, in {first} of "
            f"{first + len(behind)} columns, where the paper has it first or level with the first "
            f"in all{where}."
        )


def _overestimates(table: Table, results: Path) -> Iterator[str]:
    found = _found(table, results, "mean_count")
    for method in ("label", "ada") if found else ():
        above = [shared for shared, means in found.items() if means[method].mean > shared]
        name = _name(table, method)
        also = "as in the paper" if len(above) == len(found) else "in the paper for every n_s"
        yield (
            f"{name} takes more dimensions as shared than there are shared factors for "
            f"{_all_or_some(above, found)}, {also}."
            if above
            else f"{name} does not share too many dimensions, as it does in the paper."
        )


def _count_errors(table: Table, results: Path) -> Iterator[str]:
    found = _found(table, results, "count_error")
    larger = [
        shared
        for shared, means in found.items()
        if means[_OURS].mean > means["hg"].mean + (means["hg"].deviation or 0.0)
    ]
    if found:
        yield (
            f"DRPM-VAE's error is larger than HG-VAE's for {_all_or_some(larger, found)}, which in "
            "the paper it is not."
            if larger
            else "DRPM-VAE's error is nowhere larger than HG-VAE's by more than the latter's "
            "deviation, as in the paper."
        )


def _empty_ones(table: Table, results: Path) -> Iterator[str]:
    shared_used = _found(table, results, "shared_used")
    counts = _found(table, results, "mean_count")
    for method in ("hg", _OURS):
        empty = [
            shared
            for shared, means in shared_used.items()
            if means[method].mean < 0.5 <= counts[shared][method].mean
        ]
        if empty:
            yield (
                f"Nearly all that {_name(table, method)} shares is empty for "
                f"{_all_or_some(empty, shared_used)}: there its number counts dimensions that "
                "stand for no factor."
            )


def _name(table: Table, method: str) -> str:
    return table.rows[sweeps.METHODS.index(method)].name


def _all_or_some(chosen: list[int], found: Mapping[int, object]) -> str:
    if len(chosen) == len(found) == len(sweeps.SHARED):
        return "every n_s"
    return f"n_s = {', '.join(map(str, chosen))}"
