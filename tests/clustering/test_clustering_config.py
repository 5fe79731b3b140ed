"""Settings of a clustering: refusals in one sentence, and which clusters a training starts from."""

import pytest

from drpm.clustering.config import ClusteringConfig
from drpm.training.config import override
from drpm.training.errors import ConfigError


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        ("clusters=0", "clusters must be greater than 0, but got '0'"),
        ("network.encoder=500,0", r"network.encoder\[1\] must be greater than 0"),
        ("objective=exactly", "objective must be 'bound"),
        ("training.devices=2", "pretraining.training.devices must equal training.devices, 2"),
        ("training.precision=64-true", "precision must be '32-true'"),
        (
            "pretraining.kind=reconstruction method=contrastive-head",
            "pretraining.kind must be 'contrastive' if method is 'contrastive-head'",
        ),
        (
            "pretraining.kind=reconstruction mixture.init=contrastive-head",
            "pretraining.kind must be 'contrastive' if mixture.init is 'contrastive-head'",
        ),
    ],
)
def test_refusals(assignments: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        override(ClusteringConfig(), assignments.split())


@pytest.mark.parametrize(
    ("settings", "images", "rows"),
    [
        ("", "mixture", "mixture"),
        ("mixture.init=auto", "head", "likelier"),
        ("mixture.init=auto method=vade", "head", "likelier"),
        ("mixture.init=auto pretraining.kind=reconstruction", "mixture", "mixture"),
        ("mixture.init=auto method=latent-gmm", "mixture", "mixture"),
        ("mixture.init=contrastive-head", "head", "head"),
        ("method=contrastive-head", "head", "head"),
    ],
)
def test_initial_clusters(settings: str, images: str, rows: str) -> None:
    config = override(ClusteringConfig(), settings.split())
    assert config.initial_clusters((1, 8, 8)) == images
    assert config.initial_clusters((3,)) == rows
