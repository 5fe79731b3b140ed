"""Means and standard deviations over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

Key = TypeVar("Key")

DEVIATION: Final = "over seeds, divided by their number less one"


class Summary(NamedTuple):
    """The mean and the sample standard deviation of a metric over seeds; one seed has none."""

    mean: float
    deviation: float | None


def summarize(values: Sequence[float]) -> Summary:
    """Mean and standard deviation of a metric.

    Args:
        values: One for each seed.

    Example:
        >>> summarize([0.5, 1.0, 1.5])
        Summary(mean=1.0, deviation=0.5)
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), deviation)


def is_tied(one: Summary, other: Summary) -> bool:
    """Whether two means differ by at most the larger standard deviation.

    Example:
        >>> is_tied(Summary(0.5, 0.1), Summary(0.7, 0.2))
        True
    """
    spread = max(one.deviation or 0.0, other.deviation or 0.0)
    return abs(one.mean - other.mean) <= spread


def is_as_good(found: Summary, best: Summary) -> bool:
    """Whether a mean is within one standard deviation of the best, that of the best.

    Example:
        >>> is_as_good(Summary(0.5, 0.3), Summary(0.7, 0.1))
        False
    """
    return best.mean - found.mean <= (best.deviation or 0.0)


def as_good(best: Key, means: Mapping[Key, Summary]) -> list[Key]:
    """Those whose mean is within one standard deviation of the best."""
    return [x for x, found in means.items() if x != best and is_as_good(found, means[best])]


def summarize_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of every metric; None if a seed has no finite value.

    Args:
        results: The results of all seeds.
    """
    summary: dict[str, Any] = {}
    for metric in results[0]["metrics"]:
        # Results of an earlier version may lack some.
        values = [result["metrics"].get(metric) for result in results]
        summary[metric] = None if None in values else summarize(values)._asdict()
    return summary
