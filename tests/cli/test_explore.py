"""The command ``drpm explore``; its page is tested in tests/browser."""

import re
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

from tests.cli.commands import drpm, refusal


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser with a display is asked to open."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    monkeypatch.setenv("DISPLAY", ":0")
    return addresses


def test_the_page_is_written_and_opened(tmp_path: Path, opened: list[str]) -> None:
    path = tmp_path / "new folder" / "page.html"
    assert drpm("explore", "--out", path).stdout == f"Page: {path}\n"
    assert opened == [path.as_uri()]
    text = path.read_text(encoding="utf-8")
    # Nothing is left to fetch or to fill in.
    assert re.search(r"\b(?:src|href)=|@import|url\(|https?:", text) is None
    assert re.search(r"\{[{%#]", text) is None


def test_the_page_is_not_opened(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drpm("explore", "--no-open", "--out", tmp_path / "page.html")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.chdir(tmp_path)
    drpm("explore")
    assert (tmp_path / "out" / "explore.html").is_file()
    assert opened == []


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sentence = refusal("explore", "--out", tmp_path / "file" / "page.html")
    assert sentence.startswith(str(tmp_path / "file"))


def test_the_page_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, drpm.cli.pages as x; x.render_explorer(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
