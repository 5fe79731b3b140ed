"""The paper's table of shared factors, and what it was set by, for ``drpm reproduce``."""

from collections.abc import Iterable, Sequence

from drpm.factors.config import FactorsConfig
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.studies import digest_settings
from drpm.training.sweeps import Sweep, SweepRun, register

PRESET = "paper-factors"
SEEDS = range(5)
SHARED = (0, 1, 3, 5)
METHODS = ("label", "ada", "hg", "drpm", "drpm-exact")
# What the paper does not have.
VARIANTS = {"drpm-exact": ("drpm", ("objective=exact",))}

# The study that the paper follows takes 300,000 steps at a rate of 1e-4. Ours are fewer, which a
# larger rate makes up for in part. But then the number of shared dimensions goes up and down until
# the last step; so the last fifth of them is taken at a tenth of the rate, the paper's. In quick
# looks from the same seeds that had a larger evidence than a rate that stays in three of four, and
# in three of three than one that falls all along.
EPOCHS = 15  # of 1,000 steps
CHOICE_EPOCHS = 10
RATES = (1e-4, 3e-4, 1e-3)
RATES_METHODS = ("ada", "drpm")
RATE = 1e-3
"""That of the largest evidence in the sweep ``factor-rates``, where rates stay as they are. One of
3e-4 is as good within the deviation."""


# No source has a value for the gamma of ``hg``, nor for any delta; the gamma of ``drpm`` is the
# paper's.
WEIGHED = {"hg": "gamma", "drpm": "delta", "drpm-exact": "delta"}
WEIGHTS = (0.0005, 0.002, 0.01, 0.05, 0.25, 1.0)
CHOSEN = {"hg": 0.25, "drpm": 0.002, "drpm-exact": 0.01}
"""Those of the largest evidence in the sweep ``factor-weights``; for ``hg`` all others are as good
within the deviation."""
CHOICE_SEEDS = range(2)

# Classifiers learn from two thirds of them and are tested on the rest: 10,000 and 5,000, as in the
# study that the paper follows.
TEST_PAIRS = 15_000


def study(
    folder: str,
    shared: str,
    method: str,
    seeds: Iterable[int],
    settings: Sequence[str] = (),
    **arguments: int,
) -> SweepRun:
    """One method on pairs of the drawn arm.

    Arguments:
        folder: Its folder in that of the sweep.
        shared: How many factors pairs share, or ``mixed``.
        method: How shared dimensions are found, or a variant of that.
        seeds: They are trained together.
        settings: Changes to the preset, as ``name=value``.
        arguments: Further ones of the study.
    """
    method, changes = VARIANTS.get(method, (method, ()))
    settings = [*changes, *settings]
    config = configs.override(presets.load(FactorsConfig, PRESET), [*settings, f"method={method}"])
    given: dict[str, object] = {
        "data": "arm",
        "shared": shared,
        "method": method,
        "preset": PRESET,
        "seeds": list(seeds),
        # So that runs of what the preset once said are not taken for those of today.
        "config": digest_settings(config),
        **arguments,
    }
    if settings:
        given["settings"] = list(settings)
    return SweepRun(folder, "drpm.factors.study:run_study", given)


def settings_of(method: str, epochs: int, weight: float | None = None) -> list[str]:
    """What a method is trained with, other than the preset says.

    Arguments:
        method: How shared dimensions are found.
        epochs: How long.
        weight: That of ``WEIGHED``, where the method has it.
    """
    settings = [
        f"training.epochs={epochs}",
        f"training.learning_rate={RATE}",
        "training.learning_rate_decay=0.1",
        f"training.decay_every={epochs * 4 // 5}",
        # Many of them share a card, so that what each of them asks of it counts.
        "training.step=compile",
    ]
    return settings if weight is None else [*settings, f"{WEIGHED[method]}={weight}"]


@register("table-2")
def table_2() -> Sweep:
    """Shared and independent factors of a drawn arm: DRPM-VAE and what it is compared with."""
    runs = []
    for shared in SHARED:
        for method in METHODS:
            settings = settings_of(method, EPOCHS, CHOSEN.get(method))
            folder = f"shared-{shared}/{method}"
            run = study(folder, str(shared), method, SEEDS, settings, test_pairs=TEST_PAIRS)
            runs.append(run)
    return Sweep("table-2", tuple(runs))


@register("factor-rates")
def factor_rates() -> Sweep:
    """Two methods with several learning rates, to choose one without labels."""
    runs = []
    for method in RATES_METHODS:
        for rate in RATES:
            settings = [
                f"training.epochs={CHOICE_EPOCHS}",
                f"training.learning_rate={rate}",
                # As in the study that has the smallest of these rates.
                "shared_divergence=twice",
            ]
            folder = rate_folder(method, rate)
            runs.append(study(folder, "mixed", method, CHOICE_SEEDS, settings))
    return Sweep("factor-rates", tuple(runs))


@register("factor-weights")
def factor_weights() -> Sweep:
    """DRPM-VAE and HG-VAE with other weights of their divergences, to choose one without labels."""
    runs = []
    for method in WEIGHED:
        for weight in WEIGHTS:
            settings = settings_of(method, CHOICE_EPOCHS, weight)
            folder = weight_folder(method, weight)
            runs.append(study(folder, "mixed", method, CHOICE_SEEDS, settings))
    return Sweep("factor-weights", tuple(runs))


def rate_folder(method: str, rate: float) -> str:
    """Where runs with a learning rate lie."""
    return f"{method}/rate-{rate:g}"


def weight_folder(method: str, weight: float) -> str:
    """Where runs with a weight lie."""
    return f"{method}/weight-{weight:g}"
