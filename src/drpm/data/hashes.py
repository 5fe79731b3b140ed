"""Hashes of files, as they lie there and of their uncompressed content."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from drpm.data.types import RemoteFile

GZIP_MAGIC = b"\x1f\x8b"

_CHUNK = 1 << 20


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    """The hash of a file as it lies there."""
    return _digest(_chunks(path), algorithm)


def content_hash(path: Path) -> str:
    """The SHA-256 of what is in a file, uncompressed where it is gzip."""
    with path.open("rb") as file:
        compressed = file.read(2) == GZIP_MAGIC
    return _digest(_uncompressed_chunks(path) if compressed else _chunks(path), "sha256")


def complaint(path: Path, file: RemoteFile) -> str:
    """What distinguishes a file from the one described, ending a sentence; empty if nothing."""
    if file.content_sha256:
        # Only the content counts: the same content can be compressed in many ways.
        try:
            found = content_hash(path)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            return f"is not a whole gzip file ({error})"
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"
        if found != file.content_sha256:
            return f"has other content (SHA-256 {found[:12]}..., not {file.content_sha256[:12]}...)"
        return ""
    try:
        size = path.stat().st_size
        if file.size is not None and size != file.size:
            return f"has {size:,} bytes, not {file.size:,}"
        for algorithm, known in (("sha256", file.sha256), ("md5", file.md5)):
            if known and (found := file_hash(path, algorithm)) != known:
                return f"has another hash ({algorithm} {found[:12]}..., not {known[:12]}...)"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return ""


def _digest(chunks: Iterator[bytes], algorithm: str) -> str:
    state = hashlib.new(algorithm)
    for chunk in chunks:
        state.update(chunk)
    return state.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _uncompressed_chunks(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as content:
        while chunk := content.read(_CHUNK):
            yield chunk
