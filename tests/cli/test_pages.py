"""The commands ``drpm report`` and ``drpm explore``; tests/browser has what the pages do."""

import re
import sys
import webbrowser
from pathlib import Path

import pytest

from tests.cli.commands import drpm
from tests.report.folders import finished_run


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser with a display is asked to open."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.chdir(tmp_path)
    return addresses


def test_runs_on_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        finished_run(tmp_path / "study" / f"seed-{seed}", records=[])
    assert drpm("report", "study").output == "Report: report.html\n"
    text = Path("report.html").read_text(encoding="utf-8")
    assert "study/seed-0" in text
    assert "study/seed-1" in text
    # Again, beside a folder without a run, in a folder that does not exist yet.
    shown = drpm("report", "study", "nothing", "--out", "a/b.html")
    assert shown.stdout == "Report: a/b.html\n"
    assert shown.stderr.startswith("Skipping nothing: The folder nothing contains no run")
    assert "config.toml is missing" in Path("a/b.html").read_text(encoding="utf-8")


def test_the_explorer_is_written_and_opened(tmp_path: Path, opened: list[str]) -> None:
    path = tmp_path / "new folder" / "page.html"
    assert drpm("explore", "--out", path).stdout == f"Page: {path}\n"
    assert opened == [path.as_uri()]
    text = path.read_text(encoding="utf-8")
    # Nothing is left to fetch or to fill in.
    assert re.search(r"\b(?:src|href)=|@import|url\(|https?:|\{[{%#]", text) is None


def test_the_explorer_is_not_opened(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    drpm("explore", "--no-open", "--out", "page.html")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    drpm("explore")
    assert Path("out/explore.html").is_file()
    assert opened == []
