"""Several seeds in two numbers."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

DEVIATION: Final = "over seeds, divided by their number less one"


class Summary(NamedTuple):
    """A metric over seeds.

    The deviation divides by the number of seeds less one, as deviations over seeds usually do;
    one seed has none.
    """

    mean: float
    deviation: float | None


def summarize(values: Sequence[float]) -> Summary:
    """Mean and deviation of a metric.

    Arguments:
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
    """Mean and deviation of every metric; none where a seed has no finite number.

    Arguments:
        results: What the runs of all seeds ended with.
    """
    summary: dict[str, Any] = {}
    for metric in results[0]["metrics"]:
        # One that was finished by an earlier version may lack some.
        values = [result["metrics"].get(metric) for result in results]
        summary[metric] = None if None in values else summarize(values)._asdict()
    return summary
