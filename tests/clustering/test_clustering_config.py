"""Settings of a clustering: refusals in one sentence, and the way through TOML."""

import pytest

from drpm.clustering.config import (
    ClusteringConfig,
    MixtureConfig,
    NetworkConfig,
    PretrainingConfig,
)
from drpm.data import load
from drpm.training import presets
from drpm.training.config import TrainingConfig, dumps, loads, override
from drpm.training.errors import ConfigError


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("clusters=0", "clusters must be greater than 0, but got '0'"),
        ("codes=-1", "codes must be greater than 0"),
        ("annealing_steps=0", "annealing_steps must be greater than 0"),
        ("beta=-0.1", "beta must be at least 0"),
        ("delta=nan", "delta must be a finite number"),
        ("temperature=1,0", r"temperature\[1\] must be greater than 0"),
        ("temperature=1", "temperature must have more items"),
        ("refit_every=0", "refit_every must be greater than 0"),
        ("network.latent=0", "network.latent must be greater than 0"),
        ("network.encoder=500,0", r"network.encoder\[1\] must be greater than 0"),
        ("pretraining.instance_temperature=0", "pretraining.instance_temperature must be"),
        ("pretraining.training.epochs=-1", "pretraining.training.epochs must be at least 0"),
        ("mixture.restarts=0", "mixture.restarts must be greater than 0"),
        ("mixture.floor=0", "mixture.floor must be greater than 0"),
        ("method=drpm", "method must be 'drpm-vc', 'vade'"),
        ("objective=exactly", "did you mean 'exact'"),
        ("cluster=3", "did you mean clusters"),
    ],
)
def test_refusals(assignment: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        override(ClusteringConfig(), [assignment])


@pytest.mark.parametrize(
    "config",
    [
        ClusteringConfig(),
        ClusteringConfig(
            method="vade",
            clusters=7,
            objective="exact",
            likelihood="gaussian",
            beta=0.1,
            gamma=0.0,
            delta=1e-7,
            partitions=3,
            exact_partitions=2,
            codes=2,
            temperature=(0.9, 0.3),
            annealing_steps=12,
            freeze_encoder=False,
            refit_every=10,
            refit_to="samples",
            refit_detaches_prior=False,
            copy_mean_head=False,
            network=NetworkConfig(3, (4,), (5, 6, 7, 8)),
            pretraining=PretrainingConfig("reconstruction", "noise", 0.1, 0.2, TrainingConfig()),
            mixture=MixtureConfig(2, "auto", 1e-5),
            training=TrainingConfig(optimizer="sgd", gradient_clip=2.0),
        ),
    ],
)
def test_round_trip(config: ClusteringConfig) -> None:
    assert loads(ClusteringConfig, dumps(config)) == config


def test_the_quick_look_at_the_digits_gets_to_the_end_of_its_schedules() -> None:
    config = presets.load(ClusteringConfig, "fast-cluster")
    training, images = config.training, len(load("digits").train)
    steps = training.epochs * (images // training.batch_size)
    # And has some steps left, to learn the model that it is then.
    assert config.annealing_steps <= 0.75 * steps
    assert config.starts_at_head((1, 8, 8))
    assert not config.starts_at_head((3,))


def test_who_starts_at_the_contrastive_head() -> None:
    def starts(shape: tuple[int, ...], *settings: str) -> bool:
        return override(ClusteringConfig(), settings).starts_at_head(shape)

    images, row = (1, 8, 8), (3,)
    assert not starts(images)
    assert starts(images, "mixture.init=auto")
    assert starts(images, "mixture.init=auto", "method=vade")
    assert not starts(row, "mixture.init=auto")
    assert not starts(images, "mixture.init=auto", "pretraining.kind=reconstruction")
    assert not starts(images, "mixture.init=auto", "method=latent-gmm")
    assert starts(row, "mixture.init=contrastive-head")
    assert starts(row, "method=contrastive-head")
