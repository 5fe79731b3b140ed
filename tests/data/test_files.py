"""Finding, downloading and checking files, against a server on this machine."""

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from drpm.data import DataError
from drpm.data.catalogue import RemoteFile
from drpm.data.files import cached_array, check, find, obtain, search_folders, writable_folder

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()

Folders = tuple[Path, Path]
DEAD = "http://127.0.0.1:1/file"  # where nobody listens


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """The folder of the files that are served."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, content in (("file.bin", CONTENT), ("wrong", CONTENT[:1000]), ("empty", b"")):
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def server(served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server of that folder."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *arguments: None)
    handler = partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """The folder that DRPM_DATA names, and the cache; neither exists yet."""
    named, cache = tmp_path / "named", tmp_path / "cache"
    monkeypatch.setenv("DRPM_DATA", str(named))
    monkeypatch.setattr("pooch.os_cache", lambda name: cache)
    return named, cache


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_is_downloaded_once(server: str, served: Path, folders: Folders) -> None:
    file = RemoteFile("set/file.bin", (f"{server}/file.bin",), known_hash=SHA256)
    for _ in range(2):
        assert obtain([file]) == {"set/file.bin": folders[0] / "set" / "file.bin"}
        (served / "file.bin").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["known_hash", "content_sha256"])
def test_the_first_mirror_that_serves_the_content_is_used(
    server: str, folders: Folders, kind: str
) -> None:
    urls = (DEAD, *(f"{server}/{name}" for name in ("missing", "wrong", "empty", "file.bin")))
    file = RemoteFile("set/file.bin", urls, **{kind: SHA256})
    assert obtain([file])["set/file.bin"].read_bytes() == CONTENT
    assert everything_in(folders[0]) == ["set/file.bin"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "could not be reached"),
        ("missing", "404 Client Error"),
        ("wrong", "has a different hash"),
    ],
)
def test_a_failed_download_leaves_nothing_behind(
    server: str, folders: Folders, name: str, complaint: str
) -> None:
    url = f"{server}/{name}" if name else DEAD
    file = RemoteFile("set/file.bin", (url,), known_hash=SHA256)
    expected = (
        rf"^set/file\.bin could not be downloaded \(127\.0\.0\.1:\d+: {complaint}.*\); "
        rf"put set/file\.bin, set/other\.bin under {folders[0]} or {folders[1]}\.$"
    )
    with pytest.raises(DataError, match=expected):
        obtain([file, RemoteFile("set/other.bin", (url,))])
    assert everything_in(folders[0]) == []


def archive_of(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"inner/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_an_archive_is_extracted(server: str, served: Path, folders: Folders) -> None:
    (served / "set.tar.gz").write_bytes(archive_of(a=CONTENT, b=b"B", unwanted=b"C"))
    members = {"inner/a": hashlib.md5(CONTENT).hexdigest(), "inner/b": "0" * 32}
    file = RemoteFile("set/set.tar.gz", (f"{server}/set.tar.gz",), members=members)
    assert obtain([file]) == {"set/set.tar.gz": folders[0] / "set"}
    assert everything_in(folders[0]) == ["set/inner/a", "set/inner/b", "set/set.tar.gz"]
    report = check(file)
    assert (report.state, report.path) == ("damaged", folders[0] / "set" / "inner" / "b")
    assert check(replace(file, members={"inner/a": members["inner/a"]})).state == "verified"


def test_an_archive_put_there_by_hand_is_extracted_as_a_whole(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive_of(a=CONTENT)
    known = hashlib.sha256(content).hexdigest()
    file = RemoteFile("set/set.tar.gz", (DEAD,), known, members={"inner/a": ""})
    (folders[0] / "set").mkdir(parents=True)
    (folders[0] / "set" / "set.tar.gz").write_bytes(content)

    def stop_halfway(tar: tarfile.TarFile, path: str, **_: object) -> None:
        (Path(path) / "inner").mkdir()
        (Path(path) / "inner" / "a").write_bytes(CONTENT[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(tarfile.TarFile, "extractall", stop_halfway)
        with pytest.raises(KeyboardInterrupt):
            obtain([file])
    assert find(file) is None
    assert obtain([file]) == {"set/set.tar.gz": folders[0] / "set"}
    assert everything_in(folders[0]) == ["set/inner/a", "set/set.tar.gz"]
    assert (folders[0] / "set" / "inner" / "a").read_bytes() == CONTENT


def test_a_damaged_archive_is_refused(server: str, served: Path) -> None:
    for name, content in (("none", archive_of(b=b"B")), ("text", b"no archive")):
        (served / name).write_bytes(content)
        file = RemoteFile(f"{name}/set.tar.gz", (f"{server}/{name}",), members={"inner/a": ""})
        with pytest.raises(DataError, match=r"put .*/set\.tar\.gz under"):
            obtain([file])


def test_files_are_found_in_the_named_folder_then_in_the_cache(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, cache = folders
    file = RemoteFile("set/file.gz")
    assert find(file) is None
    for folder in (cache, named):
        (folder / "set").mkdir(parents=True)
        for name in ("file", "file.gz"):
            (folder / "set" / name).touch()
            assert find(file) == folder / "set" / name
    monkeypatch.delenv("DRPM_DATA")
    assert search_folders() == (cache,)
    with pytest.raises(DataError, match="or in the folder given by DRPM_DATA"):
        obtain([RemoteFile("set/other")])


def test_a_folder_that_cannot_be_written_is_passed_over(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, cache = folders
    named.write_text("a file where a folder should be")
    assert writable_folder() == cache
    monkeypatch.setattr("pooch.os_cache", lambda name: named / "below")
    with pytest.raises(DataError, match="DRPM_DATA must name a writable folder"):
        writable_folder()


def test_check(folders: Folders) -> None:
    path = folders[0] / "set" / "file.gz"
    file = RemoteFile("set/file.gz", content_sha256=SHA256)
    assert check(file).state == "missing"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(CONTENT, 1))  # other bytes than the publisher's
    assert check(file).state == "verified"
    assert check(RemoteFile("set/file.gz", known_hash=SHA256)).state == "damaged"
    assert check(RemoteFile("set/file.gz")).state == "present"
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    assert check(RemoteFile("set/file.gz", known_hash=f"md5:{md5}")).state == "verified"
    path.write_bytes(gzip.compress(CONTENT)[:-9])
    assert "cannot be read" in check(file).detail
    path.write_bytes(gzip.compress(CONTENT[::-1]))
    assert check(file).detail == "has a different hash"
    path.unlink()
    path.mkdir()
    assert "Is a directory" in check(file).detail


def test_an_array_is_computed_once(folders: Folders) -> None:
    def fail() -> NDArray[Any]:
        raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        cached_array("set/array", "one", fail)
    assert everything_in(folders[0]) == []
    array = np.arange(100)
    for compute in (lambda: array, fail):
        np.testing.assert_array_equal(cached_array("set/array", "one", compute), array)
    np.testing.assert_array_equal(cached_array("set/array", "two", lambda: array + 2), array + 2)
    for path in (folders[0] / "set").iterdir():
        path.write_bytes(path.read_bytes()[:-10])
    np.testing.assert_array_equal(cached_array("set/array", "one", lambda: array + 1), array + 1)
    assert len(everything_in(folders[0])) == 2
