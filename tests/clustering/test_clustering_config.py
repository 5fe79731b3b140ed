"""Settings of a clustering: refusals, initial clusters, and the sweeps of the paper's tables."""

import pytest

from drpm.clustering.config import ClusteringConfig
from drpm.clustering.pipeline import describe_pretraining
from drpm.studies.sweeps import find
from drpm.training.config import load_preset, override
from drpm.training.errors import ConfigError


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        ("training.devices=2", "pretraining.training.devices must equal training.devices, 2"),
        ("training.precision=64-true", "precision must be '32-true'"),
    ],
)
def test_refusals(assignments: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        override(ClusteringConfig(), assignments.split())


@pytest.mark.parametrize("setting", ["method", "mixture.init"])
def test_a_contrastive_head_needs_its_pretraining(setting: str) -> None:
    changes = ["pretraining.kind=reconstruction", f"{setting}=contrastive-head"]
    with pytest.raises(ConfigError, match=f"kind must be 'contrastive' if {setting} is"):
        override(ClusteringConfig(), changes)


@pytest.mark.parametrize(
    ("settings", "images", "rows"),
    [
        ("", "mixture", "mixture"),
        ("mixture.init=auto", "head", "best"),
        ("mixture.init=auto method=vade", "head", "best"),
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


def variants_of(sweep: str) -> dict[str, dict[str, ClusteringConfig]]:
    """From the folder of studies that share pretraining, to a variant, to its settings."""
    found: dict[str, dict[str, ClusteringConfig]] = {}
    for run in find(sweep):
        preset = load_preset(ClusteringConfig, run.arguments["preset"])
        config = override(preset, run.arguments["settings"])
        group, variant = run.folder.split("/")
        found.setdefault(group, {})[variant] = config
    return found


@pytest.mark.parametrize("name", ["table-1", "table-reconstruction", "clusters", "stl10"])
def test_every_study_loads_and_shares_one_pretraining(name: str) -> None:
    assert all(run.arguments["share"] for run in find(name))
    for variants in variants_of(name).values():
        starts = {
            describe_pretraining(config, 0, config.likelihood)
            for config in variants.values()
            if config.method != "gmm"
        }
        assert len(starts) == 1


def test_reconstruction_changes_nothing_but_pretraining() -> None:
    main = variants_of("table-1")
    for data, variants in variants_of("table-reconstruction").items():
        for name, config in variants.items():
            assert config.pretraining.kind == "reconstruction"
            assert config.pretraining.training.epochs == 50
            changes = ["pretraining.kind=reconstruction", "pretraining.training.epochs=50"]
            assert config == override(main[data][name], changes)
