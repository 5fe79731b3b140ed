"""The paper's table of shared factors as a sweep of studies, for ``drpm reproduce``."""

from drpm.training.sweeps import Sweep, SweepRun, register

SEEDS = range(5)
SHARED = (0, 1, 3, 5)
METHODS = ("label", "ada", "hg", "drpm")


@register("table-2")
def table_2() -> Sweep:
    """Shared and independent factors of a drawn arm: DRPM-VAE and what it is compared with."""
    return Sweep(
        "table-2",
        tuple(
            SweepRun(
                f"shared-{shared}/{method}",
                "drpm.factors.study:run_study",
                {
                    "data": "arm",
                    "shared": str(shared),
                    "method": method,
                    "preset": "paper-factors",
                    "seeds": list(SEEDS),
                },
            )
            for shared in SHARED
            for method in METHODS
        ),
    )
