"""The results document of the repository: its tables are what the results give."""

import json
import re
from pathlib import Path

import pytest

from drpm.cli.results_page import FIGURES, TABLES, main
from drpm.report.tables import fill_tables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_what_the_results_give() -> None:
    assert fill_tables(TEXT, TABLES, ROOT / "results") == TEXT, "run `make results`"


def test_the_figures_are_those_that_are_declared() -> None:
    shown = re.findall(r"\]\(figures/(.*?)\.png\)", TEXT)
    assert sorted(shown) == sorted(FIGURES)
    assert {path.stem for path in (PAGE.parent / "figures").iterdir()} == {*FIGURES}
    for name in FIGURES:
        content = (PAGE.parent / "figures" / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < 600_000


def test_what_is_said_of_all_runs() -> None:
    results = [json.loads(path.read_bytes()) for path in ROOT.glob("results/**/seed-*/result.json")]
    revisions = [str(result["git_revision"]) for result in results]
    (device,) = {(result["device"], result["versions"]["torch"]) for result in results}
    assert device == ("cuda:0 (NVIDIA H200)", "2.11.0+cu130")
    unknown, dirty = revisions.count("None"), sum(each.endswith("-dirty") for each in revisions)
    said = f"All {len(results)} runs used one NVIDIA H200 with torch 2.11.0+cu130."
    said += f" Of these, {unknown} have no recorded revision and {dirty} had uncommitted changes."
    assert said in " ".join(TEXT.split())


@pytest.mark.parametrize("name", ["clusters", "table-2-count-error", "noise", "mosaic-neurons"])
def test_figures_are_drawn_from_the_results(name: str) -> None:
    figure = FIGURES[name](ROOT / "results")
    assert all(axes.lines for axes in figure.axes)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "results.md"
    page.write_text(re.sub(r"\n\|.*", "", TEXT), encoding="utf-8")
    assert main([str(ROOT / "results"), str(page)]) == 0
    assert page.read_text(encoding="utf-8") == TEXT
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {*FIGURES}
    page.write_text("No tables.\n", encoding="utf-8")
    assert main([str(ROOT / "results"), str(page)]) == 1
    assert "must have each declared table once" in capsys.readouterr().err
    assert main([str(ROOT / "results"), str(tmp_path / "none.md")]) == 1
    assert "none.md was not updated" in capsys.readouterr().err
