"""Find, download and check the files of data sets with pooch."""

import gzip
import hashlib
import logging
import os
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
import pooch
from numpy.typing import NDArray

from drpm.data.catalogue import DataError, RemoteFile, reason

T = TypeVar("T")


def search_folders() -> tuple[Path, ...]:
    """The folders to search, in order: DRPM_DATA, if set, and the user's cache."""
    named = os.environ.get("DRPM_DATA")
    cache = Path(pooch.os_cache("drpm"))
    return (Path(named).expanduser(), cache) if named else (cache,)


def writable_folder() -> Path:
    """The first writable search folder; created if missing."""
    for folder in search_folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            # Permission bits are unreliable on network mounts.
            with tempfile.TemporaryFile(dir=folder):
                return folder
    tried = " and ".join(map(str, search_folders()))
    raise DataError(f"DRPM_DATA must name a writable folder; not writable: {tried}.")


def cached_array(start: str, identity: str, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Compute an array once and then load it from a data folder.

    Its path is ``start``, such as "celeba/cache/train", and a hash of its inputs, ``identity``.
    """
    name = f"{start}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
    for folder in search_folders():
        with suppress(OSError, ValueError, EOFError):  # missing or damaged
            return np.load(folder / name, allow_pickle=False)  # type: ignore[no-any-return]
    array = compute()
    path = writable_folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.npy")
    try:
        np.save(unfinished, array, allow_pickle=False)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return array


def find(file: RemoteFile) -> Path | None:
    """Local path of a file, or None; for an archive, the folder with all of its members.

    A .gz file may also be stored uncompressed, without the suffix.
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
    """Local paths of the files of a data set, after downloading missing ones.

    ``instructions`` for manual downloads end the error message.
    """
    failure = "Files are missing"
    for file in files:
        if find(file) is None and file.urls:
            try:
                download(file)
            except DataError as error:
                failure = str(error).rstrip(".")
                break  # without a network, each file would wait for a timeout
    paths = {file.path: path for file in files if (path := find(file)) is not None}
    if missing := [file.path for file in files if file.path not in paths]:
        message = f"{failure}; {destination(missing)}"
        raise DataError(f"{message}; {instructions}." if instructions else f"{message}.")
    return paths


def destination(missing: Sequence[str]) -> str:
    """Where to put missing files, as a part of an error message."""
    places = " or ".join(map(str, search_folders()))
    variable = "" if "DRPM_DATA" in os.environ else ", or in the folder given by DRPM_DATA"
    return f"put {', '.join(missing)} under {places}{variable}"


def download(file: RemoteFile) -> None:
    """Download a file from its first working URL, and extract its members."""
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    bar = sys.stderr.isatty() and find_spec("tqdm") is not None
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=30)
    # Do not download an archive again that is in a data folder.
    there = [folder for folder in search_folders() if (folder / file.path).is_file()]
    path = (there[0] if there else writable_folder()) / file.path
    failures = []
    for url in file.urls:
        try:
            pooch.retrieve(url, file.known_hash, path.name, path.parent, downloader=downloader)
            if file.known_hash or not (failure := _damage(path, file)):
                if file.members:
                    _extract(path, (writable_folder() / file.path).parent, list(file.members))
                return
            path.unlink()
        except requests.HTTPError as error:
            failure = reason(error).partition(" for url")[0]
        except requests.RequestException:
            failure = "could not be reached"
        except ValueError:
            failure = "has a different hash"
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise DataError(f"{file.path} cannot be stored ({reason(error)}).") from error
        failures.append(f"{urlsplit(url).netloc}: {failure}")
    raise DataError(f"{file.path} could not be downloaded ({'; '.join(failures)}).")


def _extract(archive: Path, target: Path, members: list[str]) -> None:
    """Extract files of an archive, each atomically."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        pooch.Untar(members, extract_dir=folder)(str(archive), "download", None)
        for member in members:
            path = target / member
            path.parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / member).replace(path)


class FileReport(NamedTuple):
    """The result of checking one file."""

    file: RemoteFile
    path: Path | None
    state: Literal["verified", "present", "missing", "damaged"]
    detail: str = ""


def check(file: RemoteFile) -> FileReport:
    """Verify the hash of a file, if known."""
    path = find(file)
    if path is None:
        return FileReport(file, None, "missing")
    members = {path / x: replace(file, known_hash=f"md5:{y}") for x, y in file.members.items()}
    for place, part in (members or {path: file}).items():
        if fault := _damage(place, part):
            return FileReport(file, place, "damaged", fault)
    if members or file.known_hash or file.content_sha256:
        return FileReport(file, path, "verified")
    return FileReport(file, path, "present", "no published hash")


def _damage(path: Path, file: RemoteFile) -> str:
    """The fault of a file, such as "has a different hash"; empty if valid."""
    algorithm, _, expected = (file.known_hash or file.content_sha256 or "").rpartition(":")
    if not expected:
        return ""
    try:
        with path.open("rb") if file.known_hash else open_content(path) as content:
            found = hashlib.file_digest(content, algorithm or "sha256").hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        return f"cannot be read: {reason(error)}"
    return "" if found == expected else "has a different hash"


def open_content(path: Path) -> BufferedIOBase:
    """Open a file for reading, uncompressed if it is gzip."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if compressed else path.open("rb")


def track(items: Iterable[T], description: str, total: int) -> Iterable[T]:
    """Iterate with a progress bar on stderr, if it is a terminal."""
    from rich.console import Console
    from rich.progress import track as rich_track

    console = Console(stderr=True)
    shown = console.is_terminal
    return rich_track(items, description, total, console=console, disable=not shown, transient=True)
