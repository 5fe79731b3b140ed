"""The arrays that figures are drawn from: how many of what, in which units, how large."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.clustering import drawn
from drpm.clustering.config import ClusteringConfig
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.mixtures import Mixture
from drpm.data.tables import table
from drpm.data.types import Dataset, Split


def mixture(means: Tensor, variance: float = 1e-4) -> FittedClustering:
    """Clusters among the rows themselves, K of equal weight."""
    count, columns = means.shape
    weights = torch.full((count,), 1 / count).log()
    found = Mixture(weights, means, torch.full_like(means, variance))
    config = ClusteringConfig(method="gmm", clusters=count)
    return FittedClustering(config, torch.Size([columns]), found)


def arrays(*arguments: Any) -> dict[str, NDArray[Any]]:
    content = drawn.draw_arrays(*arguments)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def test_images_in_the_usual_range_are_bytes_and_small() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(60, 1, 28, 28, generator=generator)
    split = Split(images, {"label": torch.arange(60) % 20})
    data = Dataset("images", split, split, {"label": tuple(map(str, range(20)))})
    fitted = mixture(0.4 + 0.2 * images[:20].flatten(1))
    content = drawn.draw_arrays(fitted, data, 0)
    # Noise, which nothing compresses.
    assert len(content) < 750_000
    found = arrays(fitted, data, 0)
    assert found["samples"].shape == (20, 32, 28, 28)
    assert {found[name].dtype for name in ("samples", "partition_points")} == {np.dtype(np.uint8)}
    expected = (fitted.mixture.means * 255).reshape(20, 28, 28).numpy()
    # Of 32 draws with a deviation of a hundredth.
    assert np.abs(found["samples"].mean(1) - expected).max() < 5
    assert found["latent"].dtype == np.float32


def test_images_in_another_range_stay_as_they_are() -> None:
    split = Split(torch.randn(6, 1, 4, 4))
    found = arrays(mixture(split.inputs[:2].flatten(1)), Dataset("images", split, split), 0)
    assert found["samples"].dtype == np.float32
    assert found["samples"].shape == (2, 32, 4, 4)
    assert found["samples"].min() < 0


class TestWideRows:
    def data(self, columns: tuple[str, ...] = ()) -> Dataset:
        """Two heaps of rows that differ in columns 7 and 50 of 60."""
        inputs = torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
        inputs[:20, 7] += 30
        inputs[20:, 50] += 30
        split = Split(inputs)
        return Dataset("rows", split, split, columns=columns)

    def fitted(self) -> FittedClustering:
        means = torch.zeros(2, 60)
        means[0, 7] = means[1, 50] = 30
        return mixture(means)

    def test_a_few_columns_stand_for_all(self) -> None:
        found = arrays(self.fitted(), self.data(), 0)
        assert found["samples"].shape == (2, 100, 40)
        assert found["partition_points"].shape == (128, 40)
        assert found["num_columns"] == 60
        # Each cluster begins with what it is known by; columns are counted from one.
        names = found["column_names"].tolist()
        assert (names[0], names[20]) == ("column 8", "column 51")
        assert np.abs(found["samples"][0, :, 0] - 30).max() < 1
        assert np.abs(found["samples"][1, :, 0]).max() < 1
        members = found["partition_clusters"]
        assert np.abs(found["partition_points"][members == 1, 20] - 30).max() < 1

    def test_columns_keep_their_names(self) -> None:
        columns = tuple(f"gene {index}" for index in range(60))
        names = arrays(self.fitted(), self.data(columns), 0)["column_names"].tolist()
        assert (names[0], names[20]) == ("gene 7", "gene 50")

    def test_real_images_stand_beside_them(self) -> None:
        data = self.data()
        # Image i is of the grey i / 40.
        images = (torch.arange(40.0) / 40)[:, None, None, None].expand(40, 3, 96, 64)
        found = arrays(self.fitted(), data, 0, images)["examples"]
        assert (found.shape, found.dtype) == ((2, 10, 3, 48, 32), np.uint8)
        shown = (found[:, :, 0, 0, 0] / 255 * 40).round()
        assert shown[0].max() < 20 <= shown[1].min()
        assert all(len(set(each)) == 10 for each in shown.tolist())


def test_rows_of_few_columns_have_all_of_them() -> None:
    split = Split(torch.randn(20, 40))
    found = arrays(mixture(torch.randn(2, 40)), Dataset("rows", split, split), 0)
    assert found["samples"].shape == (2, 100, 40)
    assert not {"num_columns", "column_names", "examples"} & set(found)


class TestMap:
    def test_two_main_directions(self) -> None:
        points = torch.randn(200, 5, dtype=torch.float64) * torch.tensor([1.0, 9, 1e-3, 4, 1e-3])
        plane = drawn._flatten_map(points + 100)
        assert plane.shape == (200, 2)
        assert plane.mean(0).abs().max() < 1e-9
        centred = points - points.mean(0)
        # The widest columns, up to the sign of a direction and a little turn.
        for axis, column in ((0, 1), (1, 3)):
            cosine = torch.cosine_similarity(plane[:, axis], centred[:, column], dim=0)
            assert cosine.abs() > 0.98

    def test_distances_in_the_plane_stay(self) -> None:
        points = torch.randn(30, 2, dtype=torch.float64)
        plane = drawn._flatten_map(points)
        torch.testing.assert_close(torch.cdist(plane, plane), torch.cdist(points, points))

    @pytest.mark.parametrize(("count", "width"), [(10, 1), (1, 1), (1, 4), (2, 3), (3, 2)])
    def test_few_codes_or_few_numbers(self, count: int, width: int) -> None:
        plane = drawn._flatten_map(torch.randn(count, width, dtype=torch.float64))
        assert plane.shape == (count, 2)
        assert plane.isfinite().all()

    def test_equal_codes(self) -> None:
        assert (drawn._flatten_map(torch.ones(5, 3, dtype=torch.float64)).abs() < 1e-12).all()


class TestUnits:
    def test_back_to_the_rows_of_the_file(self) -> None:
        columns = {
            "weight": 1000 + np.arange(40.0),
            "height": -0.5 + 0.01 * np.arange(40) % 0.1,
        }
        data = table("rows.csv", columns)
        back = drawn.unstandardiser(data)(data.train.inputs)
        expected = data.train.inputs * data.preprocessing["std"] + data.preprocessing["mean"]
        torch.testing.assert_close(back, expected)
        assert back[:, 0].min().item() == pytest.approx(1000)
        assert back[:, 1].max() < 0

    def test_images_stay_as_they_are(self) -> None:
        split = Split(torch.rand(3, 1, 2, 2))
        images = Dataset("images", split, split)
        assert drawn.unstandardiser(images)(split.inputs) is split.inputs
