"""The paper's tables as sweeps: what each study does, and that its settings are the paper's."""

from collections.abc import Callable

import pytest

from drpm.clustering import sweeps
from drpm.clustering.config import ClusteringConfig
from drpm.clustering.pipeline import describe_pretraining
from drpm.training import config as configs
from drpm.training import presets
from drpm.training.sweeps import Sweep

ALL = [
    sweeps.table_1,
    sweeps.table_reconstruction,
    sweeps.clusters,
    sweeps.stl10,
]


def settings(sweep: Sweep) -> dict[str, dict[str, ClusteringConfig]]:
    """From the folder of studies that share pretraining, to a variant, to its settings."""
    found: dict[str, dict[str, ClusteringConfig]] = {}
    for run in sweep.runs:
        preset = presets.load(ClusteringConfig, run.arguments["preset"])
        config = configs.override(preset, run.arguments["settings"])
        group, variant = run.folder.split("/")
        found.setdefault(group, {})[variant] = config
    return found


def main_settings() -> dict[str, dict[str, ClusteringConfig]]:
    return settings(sweeps.table_1())


@pytest.mark.parametrize("make", ALL)
def test_every_study_loads_and_shares_one_pretraining(make: Callable[[], Sweep]) -> None:
    assert all(run.arguments["share"] for run in make().runs)
    for variants in settings(make()).values():
        starts = {
            describe_pretraining(config, 0, config.likelihood)
            for config in variants.values()
            if config.method != "gmm"
        }
        assert len(starts) == 1


def test_the_methods_of_table_1() -> None:
    for data, variants in main_settings().items():
        methods = [config.method for config in variants.values()]
        assert methods[:5] == list(variants)[:5]
        assert methods[5:] == ["vade", "drpm-vc", *["vade"] * (data == "mnist")]
        assert variants["drpm-vc"].freeze_encoder
        assert variants["drpm-vc"].objective == "bounds"
        assert variants["drpm-vc"].beta == {"mnist": 1.0, "fashion-mnist": 0.1}[data]
        # Refits only where clusters would collapse.
        every = {"mnist": None, "fashion-mnist": 10}[data]
        for name in ("drpm-vc", "vade"):
            assert variants[name].refit_every == every
        vade = variants["vade"]
        assert not vade.freeze_encoder
        training = vade.training
        assert (training.optimizer, training.learning_rate) == ("adam", 2e-3)
        # That of the partition model is decoupled; Adam would make a penalty of it.
        assert training.weight_decay == 0
        assert (training.learning_rate_decay, training.decay_every) == (0.95, 10)


def test_reconstruction_changes_nothing_but_pretraining() -> None:
    main = main_settings()
    for data, variants in settings(sweeps.table_reconstruction()).items():
        for name, config in variants.items():
            assert config.pretraining.kind == "reconstruction"
            assert config.pretraining.training.epochs == 50
            changes = ["pretraining.kind=reconstruction", "pretraining.training.epochs=50"]
            assert config == configs.override(main[data][name], changes)


def test_stl10() -> None:
    for run in sweeps.stl10().runs:
        assert run.arguments["seeds"] == [0, 1, 2, 3, 4]
        # Not of whatever network is at hand.
        assert run.arguments["options"]["options"] == ["network=resnet50"]
    variants = settings(sweeps.stl10())["stl10"]
    assert [config.method for config in variants.values()] == list(variants)
    partition, vade = variants["drpm-vc"], variants["vade"]
    for config in (partition, vade):
        network, pretraining = config.network, config.pretraining
        assert (network.latent, network.encoder) == (20, (500, 500, 4000))
        assert network.decoder == (2000, 500, 500)
        assert (pretraining.kind, pretraining.training.batch_size) == ("reconstruction", 256)
        assert (config.training.batch_size, config.training.epochs) == (32, 256)
        assert config.likelihood == "gaussian"
        assert config.refit_every == 10
    assert (partition.beta, partition.gamma, partition.delta) == (1.0, 1.0, 0.01)
    assert partition.freeze_encoder
    # All else as on the other data.
    main = main_settings()["fashion-mnist"]
    for name, config in variants.items():
        assert config.mixture == main[name].mixture
        if name in ("drpm-vc", "vade"):
            changes = ["training.batch_size=256", "training.epochs=1024"]
            changes += ["training.checkpoint_every=64"]
            assert configs.override(config, changes).training == main[name].training
