"""Where data lies on the disk, and how a file is written there."""

import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from drpm.data.errors import DataError
from drpm.data.leftovers import at_work_in

VARIABLE = "DRPM_DATA"


def cache_folder() -> Path:
    """The user's cache of this package."""
    import pooch

    return Path(pooch.os_cache("drpm"))


def search_folders() -> tuple[Path, ...]:
    """The folders that are searched, in this order: the one DRPM_DATA names, the user's cache."""
    named = os.environ.get(VARIABLE)
    cache = cache_folder()
    return (Path(named).expanduser(), cache) if named else (cache,)


def writable_folder() -> Path:
    """The first of the searched folders that can be written; it is made where it is missing."""
    reasons = []
    for folder in search_folders():
        reason = why_not_writable(folder)
        if not reason:
            return folder
        reasons.append(f"{folder}: {reason}")
    raise DataError(
        f"No data folder can be written ({'; '.join(reasons)}): set {VARIABLE} to one that can."
    )


def why_not_writable(folder: Path) -> str:
    """Why a folder cannot be written, empty if it can; it is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The permissions say too little on network and read-only mounts: only a write tells.
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes its name only when all of it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # As mkstemp completes the prefix.
    unfinished = f".{glob.escape(path.name)}-{'[a-z0-9_]' * 8}"
    with at_work_in(path.parent, unfinished):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            # mkstemp makes files private; a data file is for whoever may read the folder.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
