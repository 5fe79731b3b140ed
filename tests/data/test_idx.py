"""The idx format: what is read, and how what is wrong is refused."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from drpm.data.errors import DataError
from drpm.data.idx import read_idx
from tests.data.formats import idx_bytes

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_array_survives(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "any-name"
    content = idx_bytes(ARRAY)
    path.write_bytes(gzip.compress(content, mtime=0) if compressed else content)
    read = read_idx(path, ndim=3)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, ARRAY)


@pytest.mark.parametrize(
    ("code", "dtype"), [(0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
)
def test_other_types_come_in_the_machines_byte_order(tmp_path: Path, code: int, dtype: str) -> None:
    values = np.array([1, -2, 3], f">{dtype}")
    path = tmp_path / "values"
    path.write_bytes(struct.pack(">BBBBI", 0, 0, code, 1, 3) + values.tobytes())
    read = read_idx(path)
    assert read.dtype == np.dtype(dtype)
    assert read.tolist() == [1, -2, 3]


GOOD = idx_bytes(ARRAY)
ZIPPED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not an idx file: .* begins with nothing"),
        (b"\x89PNG\r\n", "is not an idx file: .* begins with 89 50 4e 47"),
        (b"\0\0\x07\x01", "is not an idx file"),
        (GOOD[:6], "is truncated: it ends within its header of 16 bytes"),
        (GOOD[:-1], "is truncated: its header announces an array of 2 x 3 x 4 in 40 bytes, .* 39"),
        (GOOD + b"\0", "is too long"),
        (idx_bytes(ARRAY[0]), "should hold an array of 3 dimensions, but has 2"),
        (ZIPPED[:-4], "is a truncated gzip file"),
        (ZIPPED[:15] + b"\xff\xff\xff" + ZIPPED[18:], "is a corrupted gzip file"),
        (ZIPPED[:-8] + b"\0\0\0\0" + ZIPPED[-4:], "is a corrupted gzip file .*CRC"),
    ],
)
def test_what_is_wrong_is_refused_with_the_file_named(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "wrong-file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"wrong-file {complaint}"):
        read_idx(path, ndim=3)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere cannot be read"):
        read_idx(tmp_path / "nowhere")
