"""Finding the files of a data set, downloading what is missing, and checking what is there.

A download goes through pooch into a scratch folder beside its target, and takes its name only
when it is complete and its hash is right: nothing half-written is ever seen under that name.
"""

import gzip
import logging
import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from drpm.data.errors import DataError
from drpm.data.folders import VARIABLE, atomic_write, search_folders, writable_folder
from drpm.data.hashes import complaint
from drpm.data.leftovers import at_work_in
from drpm.data.progress import DownloadBar
from drpm.data.types import RemoteFile

_CHUNK = 1 << 20
_SCRATCH = ".download-"
_TIMEOUT = 30  # seconds without a byte before an address counts as down

_DAMAGED_ARCHIVE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class ProgressBar(Protocol):
    """What pooch asks of a progress bar: it sets `total`, then calls these."""

    total: int

    def update(self, amount: int, /) -> object: ...
    def reset(self) -> object: ...
    def close(self) -> object: ...


MakeProgressBar = Callable[[str], ProgressBar]


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


def obtain(
    files: Sequence[RemoteFile],
    *,
    instructions: str = "",
    make_progress_bar: MakeProgressBar = DownloadBar,
) -> dict[str, Path]:
    """Where each file lies, by its path in the data set, after downloading what is missing.

    Optional files are not downloaded; those that are missing are left out.

    Args:
        files: the files of one data set.
        instructions: where to get files that have no address; ends the error message.
        make_progress_bar: makes the progress bar for the download of a path.
    """
    reason = ""
    for file in files:
        if find(file) is None and file.urls and not file.optional:
            try:
                if (archive := _archive_at_hand(file)) is not None:
                    _unpack(archive, file, (writable_folder() / file.path).parent)
                else:
                    download(file, make_progress_bar)
            except DataError as error:
                reason = str(error)
                break  # without a network each further file would only wait for its timeout
    paths = {file.path: path for file in files if (path := find(file)) is not None}
    missing = [file for file in files if file.path not in paths and not file.optional]
    if missing:
        raise DataError(missing_message(missing, reason, instructions))
    return paths


def _archive_at_hand(file: RemoteFile) -> Path | None:
    """An archive that was put there by hand and not unpacked."""
    if not file.members:
        return None
    for folder in search_folders():
        path = folder / file.path
        if path.exists():
            if not path.is_file():
                raise DataError(f"{path} is a folder, but should be an archive.")
            if reason := complaint(path, file):
                raise DataError(f"{path} {reason}.")
            return path
    return None


def missing_message(missing: Sequence[RemoteFile], reason: str, instructions: str) -> str:
    """A sentence that says where files belong.

    Args:
        missing: the files.
        reason: how the sentence begins: why they are not there; may be empty.
        instructions: where to get them; may be empty.
    """
    names = ", ".join(file.path for file in missing)
    folders = " or ".join(str(folder) for folder in search_folders())
    message = f"{reason.rstrip('.')}; put" if reason else "Files are missing: put"
    message += f" {names} under {folders}"
    if VARIABLE not in os.environ:
        message += f", or under a folder that the variable {VARIABLE} names"
    return f"{message}; {instructions}." if instructions else f"{message}."


def download(file: RemoteFile, make_progress_bar: MakeProgressBar = DownloadBar) -> Path:
    """Download a file from the first of its addresses that serves it whole and unharmed."""
    target = writable_folder() / file.path
    refusals = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is a rename within one file system.
        with (
            at_work_in(target.parent, f"{_SCRATCH}*"),
            tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as scratch,
        ):
            for url in file.urls:
                try:
                    arrived = _retrieve(url, file, Path(scratch), make_progress_bar)
                except _Refusal as refusal:
                    refusals.append(f"{urlsplit(url).netloc} {refusal}")
                    continue
                if file.members:
                    return _unpack(arrived, file, target.parent)
                return arrived.replace(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written ({error.strerror or error}).") from error
    raise DataError(f"{file.path} could not be downloaded ({'; '.join(refusals)}).")


class _Refusal(Exception):
    """Why one address did not serve the file."""


def _retrieve(
    url: str, file: RemoteFile, scratch: Path, make_progress_bar: MakeProgressBar
) -> Path:
    import pooch
    from requests import exceptions as failures

    pooch.get_logger().setLevel(logging.WARNING)
    bar = make_progress_bar(file.path)
    known_hash = file.sha256 or (f"md5:{file.md5}" if file.md5 else None)
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT)
    name = Path(file.path).name
    try:
        arrived = Path(pooch.retrieve(url, known_hash, name, scratch, downloader=downloader))
    except failures.HTTPError as error:
        status = "an error" if error.response is None else error.response.status_code
        raise _Refusal(f"answered with status {status}") from None
    except failures.Timeout:
        raise _Refusal(f"did not answer for {_TIMEOUT} seconds") from None
    except failures.ConnectionError:
        raise _Refusal("could not be reached") from None
    except failures.RequestException:
        raise _Refusal("broke off in the middle") from None
    except ValueError:  # pooch, of a hash
        raise _Refusal("served a file with another hash") from None
    finally:
        bar.close()
    if known_hash is None and (reason := complaint(arrived, file)):
        raise _Refusal(f"served a file that {reason}")
    return arrived


