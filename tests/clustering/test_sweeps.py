"""The paper's tables as sweeps."""

from pathlib import Path

import pytest

from drpm.clustering import sweeps
from drpm.clustering.config import ClusteringConfig
from drpm.training import presets
from drpm.training.runs import RunFolder

ALL = [sweeps.table_1, sweeps.table_frozen, sweeps.table_reconstruction, sweeps.exact_objective]


@pytest.mark.parametrize("make", ALL)
def test_every_run_has_a_preset(make) -> None:  # type: ignore[no-untyped-def]
    sweep = make()
    names = {run.arguments["preset"] for run in sweep.runs}
    for name in names:
        assert isinstance(presets.load(ClusteringConfig, name), ClusteringConfig)
    assert len(sweep.runs) % (2 * len(sweeps.SEEDS)) == 0


def test_every_preset_loads() -> None:
    names = presets.names()
    assert "fast-cluster" in names
    for name in names:
        presets.load(ClusteringConfig, name)


def test_a_run_of_a_table(tmp_path: Path) -> None:
    settings = [
        "clusters=3",
        "partitions=2",
        "network.encoder=[8]",
        "network.decoder=[8]",
        "pretraining.training.epochs=1",
        "training.epochs=1",
        "mixture.init=k-means++",
    ]
    sweeps.run_clustering(tmp_path / "run", "digits", "fast-cluster", 3, settings, device="cpu")
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "finished"
    assert run.result()["seed"] == 3
    assert set(run.result()["metrics"]) == {"nmi", "ari", "accuracy", "lower_bound"}
