"""Real images beside generated rows: when there are any, and which."""

from pathlib import Path

import pytest
import torch

from drpm.clustering.examples import images_behind, nearest_rows, shrunk
from drpm.data import load
from drpm.data.features import Network
from drpm.data.types import Dataset, Split
from tests.data.formats import write_stl10


def test_the_images_behind_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    write_stl10(tmp_path / "stl10" / "stl10_binary")
    rows = load("stl10", network=Network("means", lambda images: images.mean((2, 3))))
    images = images_behind("stl10", rows)
    assert images is not None
    assert torch.equal(images, load("stl10", representation="images").test.inputs)
    # Images are images, and whatever has another number of rows was made of something else.
    assert images_behind("stl10", load("stl10", representation="images")) is None
    part = Split(rows.test.inputs[:2])
    assert images_behind("stl10", Dataset("stl10", part, part)) is None
    # The files may be gone since.
    monkeypatch.setenv("DRPM_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("drpm.data.files.download", lambda *arguments: None)
    assert images_behind("stl10", rows) is None


def test_most_rows_are_no_images() -> None:
    rows = Split(torch.zeros(3, 2))
    for name in ("rows.csv", "digits", "mosaic"):
        assert images_behind(name, Dataset(name, rows, rows)) is None


def test_nearest_rows() -> None:
    rows = torch.tensor([[0.0], [1], [10], [11]])
    samples = torch.tensor([[[0.1], [0.2], [9]], [[12], [0.9], [0.8]]])
    # No row twice in a cluster, but one row in two clusters.
    assert nearest_rows(samples, rows).tolist() == [[0, 1, 2], [3, 1, 0]]
    assert nearest_rows(samples, rows[:2]).tolist() == [[0, 1], [1, 0]]


def test_shrunk() -> None:
    images = torch.arange(32.0).reshape(1, 2, 1, 4, 4)
    small = shrunk(images, 2)
    assert small.shape == (1, 2, 1, 2, 2)
    assert small[0, 0, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert shrunk(images, 4) is images
    assert shrunk(torch.ones(1, 3, 90, 30), 45).shape == (1, 3, 45, 15)
