"""Finding, downloading and checking files, against a server on this machine."""

import gzip
import hashlib
import io
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from drpm.data import DataError
from drpm.data.files import check, download, find, obtain
from drpm.data.folders import atomic_write, search_folders, writable_folder
from drpm.data.types import RemoteFile

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves what is put into `files`; `announced` overrides the length it promises."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.announced: dict[str, int] = {}
        self.requests: list[str] = []
        # Where it is there, what was announced but is not there is waited for.
        self.kept_waiting: threading.Event | None = None

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.requests.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(self.server.announced.get(name, len(content))))
        self.end_headers()
        self.wfile.write(content)
        if self.server.kept_waiting is not None and name in self.server.announced:
            self.wfile.flush()
            self.server.kept_waiting.wait(60)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder that DRPM_DATA names, and the cache; neither is there yet."""
    named, cache = tmp_path / "named", tmp_path / "cache"
    monkeypatch.setenv("DRPM_DATA", str(named))
    monkeypatch.setattr("drpm.data.folders.cache_folder", lambda: cache)
    return named, cache


def dead_url() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"http://127.0.0.1:{port}/file.bin"


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Bar:
    """A progress bar that remembers what it was told."""

    def __init__(self, description: str) -> None:
        self.description, self.total, self.done, self.closed = description, 0, 0, False

    def update(self, amount: int) -> None:
        self.done += amount

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.closed = True


def test_a_good_file_is_downloaded(server: Server, folders: tuple[Path, Path]) -> None:
    server.files["file.bin"] = CONTENT
    file = RemoteFile("set/file.bin", (server.url("file.bin"),), sha256=SHA256)
    bars: list[Bar] = []

    def make(description: str) -> Bar:
        bars.append(Bar(description))
        return bars[-1]

    paths = obtain([file], make_progress_bar=make)
    assert paths == {"set/file.bin": folders[0] / "set" / "file.bin"}
    assert paths["set/file.bin"].read_bytes() == CONTENT
    assert everything_in(folders[0]) == ["set/file.bin"]
    (bar,) = bars
    assert (bar.description, bar.total, bar.closed) == ("set/file.bin", len(CONTENT), True)
    # A second time it is found, not fetched.
    obtain([file])
    assert server.requests == ["file.bin"]


@pytest.mark.parametrize("first", ["dead", "missing", "wrong", "truncated", "empty"])
def test_the_mirror_serves_what_the_first_address_does_not(
    server: Server, folders: tuple[Path, Path], first: str
) -> None:
    server.files |= {"file.bin": CONTENT, "wrong": b"x" * len(CONTENT), "empty": b""}
    server.files["truncated"] = CONTENT[:1000]
    server.announced["truncated"] = len(CONTENT)
    url = dead_url() if first == "dead" else server.url(first)
    file = RemoteFile("set/file.bin", (url, server.url("file.bin")), sha256=SHA256)
    assert download(file).read_bytes() == CONTENT
    assert everything_in(folders[0]) == ["set/file.bin"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("dead", r"could not be reached"),
        ("missing", r"answered with status 404"),
        ("wrong", r"served a file with another hash"),
        ("truncated", r"(broke off in the middle|could not be reached)"),
    ],
)
def test_a_file_that_cannot_be_had_leaves_nothing_behind(
    server: Server, folders: tuple[Path, Path], name: str, complaint: str
) -> None:
    server.files |= {"wrong": b"x" * len(CONTENT), "truncated": CONTENT[:1000]}
    server.announced["truncated"] = len(CONTENT)
    url = dead_url() if name == "dead" else server.url(name)
    file = RemoteFile("set/file.bin", (url,), sha256=SHA256)
    expected = (
        rf"^set/file\.bin could not be downloaded \(127\.0\.0\.1:\d+ {complaint}\); "
        rf"put set/file\.bin, set/other\.bin under {folders[0]} or {folders[1]}\.$"
    )
    with pytest.raises(DataError, match=expected):
        obtain([file, RemoteFile("set/other.bin", (url,))])
    assert everything_in(folders[0]) == []
    assert not list(folders[0].glob("set/.*"))


def test_without_a_hash_size_and_content_are_checked(
    server: Server, folders: tuple[Path, Path]
) -> None:
    server.files |= {"short": CONTENT[:-1], "right": CONTENT, "zipped": gzip.compress(CONTENT)}
    file = RemoteFile("set/file", (server.url("short"),), size=len(CONTENT))
    with pytest.raises(DataError, match="served a file that has 10,239 bytes, not 10,240"):
        download(file)
    content = RemoteFile("set/file", (server.url("short"),), content_sha256=SHA256)
    with pytest.raises(DataError, match="served a file that has other content"):
        download(content)
    assert everything_in(folders[0]) == []
    download(replace(content, path="set/file.gz", urls=(server.url("zipped"),)))
    assert everything_in(folders[0]) == ["set/file.gz"]


def archive_of(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"inner/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_an_archive_is_unpacked_and_not_kept(server: Server, folders: tuple[Path, Path]) -> None:
    server.files["set.tar.gz"] = archive_of(a=b"A", b=b"B", unwanted=b"C")
    file = RemoteFile("set/set.tar.gz", (server.url("set.tar.gz"),), members=("inner/a", "inner/b"))
    assert obtain([file]) == {"set/set.tar.gz": folders[0] / "set"}
    assert everything_in(folders[0]) == ["set/inner/a", "set/inner/b"]
    assert check(file).state == "present"


def test_an_archive_put_there_by_hand_is_unpacked(folders: tuple[Path, Path]) -> None:
    content = archive_of(a=b"A")
    file = RemoteFile(
        "set/set.tar.gz",
        (dead_url(),),
        sha256=hashlib.sha256(content).hexdigest(),
        members=("inner/a",),
    )
    (folders[0] / "set").mkdir(parents=True)
    archive = folders[0] / "set" / "set.tar.gz"
    archive.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"set\.tar\.gz has another hash"):
        obtain([file])
    archive.write_bytes(content)
    assert obtain([file]) == {"set/set.tar.gz": folders[0] / "set"}
    assert everything_in(folders[0]) == ["set/inner/a", "set/set.tar.gz"]


def test_a_damaged_archive_is_refused(server: Server, folders: tuple[Path, Path]) -> None:
    server.files |= {"none": archive_of(b=b"B"), "text": b"not an archive"}
    for name, complaint in (("none", "does not hold inner/a"), ("text", "not a whole tar archive")):
        file = RemoteFile("set/set.tar.gz", (server.url(name),), members=("inner/a",))
        with pytest.raises(DataError, match=complaint) as refusal:
            download(file)
        assert "\n" not in str(refusal.value)
    assert everything_in(folders[0]) == []


def test_files_are_found_in_the_named_folder_then_in_the_cache(folders: tuple[Path, Path]) -> None:
    named, cache = folders
    file = RemoteFile("set/file.gz")
    assert find(file) is None
    for path in (
        cache / "set/file",
        cache / "set/file.gz",
        named / "set/file",
        named / "set/file.gz",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert find(file) == path


def test_the_cache_alone_is_searched_without_the_variable(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRPM_DATA")
    assert search_folders() == (folders[1],)
    with pytest.raises(DataError, match="or under a folder that the variable DRPM_DATA names"):
        obtain([RemoteFile("set/file")])


def test_a_folder_that_cannot_be_written_is_passed_over(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    named, cache = folders
    named.write_text("a file where a folder should be")
    assert writable_folder() == cache
    monkeypatch.setattr("drpm.data.folders.cache_folder", lambda: named / "below")
    with pytest.raises(DataError, match=r"No data folder can be written .*: set DRPM_DATA to one"):
        writable_folder()


SLOW = """
import sys
from drpm.data.files import download
from drpm.data.types import RemoteFile
download(RemoteFile("set/file.bin", (sys.argv[1],)))
"""


@pytest.fixture
def slow_download(server: Server, folders: tuple[Path, Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is in the middle of a download, which does not go on."""
    server.files["slow"] = CONTENT
    server.announced["slow"] = 2 * len(CONTENT)
    server.kept_waiting = threading.Event()
    process = subprocess.Popen([sys.executable, "-c", SLOW, server.url("slow")])
    try:
        deadline = time.monotonic() + 600
        while not everything_in(folders[0]) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()
        server.kept_waiting.set()


