"""The data of figures: how many of what, in which units, how large."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.clustering import figures
from drpm.clustering.config import ClusteringConfig
from drpm.clustering.figures import discriminative_columns, nearest_rows, resize, source_images
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.mixtures import Mixture
from drpm.data import load
from drpm.data.features import Network
from drpm.data.types import Dataset, Split
from tests.data.formats import write_stl10


def mixture(means: Tensor, shape: tuple[int, ...] | None = None) -> FittedClustering:
    """Clusters of the rows themselves, K of equal weight."""
    count, columns = means.shape
    weights = torch.full((count,), 1 / count).log()
    found = Mixture(weights, means, torch.full_like(means, 1e-4))
    config = ClusteringConfig(method="gmm", clusters=count)
    return FittedClustering(config, torch.Size(shape or [columns]), found)


def arrays(*arguments: Any) -> dict[str, NDArray[Any]]:
    content = figures.figure_data(*arguments)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def test_images_in_the_unit_interval_are_bytes() -> None:
    images = torch.rand(60, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    split = Split(images, {"label": torch.arange(60) % 20})
    data = Dataset("images", split, split, {"label": tuple(map(str, range(20)))})
    fitted = mixture(0.4 + 0.2 * images[:20].flatten(1), (1, 28, 28))
    found = arrays(fitted, data, 0)
    assert found["samples"].shape == (20, 32, 28, 28)
    assert {found[name].dtype for name in ("samples", "partition_points")} == {np.dtype(np.uint8)}
    expected = (fitted.mixture.means * 255).reshape(20, 28, 28).numpy()
    # Of 32 samples with a standard deviation of a hundredth.
    assert np.abs(found["samples"].mean(1) - expected).max() < 5
    assert found["confusion"].sum() == 60


def test_images_in_another_range_stay_as_they_are() -> None:
    split = Split(torch.randn(6, 1, 4, 4))
    fitted = mixture(split.inputs[:2].flatten(1), (1, 4, 4))
    found = arrays(fitted, Dataset("images", split, split), 0)
    assert found["samples"].dtype == np.float32
    assert found["samples"].shape == (2, 32, 4, 4)


def test_wide_rows() -> None:
    """Two groups of rows that differ in columns 7 and 50 of 60."""
    inputs = torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
    inputs[:20, 7] += 30
    inputs[20:, 50] += 30
    means = torch.zeros(2, 60)
    means[0, 7] = means[1, 50] = 30
    split, fitted = Split(inputs), mixture(means)
    # Image i has the gray value i / 40.
    images = (torch.arange(40.0) / 40)[:, None, None, None].expand(40, 3, 96, 64)
    found = arrays(fitted, Dataset("rows", split, split), 0, images)
    assert found["samples"].shape == (2, 100, 40)
    assert found["partition_points"].shape == (128, 40)
    assert found["num_columns"] == 60
    # Columns are counted from one.
    names = found["column_names"].tolist()
    assert (names[0], names[20]) == ("column 8", "column 51")
    assert np.abs(found["samples"][0, :, 0] - 30).max() < 1
    assert np.abs(found["samples"][1, :, 0]).max() < 1
    assert (found["examples"].shape, found["examples"].dtype) == ((2, 10, 3, 48, 32), np.uint8)
    shown = (found["examples"][:, :, 0, 0, 0] / 255 * 40).round()
    assert shown[0].max() < 20 <= shown[1].min()
    assert all(len(set(each)) == 10 for each in shown.tolist())
    columns = tuple(f"gene {index}" for index in range(60))
    names = arrays(fitted, Dataset("rows", split, split, columns=columns), 0)["column_names"]
    assert (names[0], names[20]) == ("gene 7", "gene 50")


def test_the_principal_plane() -> None:
    points = torch.randn(200, 5, dtype=torch.float64) * torch.tensor([1.0, 9, 1e-3, 4, 1e-3])
    plane = figures._principal_plane(points + 100)
    assert plane.mean(0).abs().max() < 1e-9
    centered = points - points.mean(0)
    # The widest columns, up to the sign of a direction and a little turn.
    for axis, column in ((0, 1), (1, 3)):
        cosine = torch.cosine_similarity(plane[:, axis], centered[:, column], dim=0)
        assert cosine.abs() > 0.98
    for shape in ((10, 1), (1, 4), (2, 3)):
        plane = figures._principal_plane(torch.randn(shape, dtype=torch.float64))
        assert plane.shape == (shape[0], 2)
        assert plane.isfinite().all()


def test_source_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    write_stl10(tmp_path / "stl10" / "stl10_binary")
    rows = load("stl10", network=Network("means", lambda images: images.mean((2, 3))))
    images = source_images("stl10", rows)
    assert images is not None
    assert torch.equal(images, load("stl10", representation="images").test.inputs)
    # Images are images, and another number of rows comes from other images.
    assert source_images("stl10", load("stl10", representation="images")) is None
    part = Split(rows.test.inputs[:2])
    assert source_images("stl10", Dataset("stl10", part, part)) is None
    assert source_images("rows.csv", Dataset("rows.csv", part, part)) is None
    # The files may be gone.
    monkeypatch.setenv("DRPM_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("drpm.data.files.download", lambda *arguments: None)
    assert source_images("stl10", rows) is None


def test_nearest_rows() -> None:
    rows = torch.tensor([[0.0], [1], [10], [11]])
    samples = torch.tensor([[[0.1], [0.2], [9]], [[12], [0.9], [0.8]]])
    # No row twice in a cluster, but one row in two clusters.
    assert nearest_rows(samples, rows).tolist() == [[0, 1, 2], [3, 1, 0]]
    assert nearest_rows(samples, rows[:2]).tolist() == [[0, 1], [1, 0]]


def test_resized_images() -> None:
    images = torch.arange(32.0).reshape(1, 2, 1, 4, 4)
    assert resize(images, 2)[0, 0, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert resize(images, 4) is images
    assert resize(torch.ones(1, 3, 90, 30), 45).shape == (1, 3, 45, 15)


def test_discriminative_columns() -> None:
    # Cluster 0 differs in all columns but one, and still selects no more than its share.
    means = torch.tensor([[9.0, 8, 7, 6, 0], [0, 0, 0, 0, 1]])
    samples = means[:, None] + torch.tensor([-1.0, 1])[None, :, None]
    assert discriminative_columns(samples, torch.ones(5), 2).tolist() == [0, 4]
    assert sorted(discriminative_columns(samples, torch.ones(5), 9).tolist()) == [0, 1, 2, 3, 4]
    # Distances are in standard deviations; a constant column distinguishes nothing.
    samples = torch.tensor([[[3.0, 2, 100]], [[0, 0, 0]]])
    assert discriminative_columns(samples, torch.tensor([10.0, 1, 0]), 1).tolist() == [1]
    assert discriminative_columns(torch.randn(1, 4, 6), torch.ones(6), 3).shape == (3,)