def _unpack(archive: Path, file: RemoteFile, folder: Path) -> Path:
    """Take the members out of a tar archive, each under its name only when it is whole."""
    wanted = set(file.members)
    try:
        with tarfile.open(archive, "r:*") as tar:
            for entry in tar:
                source = tar.extractfile(entry) if entry.name in wanted else None
                if source is not None:
                    with source, atomic_write(folder / entry.name) as out:
                        while chunk := source.read(_CHUNK):
                            out.write(chunk)
                    wanted.remove(entry.name)
    except _DAMAGED_ARCHIVE as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise DataError(f"{file.path} is not a whole tar archive ({reason}).") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{archive} cannot be unpacked into {folder} ({reason}).") from error
    if wanted:
        raise DataError(f"{file.path} does not hold {', '.join(sorted(wanted))}.")
    return folder


@dataclass(frozen=True)
class FileReport:
    """What a check found of one file: where it lies, its state, and a few words about it."""

    file: RemoteFile
    path: Path | None
    state: Literal["verified", "present", "absent", "missing", "damaged"]
    detail: str


def damage_message(damaged: Sequence[FileReport], name: str, instructions: str) -> str:
    """A sentence that says which files are damaged, how, and what to do about it.

    Args:
        damaged: the reports of the files, of which there is at least one.
        name: the data set, as ``drpm data fetch`` takes it.
        instructions: where to get files that have no address; may be empty.
    """
    faults = ", ".join(f"{report.path} is damaged ({report.detail})" for report in damaged)
    them = "it" if len(damaged) == 1 else "them"
    if instructions:
        return f"{faults}; replace {them}: {instructions}."
    if all(report.file.urls and not report.file.optional for report in damaged):
        return f"{faults}; remove {them}, and drpm data fetch {name} downloads {them} anew."
    return f"{faults}; remove or replace {them}."


def check(file: RemoteFile) -> FileReport:
    """Compare a file with what is known of it: its hash where there is one."""
    path = find(file)
    if path is None:
        if file.optional:
            return FileReport(file, None, "absent", "not there, and not needed")
        return FileReport(file, None, "missing", "not found")
    if reason := _wrong_kind(path, file):
        return FileReport(file, path, "damaged", reason)
    if file.members:
        return _check_members(path, file)
    if file.folder:
        return FileReport(file, path, "present", "there")
    if reason := complaint(path, file):
        return FileReport(file, path, "damaged", reason)
    if file.content_sha256 or file.sha256 or file.md5:
        return FileReport(file, path, "verified", "its hash is right")
    return FileReport(file, path, "present", "there; no hash is published")


def _wrong_kind(path: Path, file: RemoteFile) -> str:
    """That a folder lies in the place of a file, or the other way round; empty if neither."""
    for member in file.members:
        if not (path / member).is_file():
            return f"holds a folder in the place of the file {member}"
    if file.folder and not path.is_dir():
        return "is a file, but should be a folder"
    if not (file.folder or file.members or path.is_file()):
        return "is a folder, but should be a file"
    return ""


def _check_members(folder: Path, file: RemoteFile) -> FileReport:
    if not file.members_md5:
        return FileReport(file, folder, "present", "unpacked; no hash is published")
    for member, md5 in zip(file.members, file.members_md5, strict=True):
        path = folder / member
        if reason := complaint(path, RemoteFile(member, md5=md5)):
            # Not the folder, in which other things lie: a remedy names what to remove.
            return FileReport(file, path, "damaged", reason)
    return FileReport(file, folder, "verified", "unpacked, and the hashes of its files are right")