def test_a_download_that_is_ended_leaves_nothing_behind(
    slow_download: subprocess.Popen[bytes], folders: tuple[Path, Path]
) -> None:
    (half,) = everything_in(folders[0])
    assert half.startswith("set/.download-")
    slow_download.terminate()
    assert slow_download.wait(60) == 128 + signal.SIGTERM
    assert not list((folders[0] / "set").iterdir())


def test_what_a_killed_download_left_is_swept_by_the_next(
    slow_download: subprocess.Popen[bytes], server: Server, folders: tuple[Path, Path]
) -> None:
    server.files["file.bin"] = CONTENT
    file = RemoteFile("set/file.bin", (server.url("file.bin"),), sha256=SHA256)
    (half,) = everything_in(folders[0])
    # While it lives, it is left alone.
    download(file)
    assert everything_in(folders[0]) == [half, "set/file.bin"]
    slow_download.kill()
    slow_download.wait(60)
    assert everything_in(folders[0]) == [half, "set/file.bin"]
    download(replace(file, path="set/other.bin"))
    assert everything_in(folders[0]) == ["set/file.bin", "set/other.bin"]


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "file[1].bin"
    (tmp_path / ".file[1].bin-abcd_123").write_bytes(b"half")
    kept = [".file[1].bin-of-mine", ".file1.bin-abcd_123"]
    for name in kept:
        (tmp_path / name).touch()
    with atomic_write(path) as out:
        out.write(b"whole")
        # A second writer of the same file leaves the first one's work alone.
        with atomic_write(path) as other:
            other.write(b"first")
    assert path.read_bytes() == b"whole"
    assert everything_in(tmp_path) == sorted([*kept, path.name])


