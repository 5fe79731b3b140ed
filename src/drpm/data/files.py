"""Finding, downloading and checking the files of data sets, through pooch."""

import gzip
import hashlib
import logging
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar
from urllib.parse import urlsplit

import pooch

from drpm.data.types import DataError, RemoteFile, reason

VARIABLE = "DRPM_DATA"

_TIMEOUT = 30  # seconds

T = TypeVar("T")


def cache_folder() -> Path:
    """The user's cache of this package."""
    return Path(pooch.os_cache("drpm"))


def search_folders() -> tuple[Path, ...]:
    """The folders that are searched, in this order: the one DRPM_DATA names, the user's cache."""
    named = os.environ.get(VARIABLE)
    cache = cache_folder()
    return (Path(named).expanduser(), cache) if named else (cache,)


def writable_folder() -> Path:
    """The first of the searched folders that can be written; it is created if missing."""
    reasons = []
    for folder in search_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Permissions do not tell on network and read-only mounts.
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise DataError(
        f"No data folder can be written ({'; '.join(reasons)}): set {VARIABLE} to one that can."
    )


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that is renamed to its path when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as out:
            yield out
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def find(file: RemoteFile) -> Path | None:
    """Where a file lies, or None; for an archive, the folder that holds all of its members.

    A file served as .gz may also lie there uncompressed, without that suffix.
    """
    for folder in search_folders():
        path = folder / file.path
        if file.members:
            if all((path.parent / member).exists() for member in file.members):
                return path.parent
        elif path.exists():
            return path
        elif path.suffix == ".gz" and path.with_suffix("").exists():
            return path.with_suffix("")
    return None


def obtain(files: Sequence[RemoteFile], *, instructions: str = "") -> dict[str, Path]:
    """Where each file lies, by its path in the data set, after downloading what is missing.

    Optional files are not downloaded; those that are missing are left out.

    Args:
        files: The files of one data set.
        instructions: Where to get files that cannot be downloaded; ends the error message.
    """
    failure = ""
    for file in files:
        if find(file) is None and file.urls and not file.optional:
            try:
                download(file)
            except DataError as error:
                failure = str(error)
                break  # without a network every further file would wait for its timeout
    paths = {file.path: path for file in files if (path := find(file)) is not None}
    missing = [file for file in files if file.path not in paths and not file.optional]
    if missing:
        raise DataError(missing_message(missing, failure, instructions))
    return paths


def missing_message(missing: Sequence[RemoteFile], failure: str, instructions: str) -> str:
    """A sentence that says where files belong.

    Args:
        missing: The files.
        failure: Why they are missing; may be empty.
        instructions: Where to get them; may be empty.
    """
    names = ", ".join(file.path for file in missing)
    folders = " or ".join(str(folder) for folder in search_folders())
    start = failure.rstrip(".") or "Files are missing"
    message = f"{start}; put {names} under {folders}"
    if VARIABLE not in os.environ:
        message += f", or under a folder that the variable {VARIABLE} names"
    return f"{message}; {instructions}." if instructions else f"{message}."


def download(file: RemoteFile) -> None:
    """Download a file from the first of its URLs that serves it, and extract its members.

    An archive that was put into the data folder by hand is not downloaded again. Every file is
    renamed to its final name when it is complete.
    """
    target = writable_folder() / file.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as name:
            scratch = Path(name)
            if not file.members:
                _retrieve(file, scratch).replace(target)
                return
            archives = [folder / file.path for folder in search_folders()]
            archive = next(filter(Path.is_file, archives), None)
            if archive is None:
                archive = _retrieve(file, scratch)
            elif fault := _damage(archive, file):
                raise DataError(f"{archive} {fault}.")
            untar = pooch.Untar(list(file.members), extract_dir=str(scratch / "members"))
            untar(str(archive), "download", None)
            for member in file.members:
                (target.parent / member).parent.mkdir(parents=True, exist_ok=True)
                (scratch / "members" / member).replace(target.parent / member)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(
            f"{file.path} cannot be stored in {target.parent} ({reason(error)})."
        ) from error


def _retrieve(file: RemoteFile, folder: Path) -> Path:
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    bar = sys.stderr.isatty() and find_spec("tqdm") is not None
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT)
    name = Path(file.path).name
    failures = []
    for url in file.urls:
        try:
            pooch.retrieve(url, file.known_hash, name, folder, downloader=downloader)
            if file.known_hash or not (failure := _damage(folder / name, file)):
                return folder / name
            (folder / name).unlink()
        except requests.HTTPError as error:
            failure = reason(error).partition(" for url")[0]
        except requests.RequestException:
            failure = "could not be reached"
        except ValueError:
            failure = "has another hash"
        failures.append(f"{urlsplit(url).netloc}: {failure}")
    raise DataError(f"{file.path} could not be downloaded ({'; '.join(failures)}).")


@dataclass(frozen=True)
class FileReport:
    """The result of checking one file."""

    file: RemoteFile
    path: Path | None
    state: Literal["verified", "present", "absent", "missing", "damaged"]
    detail: str


def check(file: RemoteFile) -> FileReport:
    """Compare a file with its hash, where one is known."""
    path = find(file)
    if path is None:
        if file.optional:
            return FileReport(file, None, "absent", "optional")
        return FileReport(file, None, "missing", "not found")
    if file.members:
        for member, md5 in file.members.items():
            if fault := _damage(path / member, RemoteFile(member, known_hash=f"md5:{md5}")):
                return FileReport(file, path / member, "damaged", fault)
    elif fault := _damage(path, file):
        return FileReport(file, path, "damaged", fault)
    if file.members or file.known_hash or file.content_sha256:
        return FileReport(file, path, "verified", "its hash is right")
    return FileReport(file, path, "present", "no hash is published")


def _damage(path: Path, file: RemoteFile) -> str:
    """What is wrong with a file, such as "has another hash"; empty if nothing."""
    if not (file.known_hash or file.content_sha256):
        return ""
    if path.is_dir():
        return "is a folder, but should be a file"
    try:
        if file.known_hash:
            algorithm, _, expected = file.known_hash.rpartition(":")
            found = pooch.file_hash(str(path), algorithm or "sha256")
        else:
            expected = file.content_sha256 or ""
            with open_content(path) as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        return f"cannot be read: {reason(error)}"
    return "" if found == expected else "has another hash"


def open_content(path: Path) -> BufferedIOBase:
    """Open a file for reading, uncompressed if it is gzip."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if compressed else path.open("rb")


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Iterate with a progress bar on the error stream, if that is a terminal."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    quiet = not console.is_terminal
    yield from progress.track(
        items, description, total, console=console, disable=quiet, transient=True
    )
