"""Several seeds in two numbers."""

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

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
