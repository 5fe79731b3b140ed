"""Values of a result as texts: numbers that line up, times that can be read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

NOTHING: Final = "—"


class MetricTable(NamedTuple):
    """Metrics by method: the names of the columns, and each metric with one text for each."""

    methods: list[str]
    rows: list[tuple[str, list[str]]]


def metric_table(
    metrics: Mapping[str, Any],
    comparison: Mapping[str, Mapping[str, Any]],
    method: str = "this run",
    shown: Mapping[str, str] | None = None,
) -> MetricTable:
    """The metrics of a run, beside those of other methods where there are any.

    Arguments:
        metrics: The run's own metrics.
        comparison: Metrics by method. The run may be one of them; it is recognised by its values.
        method: What the run is called where it is none of them.
        shown: What metrics are called, where that is not their name.
    """
    shown = shown or {}
    own = flat(metrics)
    others = {method: flat(values) for method, values in comparison.items()}
    itself = next((name for name, of in others.items() if of and of.items() <= own.items()), None)
    if itself is not None:
        columns = {**others, itself: others[itself] | own}
    else:
        columns = {method: own, **others} if own else others
    names = list(dict.fromkeys(name for values in columns.values() for name in values))
    rows = [
        (str(shown.get(name, name)), aligned([values.get(name) for values in columns.values()]))
        for name in names
    ]
    return MetricTable(list(columns), rows)


class GroupTable(NamedTuple):
    """Metrics of many things of one kind, a row for each of them."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]


def group_tables(
    metrics: Mapping[str, Any], tables: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> list[GroupTable]:
    """Tables that a run describes itself.

    Arguments:
        metrics: The run's metrics.
        tables: From a title to rows to columns to the name of the metric that stands there.
    """
    found = []
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        texts = [
            aligned([metrics.get(row.get(column, "")) for row in rows.values()])
            for column in columns
        ]
        lines = [list(cells) for cells in zip(*texts, strict=True)]
        found.append(GroupTable(title, columns, list(zip(rows, lines, strict=True))))
    return found


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted names; what is listed becomes one text."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            result[f"{prefix}{key}"] = ", ".join(map(text, value))
        else:
            result[f"{prefix}{key}"] = value
    return result


def aligned(values: Sequence[Any], digits: int = 4) -> list[str]:
    """Values of one metric as texts, all with the decimals that the largest of them needs.

    Arguments:
        values: The values.
        digits: How many digits the largest of them shows, if it is no whole number.
    """
    floats = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
    largest = max(floats, default=0.0)
    if largest == 0 or not 1e-3 <= largest < 1e7:
        return [text(value) for value in values]
    decimals = max(0, digits - 1 - math.floor(math.log10(largest)))
    return [
        f"{value:,.{decimals}f}" if isinstance(value, float) else text(value) for value in values
    ]


def short(values: Sequence[float]) -> list[str]:
    """Numbers of one picture as texts: whole ones as they are, others to three digits."""
    if all(float(value).is_integer() and abs(value) < 1e9 for value in values):
        return [f"{round(value):,}" for value in values]
    texts = aligned([float(value) for value in values], digits=3)
    # A last decimal that is zero everywhere says nothing, unless it is the only one.
    while all("." in text[:-2] and text.endswith("0") for text in texts):
        texts = [text[:-1] for text in texts]
    return texts


def text(value: Any) -> str:
    """One value as it stands in a table."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value))
    return str(value)


def duration(seconds: float) -> str:
    """A time span in the two units that matter."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
