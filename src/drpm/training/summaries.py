"""Means and standard deviations over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

DEVIATION: Final = "over seeds, with n - 1 in the denominator"


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


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean and deviation as text, such as 0.912 ± 0.004."""
    mean, deviation = summarize(values)
    return f"{mean:.{digits}f} ± {deviation or 0:.{digits}f}"


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
