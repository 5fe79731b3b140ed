"""How fast the cost grows with n."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measure import Measurement
from benchmarks.series import main_series

# Small sizes measure the overhead of calls, so the exponent is fitted to the largest ones only.
FITTED_SIZES = 3


@dataclass(frozen=True)
class Growth:
    """The exponent e of a fit of time ~ n^e, and the sizes it was fitted to."""

    operation: str
    implementation: str
    num_groups: int
    exponent: float
    sizes: list[int]


def fit_growth(measurements: Sequence[Measurement]) -> list[Growth]:
    """One exponent per operation and implementation, by least squares on log-log axes."""
    fits = []
    for (operation, implementation), points in main_series(measurements).items():
        timed = [
            (point.case.num_elements, point.seconds)
            for point in points
            if point.seconds is not None
        ][-FITTED_SIZES:]
        if len(timed) < 2:
            continue
        log_sizes, log_seconds = np.log(np.array(timed, dtype=float)).T
        exponent = np.polyfit(log_sizes, log_seconds, deg=1)[0]
        fits.append(
            Growth(
                operation=operation,
                implementation=implementation,
                num_groups=points[0].case.num_groups,
                exponent=float(exponent),
                sizes=[size for size, _ in timed],
            )
        )
    return fits
