"""MPI3D: its numbering, and its file, whose grid is made smaller here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from drpm.data import DataError, load, mpi3d

SMALL = (2, 2, 2, 3, 3, 2, 2)


@pytest.fixture
def path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the file, with a grid of 288 images."""
    monkeypatch.setattr(mpi3d, "FACTOR_SIZES", SMALL)
    monkeypatch.setattr(mpi3d, "NUM_IMAGES", 288)
    (folder / "mpi3d").mkdir()
    return folder / "mpi3d" / "mpi3d_toy.npz"


def images() -> np.ndarray:
    """Images whose upper left pixel is their own index."""
    array = np.zeros((288, 64, 64, 3), np.uint8)
    index = np.arange(288)
    array[:, 0, 0, 0], array[:, 0, 0, 1] = index % 256, index // 256
    array[:, 1, 2, 2] = 255
    return array


def index_in(image: Tensor) -> Tensor:
    return (image[:, 0, 0, 0] * 255 + image[:, 1, 0, 0] * 255 * 256).round().long()


def test_indices_and_factors_are_inverse() -> None:
    assert mpi3d.FACTOR_SIZES == (6, 6, 2, 3, 3, 40, 40)
    indices = torch.randint(mpi3d.NUM_IMAGES, (1000,))
    factors = mpi3d.factors_of(indices)
    assert factors.shape == (1000, 7)
    assert bool((factors < torch.tensor(mpi3d.FACTOR_SIZES)).all())
    assert torch.equal(mpi3d.index_of(factors), indices)
    # The published rule.
    weights = torch.tensor([172_800, 28_800, 14_400, 4_800, 1_600, 40, 1])
    assert torch.equal((factors * weights).sum(1), indices)
    train, test = mpi3d.draw_indices(0, mpi3d.NUM_IMAGES - 50_000, 50_000)
    assert len(torch.cat([train, test]).unique()) == mpi3d.NUM_IMAGES


@pytest.mark.parametrize(
    ("factors", "complaint"),
    [
        (torch.zeros(3, 6, dtype=torch.int64), r"shape \(\.\.\., 7\), but got .*\(3, 6\)"),
        (torch.zeros(3, 7), "integers .* but got torch.float32"),
        (torch.tensor([[0] * 7, [0, 0, 2, 0, 0, 0, 0]]), "'object_size' .* 0 to 1, but got 2"),
        (torch.tensor([0, 0, 0, 0, 0, 0, -1]), "'vertical_axis' .* 0 to 39, but got -1"),
    ],
)
def test_wrong_factors_are_refused(factors: Tensor, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        mpi3d.index_of(factors)


@pytest.mark.parametrize("index", [-1, 1_036_800])
def test_wrong_indices_are_refused(index: int) -> None:
    with pytest.raises(DataError, match=f"from 0 to 1036799, .*{index}"):
        mpi3d.factors_of(torch.tensor([5, index]))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_images_and_factors_belong_together(path: Path, save: object) -> None:
    save(path, images=images())  # type: ignore[operator]
    assert isinstance(mpi3d.open_images(), np.memmap) == (save is np.savez)
    dataset = load("mpi3d", num_train=50, num_test=20, seed=4)
    assert dataset.input_shape == (3, 64, 64)
    found = index_in(dataset.train.inputs)
    factors = torch.stack(list(dataset.train.targets.values()), dim=1)
    assert list(dataset.train.targets) == list(mpi3d.FACTOR_NAMES)
    assert torch.equal(mpi3d.index_of(factors), found)
    assert bool((dataset.train.inputs[:, 2, 1, 2] == 1).all())
    assert len(torch.cat([found, index_in(dataset.test.inputs)]).unique()) == 70


def test_damaged_files_are_refused(path: Path) -> None:
    def refused(complaint: str) -> None:
        with pytest.raises(DataError, match=rf"mpi3d_toy\.npz .*{complaint}"):
            load("mpi3d")

    path.write_bytes(b"not a zip file")
    refused("cannot be read")
    np.savez_compressed(path, images=images())
    path.write_bytes(path.read_bytes()[:-30])
    refused("cannot be read")
    np.savez(path, pictures=images())
    refused("images.npy")
    np.savez(path, images=images()[:100])
    refused(r"shape \(288, 64, 64, 3\) .* shape \(100, 64, 64, 3\)")
    np.savez(path, images=np.array([{"python": "objects"}]))
    refused("cannot be read")


def test_bad_options(path: Path) -> None:
    np.savez(path, images=images())
    with pytest.raises(DataError, match="'variant' should be 'toy', 'realistic' or 'real', not"):
        load("mpi3d", variant="complex")
    for sizes in ((280, 10), (0, 5), (5, -1)):
        with pytest.raises(DataError, match=f"at most 288, not {sizes[0]} and {sizes[1]}"):
            load("mpi3d", num_train=sizes[0], num_test=sizes[1])
