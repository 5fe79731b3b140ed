"""The sweeps of ``drpm reproduce``: the studies behind each table and figure.

A sweep is a function that lists its runs. The first line of its docstring describes it. Nothing
here imports torch until runs are listed, so that a shell can complete the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from drpm.training.config import suggest
from drpm.training.errors import ConfigError

if TYPE_CHECKING:
    from drpm.training.sweeps import SweepRun

SEEDS = range(5)
DIGITS = ("mnist", "fashion-mnist")


def study(
    folder: str,
    command: str,
    preset: str,
    settings: Sequence[str] = (),
    *,
    seeds: Iterable[int] = SEEDS,
    **options: Any,
) -> SweepRun:
    """One method with all its seeds, as in :func:`drpm.experiments.run_study`."""
    from drpm.experiments import configure
    from drpm.training.sweeps import SweepRun

    arguments = {
        "command": command,
        "preset": preset,
        "seeds": list(seeds),
        "settings": list(settings),
        "options": options,
        "share": command == "cluster",  # pretraining
        # Runs of an earlier meaning of the preset are not taken for runs of this one.
        "config": configure(command, preset, settings)[1],
    }
    return SweepRun(folder, "drpm.experiments:run_study", arguments)


def bounds() -> Iterator[SweepRun]:
    """The bounds on the probability of a partition, and the exact probability (appendix)."""
    from drpm.training.sweeps import SweepRun

    yield SweepRun("seed-0", "drpm.studies.bounds:run_study", {"draws": 10**8, "seed": 0})


# Clustering

CLUSTERS = range(6, 21, 2)


def clusterings(
    folder: str, data: str, methods: Iterable[str], settings: Sequence[str] = (), **options: Any
) -> Iterator[SweepRun]:
    """The studies ``folder/method`` of one data set; variants of DRPM-VC have its preset."""
    for method in methods:
        end = "" if method.startswith("drpm-vc") else f"-{method}"
        preset = f"paper-cluster-{data}{end}"
        yield study(f"{folder}/{method}", "cluster", preset, settings, data=data, **options)


def table_1() -> Iterator[SweepRun]:
    """Clustering of MNIST and Fashion-MNIST: DRPM-VC, baselines and ablations (Table 1)."""
    # The slowest come last.
    methods = ("gmm", "latent-gmm", "contrastive-head", "drpm-vc", "vade", "vade-frozen")
    for data in DIGITS:
        yield from clusterings(data, data, methods)
        yield from clusterings(data, data, ["drpm-vc-exact"], ["objective=exact"])
    # Where VaDE falls short of the paper.
    preset, settings = "paper-cluster-mnist-vade", ["copy_mean_head=false"]
    yield study("mnist/vade-reset", "cluster", preset, settings, data="mnist")


def table_reconstruction() -> Iterator[SweepRun]:
    """The same with pretraining by reconstruction only (appendix)."""
    for data, method in product(DIGITS, ("latent-gmm", "vade", "drpm-vc")):
        preset = f"paper-cluster-{data}-reconstruction-{method}".removesuffix("-drpm-vc")
        yield study(f"{data}/{method}", "cluster", preset, data=data)


def stl10() -> Iterator[SweepRun]:
    """Clustering of ResNet-50 features of STL-10 (appendix)."""
    methods = ("gmm", "latent-gmm", "drpm-vc", "vade")
    # The default network depends on the installed packages.
    yield from clusterings("stl10", "stl10", methods, options=["network=resnet50"])


def clusters() -> Iterator[SweepRun]:
    """Clustering of Fashion-MNIST with 6 to 20 clusters (appendix)."""
    methods = ("drpm-vc", "vade", "latent-gmm")
    for count in CLUSTERS:
        # Half of the paper's epochs; the temperature is constant after 428.
        settings = [f"clusters={count}", "training.epochs=512"]
        yield from clusterings(f"k-{count}", "fashion-mnist", methods, settings, seeds=range(3))


def partitions() -> Iterator[SweepRun]:
    """DRPM-VC by order, as in the paper, and by affinity, with a shorter training."""
    for kind, data in product(("order", "affinity"), DIGITS):
        # A quarter of the paper's epochs and of its annealing.
        settings = ["training.epochs=256", "annealing_steps=25000", f"partition={kind}"]
        yield from clusterings(data, data, [f"drpm-vc-{kind}"], settings)


def starts() -> Iterator[SweepRun]:
    """Fourteen starts of contrastive pretraining, to compare figures that choose among them."""
    for data in DIGITS:
        yield from clusterings(data, data, ["contrastive-head"], seeds=range(14))


BLOBS = ("balanced-blobs", "unequal-blobs", "stretched-blobs")
TABLES = ("iris", "wine", "breast-cancer", "digits", *BLOBS)


def tables(*, limits: bool = False) -> Iterator[SweepRun]:
    """Tables of scikit-learn at default settings: our estimators, k-means and mixtures."""
    from drpm.training.sweeps import SweepRun

    for data, seed in product(TABLES, SEEDS):
        arguments = {"data": data, "seed": seed, "limits": limits}
        yield SweepRun(f"{data}/seed-{seed}", "drpm.studies.tables:run_study", arguments)


def limits() -> Iterator[SweepRun]:
    """The same tables in clusters of equal size: DRPM-VC and k-means-constrained."""
    yield from tables(limits=True)


# Shared factors

SHARED = (0, 1, 3, 5)

# Locatello et al. (2020) take 300,000 steps at a rate of 1e-4. We take fewer at a larger rate, and
# the last fifth at a tenth of it, since the number of shared dimensions fluctuates until the end.
RATES = (1e-4, 3e-4, 1e-3)
RATES_METHODS = ("ada", "drpm")
RATE = 1e-3
"""The rate of the largest evidence in ``factor-rates``; 3e-4 is as good within the deviation."""

# The paper gives only the gamma of ``drpm``.
WEIGHED = {"hg": "gamma", "drpm": "delta", "drpm-exact": "delta"}
WEIGHTS = (0.0005, 0.002, 0.01, 0.05, 0.25, 1.0)
CHOSEN = {"hg": 0.25, "drpm": 0.002, "drpm-exact": 0.01}
"""The weights of the largest evidence in ``factor-weights``; for ``hg`` all others are as good
within the deviation."""


def factors(folder: str, method: str, settings: Sequence[str], **options: Any) -> SweepRun:
    """One method on pairs of the arm; ``drpm-exact`` is ``drpm`` with the exact objective.

    By default two seeds on mixed pairs, to select hyperparameters.
    """
    name, _, exact = method.partition("-")
    settings = [*(["objective=exact"] if exact else []), *settings, f"method={name}"]
    options = {"seeds": range(2), "shared": "mixed", "test_pairs": 10_000, **options}
    options |= {"data": "arm", "angles": 40, "image_size": 64}
    return study(folder, "factors", "paper-factors", settings, **options)


def factor_settings(method: str, epochs: int, weight: float | None) -> list[str]:
    """Changes to the preset for a method, with a weight of ``WEIGHED`` if it has one."""
    settings = [
        f"training.epochs={epochs}",  # of 1,000 steps
        f"training.learning_rate={RATE}",
        "training.learning_rate_decay=0.1",
        f"training.decay_every={epochs * 4 // 5}",
        "training.step=compile",
    ]
    return settings if weight is None else [*settings, f"{WEIGHED[method]}={weight}"]


def table_2() -> Iterator[SweepRun]:
    """Shared and independent factors of the rendered arm: DRPM-VAE and baselines (Table 2)."""
    for shared, method in product(SHARED, ("label", "ada", "hg", "drpm", "drpm-exact")):
        settings = factor_settings(method, 15, CHOSEN.get(method))
        # 10,000 to train classifiers and 5,000 to test them, as in Locatello et al. (2020).
        options = {"seeds": SEEDS, "shared": str(shared), "test_pairs": 15_000}
        yield factors(f"shared-{shared}/{method}", method, settings, **options)


def factor_rates() -> Iterator[SweepRun]:
    """Selection of the learning rate of table-2, without labels."""
    for method, rate in product(RATES_METHODS, RATES):
        settings = ["training.epochs=10", f"training.learning_rate={rate}"]
        settings += ["shared_divergence=twice"]
        yield factors(f"{method}/rate-{rate:g}", method, settings)


def factor_weights() -> Iterator[SweepRun]:
    """Selection of the loss weights of table-2, without labels."""
    for method, weight in product(WEIGHED, WEIGHTS):
        settings = factor_settings(method, 10, weight)
        yield factors(f"{method}/weight-{weight:g}", method, settings)


def factor_gammas() -> Iterator[SweepRun]:
    """Selection of gamma, the weight of the sizes, for DRPM-VAE in table-2, without labels."""
    for gamma in WEIGHTS:
        settings = [*factor_settings("drpm", 10, CHOSEN["drpm"]), f"gamma={gamma}"]
        yield factors(f"drpm/gamma-{gamma:g}", "drpm", settings)


# Several tasks

NOISE = tuple(tenths / 10 for tenths in range(10))
TASKS = (10, 20, 40)
PAPER_METHODS = ("uls", "drpm")


def tasks(
    folder: str, data: str, method: str, settings: Sequence[str] = (), **options: Any
) -> SweepRun:
    """One method on several tasks."""
    preset, settings = f"paper-multitask-{data}", [*settings, f"method={method}"]
    return study(folder, "multitask", preset, settings, data=data, **options)


def noise() -> Iterator[SweepRun]:
    """MultiMNIST with increasing noise on the right digit: DRPM-MTL and ULS."""
    for method, ratio in product(PAPER_METHODS, NOISE):
        yield tasks(f"{method}/noise-{ratio}", "multimnist", method, noise=ratio)


def noise_order() -> Iterator[SweepRun]:
    """The same for some noise ratios, with the noisy digit first in the partition."""
    for ratio in (0.0, 0.6, 0.7, 0.8, 0.9):
        settings = ["task_order=reversed"]
        yield tasks(f"drpm/noise-{ratio}", "multimnist", "drpm", settings, noise=ratio)


def mosaic() -> Iterator[SweepRun]:
    """Mosaics of 10, 20 and 40 digits with known noise: DRPM-MTL and baselines."""
    for count, method in product(TASKS, ("uls", "uncertainty", "gradient", "drpm")):
        yield tasks(f"tasks-{count}/{method}", "mosaic", method, tasks=count)


def mosaic_free() -> Iterator[SweepRun]:
    """Mosaics without the size penalty, with a different order of tasks for every seed."""
    settings = ["size_penalty=0", "task_order=shuffled"]
    for count in TASKS:
        yield tasks(f"tasks-{count}/drpm", "mosaic", "drpm", settings, tasks=count)


def celeba() -> Iterator[SweepRun]:
    """10, 20 and 40 attributes of CelebA: DRPM-MTL and ULS (appendix)."""
    for count, method in product(TASKS, PAPER_METHODS):
        yield tasks(f"tasks-{count}/{method}", "celeba", method, tasks=count)


# Supervised partitions


def supervised() -> Iterator[SweepRun]:
    """Supervised partitioning of MNIST and Fashion-MNIST (appendix)."""
    for data in DIGITS:
        yield study(f"{data}/drpm", "supervised", f"paper-supervised-{data}", data=data)


SWEEPS: Final[dict[str, Callable[[], Iterable[SweepRun]]]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        bounds,
        table_1,
        table_reconstruction,
        stl10,
        clusters,
        partitions,
        starts,
        tables,
        limits,
        table_2,
        factor_rates,
        factor_weights,
        factor_gammas,
        noise,
        noise_order,
        mosaic,
        mosaic_free,
        celeba,
        supervised,
    )
}


def find(name: str) -> list[SweepRun]:
    """The runs of a sweep, in the order in which they are started."""
    if name not in SWEEPS:
        raise ConfigError(f"{name!r} is not a sweep; {suggest(name, sorted(SWEEPS))}")
    return list(SWEEPS[name]())
