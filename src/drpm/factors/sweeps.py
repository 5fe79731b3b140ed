"""The paper's table of shared factors, and a choice of weights, for ``drpm reproduce``."""

from collections.abc import Iterable, Sequence

from drpm.factors.config import FactorsConfig
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.studies import digest_settings
from drpm.training.sweeps import Sweep, SweepRun, register

PRESET = "paper-factors"
SEEDS = range(5)
SHARED = (0, 1, 3, 5)
METHODS = ("label", "ada", "hg", "drpm")

# No source has a value for delta, nor for the gamma of ``hg``.
WEIGHED = {"hg": ("gamma",), "drpm": ("gamma", "delta")}
WEIGHTS = (0.05, 0.25, 1.0, 4.0)
WEIGHTS_SEEDS = range(2)
WEIGHTS_EPOCHS = 20  # of 1,000 steps


def study(
    folder: str, shared: str, method: str, seeds: Iterable[int], settings: Sequence[str] = ()
) -> SweepRun:
    """One method on pairs of the drawn arm.

    Arguments:
        folder: Its folder in that of the sweep.
        shared: How many factors pairs share, or ``mixed``.
        method: How shared dimensions are found.
        seeds: They are trained together.
        settings: Changes to the preset, as ``name=value``.
    """
    config = configs.override(presets.load(FactorsConfig, PRESET), [*settings, f"method={method}"])
    arguments = {
        "data": "arm",
        "shared": shared,
        "method": method,
        "preset": PRESET,
        "seeds": list(seeds),
        # So that runs of what the preset once said are not taken for those of today.
        "config": digest_settings(config),
    }
    if settings:
        arguments["settings"] = list(settings)
    return SweepRun(folder, "drpm.factors.study:run_study", arguments)


@register("table-2")
def table_2() -> Sweep:
    """Shared and independent factors of a drawn arm: DRPM-VAE and what it is compared with."""
    runs = [
        study(f"shared-{shared}/{method}", str(shared), method, SEEDS)
        for shared in SHARED
        for method in METHODS
    ]
    return Sweep("table-2", tuple(runs))


@register("factor-weights")
def factor_weights() -> Sweep:
    """DRPM-VAE and HG-VAE with other weights of their divergences, to choose one without labels."""
    runs = []
    for method, names in WEIGHED.items():
        for weight in WEIGHTS:
            settings = [
                *(f"{name}={weight}" for name in names),
                f"training.epochs={WEIGHTS_EPOCHS}",
            ]
            folder = f"{method}/{weight_name(weight)}"
            runs.append(study(folder, "mixed", method, WEIGHTS_SEEDS, settings))
    return Sweep("factor-weights", tuple(runs))


def weight_name(weight: float) -> str:
    """What the folder of a weight is called."""
    return f"weight-{weight:g}"
