"""The paper's tables as sweeps: what each study does, and that its settings are the paper's."""

import pytest

from drpm.clustering.config import ClusteringConfig
from drpm.clustering.pipeline import describe_pretraining
from drpm.studies.sweeps import find
from drpm.training import config as configs
from drpm.training.config import load_preset

ALL = ["table-1", "table-reconstruction", "clusters", "stl10"]


def settings(sweep: str) -> dict[str, dict[str, ClusteringConfig]]:
    """From the folder of studies that share pretraining, to a variant, to its settings."""
    found: dict[str, dict[str, ClusteringConfig]] = {}
    for run in find(sweep):
        preset = load_preset(ClusteringConfig, run.arguments["preset"])
        config = configs.override(preset, run.arguments["settings"])
        group, variant = run.folder.split("/")
        found.setdefault(group, {})[variant] = config
    return found


@pytest.mark.parametrize("name", ALL)
def test_every_study_loads_and_shares_one_pretraining(name: str) -> None:
    assert all(run.arguments["share"] for run in find(name))
    for variants in settings(name).values():
        starts = {
            describe_pretraining(config, 0, config.likelihood)
            for config in variants.values()
            if config.method != "gmm"
        }
        assert len(starts) == 1


def test_reconstruction_changes_nothing_but_pretraining() -> None:
    main = settings("table-1")
    for data, variants in settings("table-reconstruction").items():
        for name, config in variants.items():
            assert config.pretraining.kind == "reconstruction"
            assert config.pretraining.training.epochs == 50
            changes = ["pretraining.kind=reconstruction", "pretraining.training.epochs=50"]
            assert config == configs.override(main[data][name], changes)
