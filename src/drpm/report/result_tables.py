"""Tables of finished studies beside the paper's, as Markdown.

What is told is what a folder of results holds, ``results/sweep/study/variant/seed-...``, and what
is missing there.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from drpm.training.errors import RunError
from drpm.training.runs import DIRTY, RESULT
from drpm.training.summaries import Summary, summarize


class Figure(NamedTuple):
    """Mean and deviation of a score over seeds, as the paper prints them."""

    mean: float
    deviation: float


Scores: TypeAlias = Mapping[str, Figure]
Metrics: TypeAlias = Mapping[str, float | None]


class Place(NamedTuple):
    """Where the results of a method lie: ``results/sweep/study/variant/seed-...``."""

    sweep: str
    study: str
    variant: str


@dataclass(frozen=True)
class Row:
    """A line of a table, or two: ours and the paper's.

    Arguments:
        name: What stands in front.
        places: Where ours come from, one for each group of columns; none where there is nothing
            to run.
        paper: The paper's scores by metric, likewise; nothing where it has none.
        is_guest: Whether the runs belong to another table, which tells the rest about them.
    """

    name: str
    places: tuple[Place | None, ...]
    paper: tuple[Scores, ...] = ()
    is_guest: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Arguments:
        title: What stands above it.
        about: A sentence or two on what it shows.
        head: What its first column holds.
        groups: The names of its groups of columns, each with all metrics.
        rows: Its lines.
        metrics: From the name of a metric in results to what stands above its column.
        paper_seeds: Over how many the paper's figures are; none where it does not say.
        paper_digits: How many of them the paper prints.
        is_comparable: Whether the paper's are of the same data, so that it is told where ours are
            lower.
    """

    title: str
    about: str
    head: str
    groups: Sequence[str]
    rows: Sequence[Row]
    metrics: Mapping[str, str]
    paper_seeds: int | None = 5
    paper_digits: int = 2
    is_comparable: bool = True


def table_lines(table: Table, results: Path) -> Iterator[str]:
    """The table with what is missing and what the runs took.

    Arguments:
        table: What to show.
        results: The folder of finished studies.
    """
    found = [[read_runs(table, results, place) for place in row.places] for row in table.rows]
    pairs = list(zip(table.rows, found, strict=True))
    rows = [line for row, each in pairs for line in _row_lines(table, row, each)]
    if rows:
        columns = [table.head, ""]
        for group in table.groups:
            # Each group has its own number of seeds, because studies need not have the same.
            columns += [*(f"{group} {metric}" for metric in table.metrics.values()), "seeds"]
        yield from (*head_lines(columns), *rows, "")
    if not any(any(each) for each in found):
        yield "Not run yet."
        return
    absent = {row.name: _absent(row, table.groups, each) for row, each in pairs}
    missing = [name + where for name, where in absent.items() if where is not None]
    if missing:
        yield from (f"Not run yet: {'; '.join(missing)}.", "")
    short = [line for row, each in pairs for line in _shortfalls(table, row, each)]
    if short:
        yield from (
            "Lower than the paper by more than two of its deviations, as rounded there: "
            f"{'; '.join(short)}.",
            "",
        )
    yield from _times(table, results)


def table_text(table: Table, results: Path) -> str:
    """A table's whole part of the page: its title, what it shows, and :func:`table_lines`."""
    lines = [f"### {table.title}", "", table.about, "", *table_lines(table, results)]
    return "\n".join(lines)


def shown_digits(table: Table) -> int:
    """How many digits of a mean are printed."""
    # Two digits are too few: they are often rounded to the deviation.
    return max(3, table.paper_digits)


def summary_of(runs: Sequence[Metrics], metric: str) -> Summary:
    """A metric over the seeds that have it."""
    return summarize([value for run in runs if (value := run[metric]) is not None])


def _row_lines(table: Table, row: Row, found: Sequence[Sequence[Metrics]]) -> Iterator[str]:
    if row.paper:
        yield line([row.name, "paper", *_paper_cells(table, row.paper)])
    if any(found):
        yield line(["" if row.paper else row.name, "here", *_cells(table, found)])


def _absent(row: Row, groups: Sequence[str], found: Sequence[object]) -> str | None:
    """What of a row was not run, to follow its name; none where all of it was."""
    places = zip(groups, row.places, found, strict=True)
    missing = [group for group, place, each in places if place is not None and not each]
    if len(missing) == len(groups):
        return ""
    return f" ({', '.join(missing)})" if missing else None


def _shortfalls(table: Table, row: Row, found: Sequence[Sequence[Metrics]]) -> Iterator[str]:
    """Where a row of ours falls short of the paper's."""
    if row.is_guest or not row.paper or not table.is_comparable:
        return
    for group, paper, runs in zip(table.groups, row.paper, found, strict=True):
        low = []
        for name, shown in table.metrics.items():
            values = [value for metrics in runs if (value := metrics[name]) is not None]
            figure = paper.get(name)
            # Figures are rounded, and so are ours before they are compared.
            if figure is not None and values:
                mean = round(summarize(values).mean, table.paper_digits)
                if mean < round(figure.mean - 2 * figure.deviation, table.paper_digits):
                    low.append(shown)
        if low:
            yield f"{row.name} ({group} {', '.join(low)})"


def head_lines(columns: Sequence[str]) -> tuple[str, str]:
    """What a table begins with."""
    return line(columns), line(["---"] * len(columns))


