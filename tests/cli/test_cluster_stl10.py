"""``drpm cluster stl10``: from files in the true format, through features, to a page.

A small network stands in for the pretrained one, in the very place where that is built.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from drpm.clustering.fitted import load_clustering
from drpm.data import stl10
from drpm.data.stl10 import Network
from drpm.report.plots import read_arrays
from drpm.training.runs import RunFolder
from tests.cli.commands import SMALL_CLUSTERING, drpm
from tests.data.formats import write_stl10

FEATURES = 2048
COMMAND = [
    *("cluster", "stl10", "--preset=paper-cluster-stl10", *SMALL_CLUSTERING),
    *("--option=network=resnet50", "--set=training.epochs=6", "--set=refit_every=5"),
]


def extract(images: Tensor) -> Tensor:
    """As many features as a ResNet-50 has, of coarse colours."""
    weights = torch.randn(3 * 4 * 4, FEATURES, generator=torch.Generator().manual_seed(0))
    return (adaptive_avg_pool2d(images, 4).flatten(1) @ weights).relu()


def test_features_become_a_model_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    write_stl10(tmp_path / "data" / "stl10" / "stl10_binary", train=100, test=30)
    monkeypatch.setenv("DRPM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(stl10, "resnet50", lambda device: Network("stand-in", extract))
    drpm(*COMMAND, "--out", folder)
    result = RunFolder.open(folder).result()
    assert result["data"]["shape"] == str(FEATURES)
    assert np.isfinite(result["metrics"]["lower_bound"])
    model = load_clustering(folder / "model")
    assert model.autoencoder is not None
    assert model.autoencoder.likelihood == "gaussian"
    assert model.sample(torch.tensor([3])).shape == (1, FEATURES)
    # A few columns stand for all, so that the page is quick to open.
    arrays = read_arrays(folder)
    assert arrays["samples"].shape == (10, 100, 40)
    assert arrays["num_columns"] == FEATURES
    assert len((folder / "index.html").read_text(encoding="utf-8")) < 3_000_000
    assert (folder / "arrays.npz").stat().st_size < 1_000_000