def test_optional_files_are_not_fetched(server: Server) -> None:
    assert obtain([RemoteFile("set/file", (server.url("file"),), optional=True)]) == {}
    assert server.requests == []


def test_a_check_tells_the_states_apart(folders: tuple[Path, Path]) -> None:
    path = folders[0] / "set" / "file.gz"
    file = RemoteFile("set/file.gz", sha256="0" * 64, content_sha256=SHA256)
    assert check(file).state == "missing"
    assert check(replace(file, optional=True)).state == "absent"
    path.parent.mkdir(parents=True)
    # Compressed in another way than the publisher's, the content is still right.
    path.write_bytes(gzip.compress(CONTENT, 1))
    assert check(file).state == "verified"
    assert check(replace(file, content_sha256=None)).state == "damaged"
    assert check(replace(file, content_sha256=None, sha256=None)).state == "present"
    path.write_bytes(gzip.compress(CONTENT)[:-9])
    assert check(file).state == "damaged"
    assert "not a whole gzip file" in check(file).detail
    path.write_bytes(gzip.compress(CONTENT[::-1]))
    assert "other content" in check(file).detail
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    assert check(RemoteFile("set/file.gz", md5=md5)).state == "verified"


def test_a_check_tells_folders_from_files(folders: tuple[Path, Path]) -> None:
    path = folders[0] / "set" / "thing"
    path.mkdir(parents=True)
    report = check(RemoteFile("set/thing", sha256=SHA256))
    assert (report.state, report.detail) == ("damaged", "is a folder, but should be a file")
    assert check(RemoteFile("set/thing", folder=True)).state == "present"
    report = check(RemoteFile("set/set.tar.gz", members=("thing",)))
    assert report.state == "damaged"
    assert "a folder in the place of the file thing" in report.detail
    path.rmdir()
    path.write_bytes(CONTENT)
    report = check(RemoteFile("set/thing", folder=True))
    assert (report.state, report.detail) == ("damaged", "is a file, but should be a folder")


def test_a_check_of_what_was_unpacked(folders: tuple[Path, Path]) -> None:
    path = folders[0] / "set" / "inner" / "a"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    file = RemoteFile("set/set.tar.gz", members=("inner/a",))
    assert check(file).state == "present"
    file = replace(file, members_md5=(hashlib.md5(CONTENT).hexdigest(),))
    assert check(file).state == "verified"
    path.write_bytes(CONTENT[:-1])
    assert check(file).state == "damaged"
    assert check(file).detail.startswith("has another hash (md5 ")
    assert check(file).path == path


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def fail_midway() -> None:
        with atomic_write(path) as out:
            out.write(b"half")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert path.read_bytes() == b"before"
    assert everything_in(tmp_path) == ["file"]
    with atomic_write(path) as out:
        out.write(b"after")
    assert path.read_bytes() == b"after"
