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


def test_who_starts_at_the_contrastive_head() -> None:
    def starts(shape: tuple[int, ...], *settings: str) -> bool:
        return override(ClusteringConfig(), settings).starts_at_head(shape)

    images, row = (1, 8, 8), (3,)
    assert not starts(images)
    assert starts(images, "mixture.init=auto")
    assert starts(images, "mixture.init=auto", "method=vade")
    assert not starts(row, "mixture.init=auto")  # the likelier of the head and k-means
    assert not starts(images, "mixture.init=auto", "pretraining.kind=reconstruction")
    assert not starts(images, "mixture.init=auto", "method=latent-gmm")
    assert starts(row, "mixture.init=contrastive-head")
    assert starts(row, "method=contrastive-head")