def line(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def _paper_cells(table: Table, paper: Sequence[Scores]) -> Iterator[str]:
    for scores in paper:
        for name in table.metrics:
            figure = scores.get(name)
            yield "-" if figure is None else shown(figure, table.paper_digits)
        yield "-" if table.paper_seeds is None else str(table.paper_seeds)


def _cells(table: Table, found: Sequence[Sequence[Metrics]]) -> Iterator[str]:
    for runs in found:
        if not runs:
            yield from ["-"] * (len(table.metrics) + 1)
            continue
        for name in table.metrics:
            values = [metrics[name] for metrics in runs]
            known = [value for value in values if value is not None]
            whole = len(known) == len(values)
            yield shown(summarize(known), shown_digits(table)) if whole else "-"
        yield str(len(runs))


def mean_cell(runs: Sequence[Metrics], metric: str, digits: int) -> str:
    """A metric over the seeds that have it."""
    known = [value for run in runs if (value := run.get(metric)) is not None]
    return shown(summarize(known), digits) if known else "-"


def shown(figure: Figure | Summary, digits: int) -> str:
    """A mean, and a deviation where there is one."""
    mean = f"{figure.mean:.{digits}f}"
    return mean if figure.deviation is None else f"{mean} ± {figure.deviation:.{digits}f}"


def read_runs(table: Table, results: Path, place: Place | None) -> list[Metrics]:
    """The metrics of every seed of a method; nothing where it was not run.

    Arguments:
        table: Whose metrics they have to have.
        results: The folder of finished studies.
        place: The method's place there.
    """
    return [read_run(table, path) for path in _results(results, place)]


def read_run(table: Table, path: Path) -> Metrics:
    """The metrics of one run.

    Arguments:
        table: Whose metrics it has to have.
        path: The file of its result.
    """
    metrics = _result(path).get("metrics")
    sound = isinstance(metrics, dict) and all(
        name in metrics and isinstance(metrics[name], int | float | None) for name in table.metrics
    )
    if not isinstance(metrics, dict) or not sound:
        raise RunError(
            f"The file {path} must hold the metrics {', '.join(table.metrics)}, "
            f"but got {metrics!r}."
        )
    return metrics


def seed_folders(study: Path) -> list[Path]:
    """The folders of a study's runs, in the order of their seeds."""
    named = {run: re.fullmatch(r"seed-(\d+)", run.name) for run in study.glob("seed-*")}
    seeds = {run: int(found[1]) for run, found in named.items() if found}
    return sorted(seeds, key=seeds.__getitem__)


def _results(results: Path, place: Place | None) -> list[Path]:
    runs = [] if place is None else seed_folders(results.joinpath(*place))
    return [run / RESULT for run in runs if (run / RESULT).exists()]


def _result(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"The file {path} is not a result that can be read.") from error
    if not isinstance(content, dict):
        raise RunError(f"The file {path} is not a result that can be read.")
    return content


def _times(table: Table, results: Path) -> Iterator[str]:
    """What the runs of a table took, and on what: a line for each group of columns."""
    for index, group in enumerate(table.groups):
        spent: dict[str, list[str]] = {}
        for row in table.rows:
            paths = [] if row.is_guest else _results(results, row.places[index])
            if paths:
                where, seconds = _cost(paths)
                spent.setdefault(where, []).append(f"{row.name} {timedelta(seconds=seconds)}")
        for where, each in spent.items():
            yield f"- {group} on {where}: {', '.join(each)}."


def _cost(paths: Sequence[Path]) -> tuple[str, int]:
    """Where all seeds of a method were trained, and in how many seconds."""
    # A study knows its time. Of one that was cut off it is that of its longest run.
    study = paths[0].parents[1] / RESULT
    found = []
    for path in [study] if study.exists() else paths:
        result = _result(path)
        try:
            found.append((trained_on(result), round(result["wall_time"])))
        except (KeyError, TypeError) as error:
            raise RunError(f"The file {path} must hold wall_time, device and versions.") from error
    return found[0][0], max(seconds for _, seconds in found)


def trained_on(result: Mapping[str, Any]) -> str:
    """Where a result comes from: the device, torch and the revision."""
    where = f"{result['device']}, torch {result['versions']['torch']}"
    revision = short_revision(result.get("git_revision"))
    return f"{where}, revision {revision}" if revision else f"{where}, no recorded revision"


def short_revision(revision: str | None) -> str:
    """The first digits of a revision, and whether the tree had changes beside it; or nothing.

    Example:
        >>> short_revision("7992286cc4c0e7859e7b6a87268812dd695efb12-dirty")
        '7992286 with uncommitted changes'
    """
    commit, dirty, _ = (revision or "").partition(DIRTY)
    return commit[:7] + (" with uncommitted changes" if dirty else "")


def told_revisions(results: Path) -> str:
    """How many runs have no recorded revision, or uncommitted changes; nothing without runs.

    Arguments:
        results: The folder of finished studies.
    """
    revisions = [_result(path).get("git_revision") for path in results.glob(f"**/seed-*/{RESULT}")]
    if not revisions:
        return ""
    unknown = sum(not revision for revision in revisions)
    dirty = sum(str(revision).endswith(DIRTY) for revision in revisions)
    return (
        f"Runs with no recorded revision: {unknown} of {len(revisions)}; with uncommitted changes: "
        f"{dirty}. The lines of times say which."
    )
