"""MNIST and Fashion-MNIST: from small files in the true format, and from the real ones."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from drpm.data import DATASETS, DataError, load
from drpm.data.files import check
from drpm.data.mnist import read_idx
from tests.data.formats import idx_bytes, write_mnist

REAL = Path(__file__).parents[3] / "shared" / "data"

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
GOOD = idx_bytes(ARRAY)
ZIPPED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", r"bytes \(N, 3, 4\), but begins with nothing"),
        (b"\x89PNG\r\n", "begins with 89 50 4e 47"),
        (idx_bytes(ARRAY[0]), "begins with 00 00 08 02"),
        (idx_bytes(ARRAY.swapaxes(1, 2)), "begins with 00 00 08 03"),
        (idx_bytes(ARRAY[:0]), "has 16 bytes"),
        (GOOD[:6], "should be an idx file"),
        (GOOD[:-1], "has 39 bytes"),
        (GOOD[:-12], "has 28 bytes"),
        (GOOD + b"\0", "has 41 bytes"),
        (ZIPPED[:-4], "cannot be read"),
        (ZIPPED[:15] + b"\xff\xff\xff" + ZIPPED[18:], "cannot be read"),
        (ZIPPED[:-8] + b"\0\0\0\0" + ZIPPED[-4:], "cannot be read .*CRC"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "wrong-file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"wrong-file .*{complaint}"):
        read_idx(path, 3, 4)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_files_are_read(folder: Path, name: str, compressed: bool) -> None:
    write_mnist(folder / name, train=40, test=20, compressed=compressed)
    dataset = load(name)
    assert dataset.name == name
    assert dataset.input_shape == (1, 28, 28)
    assert (len(dataset.train), len(dataset.test)) == (40, 20)
    labels = dataset.train.targets["label"]
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 28, 28), np.uint8)
    assert torch.equal(dataset.train.inputs, torch.from_numpy(pixels).float() / 255)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [index % 10 for index in range(40)]
    assert len(dataset.classes["label"]) == 10


@pytest.mark.parametrize(
    ("file", "array", "complaint"),
    [
        ("train-images-idx3-ubyte", np.zeros((4, 28, 28)), "should contain 4 labels .* has 40"),
        ("train-images-idx3-ubyte", np.zeros((40, 32, 32)), r"bytes \(N, 28, 28\), but"),
        ("train-labels-idx1-ubyte", np.full(40, 11), "labels from 0 to 9, but has 40 up to 11"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    folder: Path, file: str, array: np.ndarray, complaint: str
) -> None:
    write_mnist(folder / "mnist", train=40)
    path = folder / "mnist" / f"{file}.gz"
    path.write_bytes(gzip.compress(idx_bytes(array.astype(np.uint8))))
    with pytest.raises(DataError, match=complaint):
        load("mnist")


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not beside the repository")
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_files_have_the_published_content(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DRPM_DATA", str(REAL))
    assert [check(file).state for file in DATASETS[name].files] == ["verified"] * 4
    dataset = load(name)
    assert (len(dataset.train), len(dataset.test)) == (60_000, 10_000)
    counts = dataset.train.targets["label"].bincount()
    if name == "mnist":
        assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        # The mean and deviation everybody normalizes with.
        assert float(dataset.train.inputs.mean()) == pytest.approx(0.1307, abs=1e-4)
        assert float(dataset.train.inputs.std()) == pytest.approx(0.3081, abs=1e-4)
    else:
        assert counts.tolist() == [6000] * 10
