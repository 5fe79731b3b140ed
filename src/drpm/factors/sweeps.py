"""The paper's table of shared factors as a sweep of studies, for ``drpm reproduce``."""

from drpm.factors.config import FactorsConfig
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.studies import digest_settings
from drpm.training.sweeps import Sweep, SweepRun, register

SEEDS = range(5)
SHARED = (0, 1, 3, 5)
METHODS = ("label", "ada", "hg", "drpm")


@register("table-2")
def table_2() -> Sweep:
    """Shared and independent factors of a drawn arm: DRPM-VAE and what it is compared with."""
    runs = []
    preset = "paper-factors"
    base = presets.load(FactorsConfig, preset)
    for shared in SHARED:
        for method in METHODS:
            arguments = {
                "data": "arm",
                "shared": str(shared),
                "method": method,
                "preset": preset,
                "seeds": list(SEEDS),
                # So that runs of what the preset once said are not taken for those of today.
                "config": digest_settings(configs.override(base, [f"method={method}"])),
            }
            job = "drpm.factors.study:run_study"
            runs.append(SweepRun(f"shared-{shared}/{method}", job, arguments))
    return Sweep("table-2", tuple(runs))
