"""The idx format of MNIST and its descendants, compressed or not.

A file starts with two zero bytes, one byte for the type and one for the number of dimensions;
then each dimension as a big-endian 32-bit integer, then the values, row after row.
"""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drpm.data.errors import DataError
from drpm.data.hashes import GZIP_MAGIC

_TYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}


def read_bytes(path: Path) -> bytes:
    """The content of a file, uncompressed where its first bytes, not its name, say gzip."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except EOFError as error:
        raise DataError(f"{path} is a truncated gzip file: its end is missing.") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is a corrupted gzip file ({error}).") from error
    except MemoryError as error:
        raise DataError(f"{path} unpacks to more than the memory holds.") from error


def read_idx(path: Path, *, ndim: int | None = None) -> NDArray[Any]:
    """The array in an idx file, in the machine's byte order.

    Args:
        path: the file, plain or gzip.
        ndim: the number of dimensions it must have, such as 3 for images and 1 for labels.
    """
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        start = content[:4].hex(" ") or "nothing"
        raise DataError(
            f"{path} is not an idx file: it should begin with 00 00, a type and the number of "
            f"dimensions, but begins with {start}."
        )
    dtype = _TYPES[content[2]]
    found = content[3]
    if ndim is not None and found != ndim:
        raise DataError(f"{path} should hold an array of {ndim} dimensions, but has {found}.")
    header = 4 + 4 * found
    if len(content) < header:
        raise DataError(f"{path} is truncated: it ends within its header of {header} bytes.")
    shape = tuple(np.frombuffer(content, ">u4", count=found, offset=4).tolist())
    expected = header + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        raise DataError(
            f"{path} is {kind}: its header announces an array of {_times(shape)} in "
            f"{expected:,} bytes, but there are {len(content):,}."
        )
    values = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"
