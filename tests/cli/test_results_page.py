"""The results document of the repository: its tables follow from the results (`make results`)."""

import json
import re
from pathlib import Path

import pytest
import typer

from drpm.cli import results_page
from drpm.cli.results_page import FIGURES, update
from drpm.experiments import JOBS, find_job

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_figures_are_those_that_are_declared() -> None:
    shown = re.findall(r"\]\(figures/(.*?)\.png\)", TEXT)
    assert sorted(shown) == sorted(FIGURES)
    assert {path.stem for path in (PAGE.parent / "figures").iterdir()} == {*FIGURES}
    for name in FIGURES:
        content = (PAGE.parent / "figures" / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < 1_000_000


def test_what_is_said_of_all_runs() -> None:
    paths = list(ROOT.glob("results/**/seed-*/result.json"))
    every = {path.relative_to(ROOT / "results"): json.loads(path.read_bytes()) for path in paths}
    runs = {path: result for path, result in every.items() if result["device"] != "cpu"}
    results = runs.values()
    revisions = [str(result["git_revision"]) for result in results]
    (device,) = {(result["device"], result["versions"]["torch"]) for result in results}
    assert device == ("cuda:0 (NVIDIA H200)", "2.11.0+cu130")
    unknown, dirty = revisions.count("None"), sum(each.endswith("-dirty") for each in revisions)
    said = f"All {len(results)} runs on images used one NVIDIA H200 with torch 2.11.0+cu130."
    said += f" Of these, {unknown} have no recorded revision and {dirty} had uncommitted changes."
    others = len(every) - len(results) - 1
    said += f" The {others} runs on tables and that of the bounds used one core of a CPU."
    assert said in " ".join(TEXT.split())
    alone = [path.parts for path, result in runs.items() if len(set(result["stacked"])) == 1]
    # Gaussian mixtures, combined gradients on mosaics, and factor-gammas.
    kinds = {
        (study, {"gmm", "gradient", "drpm"}.intersection(rest).pop()) for study, *rest in alone
    }
    assert kinds == {("table-1", "gmm"), ("mosaic", "gradient"), ("factor-gammas", "drpm")}
    assert [name for name in JOBS if find_job(name)().is_stacked] == ["cluster"]


def test_what_is_said_of_bounds_and_exact_mass() -> None:
    for data, name in (("mnist", "MNIST"), ("fashion-mnist", "Fashion-MNIST")):
        runs = [ROOT / "results/table-1" / data / each for each in ("drpm-vc", "drpm-vc-exact")]
        bounds, exact = (
            [json.loads(path.read_bytes())["metrics"]["accuracy"] for path in paths]
            for paths in (sorted(run.glob("seed-*/result.json")) for run in runs)
        )
        largest = max(abs(x - y) for x, y in zip(bounds, exact, strict=True))
        assert f"{largest:.4f} on {name}" in " ".join(TEXT.split())


def test_the_document_is_updated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Figures are drawn but not rendered, which takes seconds.
    blank = (PAGE.parent / "figures" / "clusters.png").read_bytes()
    monkeypatch.setattr(results_page, "png", lambda figure: blank)
    page, readme = tmp_path / "results.md", tmp_path / "README.md"
    page.write_text(re.sub(r"\n\|.*", "", TEXT), encoding="utf-8")
    front = README.read_text(encoding="utf-8")
    readme.write_text(re.sub(r"(summary -->)\n[^<]*", r"\1\n", front), encoding="utf-8")
    update(ROOT / "results", page, readme)
    assert page.read_text(encoding="utf-8") == TEXT
    assert readme.read_text(encoding="utf-8") == front
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {*FIGURES}
    page.write_text("No tables.\n", encoding="utf-8")
    with pytest.raises(typer.Exit):
        update(ROOT / "results", page, readme)
    assert "error: " in capsys.readouterr().err
