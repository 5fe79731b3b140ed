"""Several seeds in two numbers."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

Key = TypeVar("Key")

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


def is_tied(one: Summary, other: Summary) -> bool:
    """Whether two means are no further apart than the larger deviation, so that nobody can tell
    which is larger.

    Example:
        >>> is_tied(Summary(0.5, 0.1), Summary(0.7, 0.2))
        True
    """
    spread = max(one.deviation or 0.0, other.deviation or 0.0)
    return abs(one.mean - other.mean) <= spread


def is_as_good(found: Summary, best: Summary) -> bool:
    """Whether a mean is below the best by no more than a deviation.

    It is the best one's deviation that counts: by its own, whatever strays far would be as good as
    anything.

    Example:
        >>> is_as_good(Summary(0.5, 0.3), Summary(0.7, 0.1))
        False
    """
    return best.mean - found.mean <= (best.deviation or 0.0)


def as_good(best: Key, means: Mapping[Key, Summary]) -> list[Key]:
    """What of several comes within the deviation of the best."""
    return [x for x, found in means.items() if x != best and is_as_good(found, means[best])]


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
