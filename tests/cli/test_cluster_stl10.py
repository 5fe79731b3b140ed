"""``drpm cluster stl10``: from files in the true format, through features, to a page.

A small network stands in for the pretrained one, in the very place where that is built.
"""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from typer.testing import CliRunner

from drpm.cli import app
from drpm.clustering.fitted import load_clustering
from drpm.data import stl10
from drpm.data.stl10 import CLASSES, Network
from drpm.report.plots import read_arrays
from drpm.training.runs import RunFolder
from tests.data.formats import stl10_images, write_stl10

TRAIN, TEST, FEATURES = 100, 100, 2048

COMMAND = [
    "stl10",
    "--preset=paper-cluster-stl10",
    "--device=cpu",
    "--option=network=resnet50",
    "--set=network.encoder=32,16",
    "--set=network.decoder=16,32",
    "--set=network.latent=4",
    "--set=partitions=4",
    "--set=pretraining.training.epochs=40",
    "--set=pretraining.training.batch_size=20",
    "--set=training.epochs=11",
    "--set=refit_every=5",
    "--set=mixture.restarts=2",
]


class StandIn:
    """As many features as a ResNet-50 has, of coarse colours; counts the images it has seen."""

    def __init__(self) -> None:
        self.seen = 0
        generator = torch.Generator().manual_seed(0)
        self.weights = torch.randn(3 * 4 * 4, FEATURES, generator=generator)

    def __call__(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return (adaptive_avg_pool2d(images, 4).flatten(1) @ self.weights).relu()


def write_images(folder: Path) -> None:
    """The files of STL-10, each class with stripes of a tint of its own."""
    write_stl10(folder, train=TRAIN, test=TEST)
    tints = np.random.default_rng(1).random((len(CLASSES), 3, 1, 4))
    for seed, (part, count) in enumerate((("train", TRAIN), ("test", TEST))):
        stripes = tints[np.arange(count) % len(CLASSES)].repeat(24, -1)
        images = (0.8 * 255 * stripes + 0.2 * stl10_images(count, seed)).astype(np.uint8)
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StandIn]:
    """A finished run, and the network it took the features from."""
    folder, network = tmp_path_factory.mktemp("stl10"), StandIn()
    write_images(folder / "data" / "stl10" / "stl10_binary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRPM_DATA", str(folder / "data"))
        patch.setattr(stl10, "resnet50", lambda device: Network("stand-in", network))
        # A finished run is only shown, and features are not computed twice.
        for _ in range(2):
            command = ["cluster", *COMMAND, "--out", str(folder / "run")]
            shown = CliRunner().invoke(app, command)
            assert shown.exit_code == 0, shown.output
    return folder / "run", network


def test_features_are_computed_once(done: tuple[Path, StandIn]) -> None:
    assert done[1].seen == TRAIN + TEST


def test_labels_scores_and_model(done: tuple[Path, StandIn]) -> None:
    with open(done[0] / "labels.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["split"] for row in rows] == ["train"] * TRAIN + ["test"] * TEST
    result = RunFolder.open(done[0]).result()
    assert result["data"]["shape"] == str(FEATURES)
    # Ten tints are ten clusters; this tests the steps to the result, not the method.
    assert result["metrics"]["nmi"] > 0.7
    assert np.isfinite(result["metrics"]["lower_bound"])
    model = load_clustering(done[0] / "model")
    assert model.shape == (FEATURES,)
    assert model.autoencoder is not None
    assert model.autoencoder.likelihood == "gaussian"
    assert model.sample(torch.tensor([3])).shape == (1, FEATURES)


def test_a_few_columns_stand_for_all(done: tuple[Path, StandIn]) -> None:
    arrays = read_arrays(done[0])
    assert "samples" in arrays
    assert arrays["samples"].shape == (10, 100, 40)
    assert arrays["num_columns"] == FEATURES
    assert "column_names" in arrays
    assert len(set(arrays["column_names"].tolist())) == 40


def test_the_page(done: tuple[Path, StandIn]) -> None:
    pictures = {path.stem for path in (done[0] / "figures").iterdir()}
    assert pictures == {"samples", "latent", "labels", "confusion", "sizes", "curves"}
    page = (done[0] / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 6
    assert "stl10: 10 clusters" in page
    # A page of many wide pictures would be slow to open.
    assert len(page) < 3_000_000
    assert (done[0] / "arrays.npz").stat().st_size < 1_000_000
