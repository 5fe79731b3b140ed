"""Measurements as curves over n."""

from collections.abc import Sequence

from benchmarks.measure import Measurement

Series = dict[tuple[str, str], list[Measurement]]


def main_series(measurements: Sequence[Measurement]) -> Series:
    """The measurements over n of each (operation, implementation).

    Only the group count measured first is kept: the others were measured at one n.
    """
    series: Series = {}
    for measurement in measurements:
        case = measurement.case
        points = series.setdefault((case.operation, case.implementation), [])
        if not points or points[0].case.num_groups == case.num_groups:
            points.append(measurement)
    return series
