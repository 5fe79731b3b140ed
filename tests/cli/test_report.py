"""``drpm report``: several runs on one page."""

from pathlib import Path

import pytest

from tests.cli.commands import drpm, refusal
from tests.report.folders import finished_run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        finished_run(tmp_path / "study" / f"seed-{seed}", records=[])
    return tmp_path


def test_runs_on_one_page(place: Path) -> None:
    assert drpm("report", "study").output == "Report: report.html\n"
    text = (place / "report.html").read_text(encoding="utf-8")
    assert "study/seed-0" in text
    assert "study/seed-1" in text
    # Again, beside a folder without a run, in a folder that does not exist yet.
    shown = drpm("report", "study", "nothing", "--out", "a/b.html")
    assert shown.stdout == "Report: a/b.html\n"
    assert shown.stderr.startswith("nothing is left out: The folder nothing contains no run")
    assert "config.toml is missing" in (place / "a" / "b.html").read_text(encoding="utf-8")


def test_no_run_at_all(place: Path) -> None:
    assert refusal("report", "nothing", "--out", "page.html") == (
        "No run can be read: The folder nothing contains no run: config.toml is missing."
    )
    assert not (place / "page.html").exists()


def test_only_pages_are_replaced() -> None:
    assert refusal("report", "study", "--out", "labels.csv") == (
        "--out must end with .html, but got labels.csv."
    )
