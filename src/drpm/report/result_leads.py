"""Who is ahead in a table of results, in a sentence.

Means are compared as the table prints them, and equals are named together; deviations are not
looked at.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from drpm.report.result_tables import Metrics, Table, read_runs, shown_digits, summary_of


def leading_groups(table: Table, results: Path) -> str:
    """A sentence on which group is ahead in which rows; nothing before a row has runs of all.

    Arguments:
        table: Whose groups of columns are compared, by their means.
        results: The folder of finished studies.
    """
    found = {
        row.name: [read_runs(table, results, place) for place in row.places] for row in table.rows
    }
    whole = {name: groups for name, groups in found.items() if all(groups)}
    ahead: dict[str, dict[str, list[str]]] = {}
    for name, groups in whole.items():
        for metric, above in table.metrics.items():
            for group in _best(dict(zip(table.groups, groups, strict=True)), metric, table):
                ahead.setdefault(group, {}).setdefault(above, []).append(name)
    told = []
    for group, scores in ahead.items():
        where = {
            above: "everywhere" if len(names) == len(whole) > 1 else _listed(names)
            for above, names in scores.items()
        }
        told.append(f"{group}: {', '.join(f'{above} ({x})' for above, x in where.items())}")
    return _highest(told)


def leading_rows(table: Table, results: Path) -> str:
    """A sentence on which row is ahead in which group; nothing before one has runs of two rows.

    Arguments:
        table: Whose rows are compared, by their means.
        results: The folder of finished studies.
    """
    told = []
    for index, group in enumerate(table.groups):
        found = {row.name: read_runs(table, results, row.places[index]) for row in table.rows}
        whole = {name: runs for name, runs in found.items() if runs}
        ahead: dict[str, list[str]] = {}
        for metric, above in table.metrics.items() if len(whole) > 1 else ():
            for name in _best(whole, metric, table):
                ahead.setdefault(name, []).append(above)
        if ahead:
            names = ", ".join(f"{name} ({', '.join(scores)})" for name, scores in ahead.items())
            told.append(f"{group}: {names}")
    return _highest(told)


def _highest(told: Sequence[str]) -> str:
    return f"\n\nHighest means here. {'; '.join(told)}.\n" if told else ""


def _best(found: Mapping[str, Sequence[Metrics]], metric: str, table: Table) -> list[str]:
    """Whose mean is highest, as the table prints it; nobody where some runs lack the metric."""
    if any(run[metric] is None for runs in found.values() for run in runs):
        return []
    digits = shown_digits(table)
    means = {name: round(summary_of(runs, metric).mean, digits) for name, runs in found.items()}
    return [name for name, mean in means.items() if mean == max(means.values())]


def _listed(rows: Sequence[str]) -> str:
    """Names of rows, without what the first word of all of them says once: K = 6, 8."""
    start, _, first = rows[0].rpartition(" ")
    others = [row.removeprefix(f"{start} ") if start else row for row in rows[1:]]
    return ", ".join([f"{start} {first}".strip(), *others])
