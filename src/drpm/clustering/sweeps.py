"""The paper's clustering tables as sweeps, for ``drpm reproduce``."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from drpm.training.sweeps import Sweep, SweepRun, register

SEEDS = range(5)
DATA = ("mnist", "fashion-mnist")


def _runs(variants: Iterable[str], settings: Iterable[str] = ()) -> list[SweepRun]:
    """Every variant of the presets on both data sets, for all seeds."""
    return [
        SweepRun(
            f"{data}{variant}/seed-{seed}",
            "drpm.clustering.sweeps:run_clustering",
            {
                "data": data,
                "preset": f"paper-cluster-{data}{variant}",
                "seed": seed,
                "settings": list(settings),
            },
        )
        for data in DATA
        for variant in variants
        for seed in SEEDS
    ]


@register("table-1")
def table_1() -> Sweep:
    """Clustering on MNIST and Fashion-MNIST: DRPM-VC, its baselines and the contrastive head."""
    variants = ("", "-vade", "-latent-gmm", "-gmm", "-contrastive-head")
    return Sweep("table-1", tuple(_runs(variants)))


@register("table-frozen")
def table_frozen() -> Sweep:
    """VaDE with the encoder frozen (appendix)."""
    return Sweep("table-frozen", tuple(_runs(("-vade-frozen",))))


@register("table-reconstruction")
def table_reconstruction() -> Sweep:
    """DRPM-VC after pretraining by reconstruction alone (appendix)."""
    return Sweep("table-reconstruction", tuple(_runs(("-reconstruction",))))


@register("exact-objective")
def exact_objective() -> Sweep:
    """DRPM-VC with the exact mass in place of the bounds."""
    return Sweep("exact-objective", tuple(_runs(("",), ("objective=exact",))))


def run_clustering(
    folder: Path,
    data: str,
    preset: str,
    seed: int,
    settings: list[str],
    device: str = "auto",
) -> None:
    """One run of a table.

    Arguments:
        folder: The run's folder; one that was cut off is gone on with.
        data: The data set.
        preset: The settings.
        seed: Settles what is random.
        settings: Changes to the preset, as ``name=value``.
        device: Where.
    """
    from drpm.clustering.config import ClusteringConfig
    from drpm.clustering.job import Job, do_job, open_job
    from drpm.data import load
    from drpm.training import config as configs
    from drpm.training import presets
    from drpm.training.devices import connect

    config = configs.override(presets.load(ClusteringConfig, preset), settings)
    training = replace(config.training, seed=seed, device=device)
    job = Job(data, clustering=replace(config, training=training))
    run = open_job(folder, job)
    dataset = load(data, device=connect(training).device)
    do_job(job, dataset, run, command=["drpm", "cluster", data, "--preset", preset])
