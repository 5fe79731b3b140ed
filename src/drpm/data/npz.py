"""Arrays of npz files that are too large to be read whole."""

import errno
import hashlib
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from drpm.data.errors import DataError
from drpm.data.folders import atomic_write, cache_folder, why_not_writable

_CHUNK = 1 << 24

# What numpy and zipfile raise on damaged files, on encrypted ones, and on those compressed in a way
# they do not know.
DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    TypeError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    struct.error,
    tokenize.TokenError,  # numpy reads the header of an array as Python
    zipfile.BadZipFile,
    zlib.error,
)


def map_array(path: Path, name: str) -> NDArray[Any]:
    """Map an array of an npz file into memory, read-only.

    An array that was compressed cannot be mapped; it is unpacked once, beside the file, or into
    the user's cache where the folder of the file cannot be written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if f"{name}.npy" not in archive.namelist():
                arrays = [member for member in archive.namelist() if member.endswith(".npy")]
                found = ", ".join(member.removesuffix(".npy") for member in arrays) or "nothing"
                raise DataError(f"{path} should hold an array '{name}', but holds {found}.")
            member = archive.getinfo(f"{name}.npy")
            if member.compress_type == zipfile.ZIP_STORED:
                return _map_stored(path, archive, member)
            unpacked = _unpacked(path, name, archive, member)
        mapped: NDArray[Any] = np.load(unpacked, mmap_mode="r", allow_pickle=False)
        return mapped
    except DataError:
        raise
    except OSError as error:
        # Without a number it is about the content; damaged files announce places that no file has.
        if error.errno in (None, errno.EINVAL):
            raise DataError(f"{path} is not a whole npz file ({error}).") from error
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    except DAMAGED as error:
        raise DataError(f"{path} is not a whole npz file ({error}).") from error


def _unpacked(path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Path:
    """Where the array lies unpacked, after unpacking it if need be."""
    beside = path.with_suffix(f".{name}.npy")
    if beside.exists():
        return beside
    target = beside
    if why_not_writable(path.parent):
        # Named after the file as well: another of the same name would give another array.
        state = path.stat()
        key = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode()
        digest = hashlib.sha256(key).hexdigest()[:16]
        target = cache_folder() / path.parent.name / f"{path.stem}.{name}-{digest}.npy"
        if target.exists():
            return target
    with archive.open(member) as stream:
        try:
            with atomic_write(target) as out:
                while chunk := stream.read(_CHUNK):
                    out.write(chunk)
        except OSError as error:
            if error.errno is None:
                raise
            reason = f"cannot be unpacked into {target.parent} ({error.strerror})"
            raise DataError(f"{path} {reason}.") from error
    return target


def _map_stored(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream:
        shape, fortran, dtype = _read_header(stream)
        header = stream.tell()
    # A zip file repeats the name and the extra field in front of the data, where the latter may
    # have another length: both lengths are the last of the 30 bytes that come first.
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
    start = member.header_offset + 30 + int(lengths.sum()) + header
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, fortran, dtype
