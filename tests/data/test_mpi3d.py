"""MPI3D: its numbering, and its file, whose grid is made smaller here."""

import errno
import tempfile
import zipfile
from pathlib import Path
from typing import IO, NoReturn

import numpy as np
import pytest
import torch

from drpm.data import DataError, load, mpi3d
from drpm.data.npz import map_array

SMALL = (2, 2, 2, 3, 3, 2, 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images whose upper left pixel is their own number, in the file of the toy variant."""
    monkeypatch.setenv("DRPM_DATA", str(tmp_path))
    monkeypatch.setattr(mpi3d, "FACTOR_SIZES", SMALL)
    monkeypatch.setattr(mpi3d, "NUM_IMAGES", 288)
    (tmp_path / "mpi3d").mkdir()
    return tmp_path / "mpi3d"


def images() -> np.ndarray:
    array = np.zeros((288, 64, 64, 3), np.uint8)
    number = np.arange(288)
    array[:, 0, 0, 0], array[:, 0, 0, 1] = number % 256, number // 256
    array[:, 1, 2, 2] = 255
    return array


def number_of(image: torch.Tensor) -> torch.Tensor:
    return (image[:, 0, 0, 0] * 255 + image[:, 1, 0, 0] * 255 * 256).round().long()


def test_the_factors_of_the_published_set() -> None:
    assert mpi3d.FACTOR_NAMES == (
        "object_color",
        "object_shape",
        "object_size",
        "camera_height",
        "background_color",
        "horizontal_axis",
        "vertical_axis",
    )
    assert mpi3d.FACTOR_SIZES == (6, 6, 2, 3, 3, 40, 40)
    assert mpi3d.NUM_IMAGES == 1_036_800


def test_numbers_and_factors_are_inverse() -> None:
    indices = torch.randint(mpi3d.NUM_IMAGES, (1000,))
    factors = mpi3d.factors_of(indices)
    assert factors.shape == (1000, 7)
    assert bool((factors < torch.tensor(mpi3d.FACTOR_SIZES)).all())
    assert torch.equal(mpi3d.index_of(factors), indices)
    # The published rule, for the full set.
    weights = torch.tensor([172_800, 28_800, 14_400, 4_800, 1_600, 40, 1])
    assert torch.equal((factors * weights).sum(1), indices)


def test_a_factor_out_of_range_is_named() -> None:
    with pytest.raises(DataError, match="'object_size' must be from 0 to 1"):
        mpi3d.index_of(torch.tensor([0, 0, 2, 0, 0, 0, 0]))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_images_and_factors_belong_together(folder: Path, save: object) -> None:
    save(folder / "mpi3d_toy.npz", images=images())  # type: ignore[operator]
    dataset = load("mpi3d", num_train=50, num_test=20, seed=4)
    assert dataset.input_shape == (3, 64, 64)
    numbers = number_of(dataset.train.inputs)
    factors = torch.stack(list(dataset.train.targets.values()), dim=1)
    assert list(dataset.train.targets) == list(mpi3d.FACTOR_NAMES)
    assert torch.equal(mpi3d.index_of(factors), numbers)
    assert bool((dataset.train.inputs[:, 2, 1, 2] == 1).all())
    # No image twice, the same for the same seed.
    everything = torch.cat([numbers, number_of(dataset.test.inputs)])
    assert len(everything.unique()) == 70
    again = load("mpi3d", num_train=50, num_test=20, seed=4)
    assert torch.equal(again.test.inputs, dataset.test.inputs)


def test_any_factor_vector_has_its_image(folder: Path) -> None:
    np.savez(folder / "mpi3d_toy.npz", images=images())
    everything = mpi3d.open_images()
    factors = torch.tensor([[1, 1, 1, 2, 2, 1, 1], [0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1, 0]])
    assert number_of(everything.render(factors)).tolist() == [287, 1, 2]
    assert isinstance(everything.pixels, np.memmap)


def test_a_compressed_array_is_unpacked_once(folder: Path) -> None:
    path = folder / "mpi3d_toy.npz"
    np.savez_compressed(path, images=images())
    mapped = map_array(path, "images")
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, images())
    assert sorted(file.name for file in folder.iterdir()) == [
        "mpi3d_toy.images.npy",
        "mpi3d_toy.npz",
    ]


def test_beside_a_file_that_lies_read_only_nothing_is_unpacked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who may write everywhere, as root may, is refused nothing: the temporary file is.
    def read_only(*, dir: Path) -> IO[bytes]:
        if dir in closed:
            raise OSError(errno.EROFS, "Read-only file system", str(dir))
        return temporary(dir=dir)

    temporary = tempfile.TemporaryFile
    cache = tmp_path / "cache"
    closed = [folder]
    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    monkeypatch.setattr("drpm.data.npz.cache_folder", lambda: cache)
    path = folder / "mpi3d_toy.npz"
    np.savez_compressed(path, images=images())
    np.testing.assert_array_equal(map_array(path, "images"), images())
    (unpacked,) = (cache / "mpi3d").iterdir()
    written = unpacked.stat().st_mtime_ns
    np.testing.assert_array_equal(map_array(path, "images"), images())
    assert unpacked.stat().st_mtime_ns == written
    assert [file.name for file in folder.iterdir()] == ["mpi3d_toy.npz"]

    # Another file under the same name is not mistaken for the first.
    np.savez_compressed(path, images=images()[:5])
    assert len(map_array(path, "images")) == 5

    cache = tmp_path / "file"
    cache.touch()
    with pytest.raises(DataError, match=r"mpi3d_toy\.npz cannot be unpacked into .*file/mpi3d \("):
        map_array(path, "images")


def test_an_error_of_the_disk_is_told_as_what_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "mpi3d_toy.npz"
    np.savez_compressed(path, images=images())

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(DataError) as refused:
            map_array(path, "images")
    assert (
        str(refused.value) == f"{path} cannot be unpacked into {folder} (No space left on device)."
    )
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"mpi3d_toy\.npz cannot be read \(Is a directory\)\."):
        map_array(path, "images")


def test_damaged_files_are_refused(folder: Path) -> None:
    path = folder / "mpi3d_toy.npz"
    path.write_bytes(b"not a zip file")
    with pytest.raises(DataError, match=r"mpi3d_toy\.npz is not a whole npz file"):
        load("mpi3d")
    np.savez_compressed(path, images=images())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"mpi3d_toy\.npz is not a whole npz file"):
        load("mpi3d")
    np.savez(path, pictures=images())
    with pytest.raises(DataError, match="an array 'images', but holds pictures"):
        load("mpi3d")
    np.savez(path, images=images()[:100])
    with pytest.raises(DataError, match=r"shape \(288, 64, 64, 3\) .* shape \(100, 64, 64, 3\)"):
        mpi3d.inspect()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images", "no array")
    with pytest.raises(DataError, match="an array 'images', but holds nothing"):
        load("mpi3d")
    np.savez_compressed(path, images=images())
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\3\4") + 6] |= 1  # the flags of an encrypted member,
    content[content.index(b"PK\1\2") + 8] |= 1  # and those in the list at the end
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is not a whole npz file .*encrypted"):
        load("mpi3d")
    np.savez(path, images=np.array([{"python": "objects"}]))
    with pytest.raises(DataError, match="Python objects"):
        load("mpi3d")


def test_bad_options(folder: Path) -> None:
    np.savez(folder / "mpi3d_toy.npz", images=images())
    with pytest.raises(DataError, match="no variant 'complex': there are toy, realistic, real"):
        load("mpi3d", variant="complex")
    with pytest.raises(DataError, match="together at most 288, not 280 and 10"):
        load("mpi3d", num_train=280, num_test=10)
