"""Figures of the page of results: which there are, where they go, how large they are."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from drpm.cli import results_page as pages
from drpm.report.result_page import FOLDER
from drpm.report.style import colours
from tests.training.results_folder import write_study, write_variant

ROOT = Path(__file__).parents[2]


def write_arrays(run: Path, clusters: int = 10) -> None:
    run.mkdir(parents=True, exist_ok=True)
    # Smooth as generated images are: each a heap of brightness of its own.
    places = np.linspace(-1, 1, 28)
    shift = np.random.default_rng(0).uniform(-0.5, 0.5, (clusters, 32, 2, 1, 1))
    distance = (places[:, None] - shift[:, :, 0]) ** 2 + (places - shift[:, :, 1]) ** 2
    samples = (255 * np.exp(-4 * distance)).astype(np.uint8)
    np.savez_compressed(run / "arrays.npz", samples=samples)


def test_every_figure_of_the_page_in_the_repository_is_there() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    folder = ROOT / "docs" / FOLDER
    expected = {
        figure.name for section in pages.sections(ROOT / "results") for figure in section.figures
    }
    pictures = list(folder.glob("*.png"))
    assert expected
    assert {path.name for path in pictures} == expected, "run `make results`"
    assert text.count("](figures/") == len(expected), "run `make results`"
    for picture in pictures:
        assert f"]({FOLDER}/{picture.name})" in text, "run `make results`"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 600_000


def test_a_figure_for_every_method_with_samples(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    write_variant(results / "table-1" / "mnist" / "drpm-vc", [0.9, 0.8])
    write_arrays(results / "table-1" / "mnist" / "drpm-vc" / "seed-1")
    write_variant(results / "clusters" / "k-20" / "drpm-vc", [0.5])
    write_arrays(results / "clusters" / "k-20" / "drpm-vc" / "seed-0", 20)
    # One with the most clusters is enough.
    write_variant(results / "clusters" / "k-18" / "drpm-vc", [0.5])
    write_arrays(results / "clusters" / "k-18" / "drpm-vc" / "seed-0", 18)
    nothing = results / "table-1" / "fashion-mnist" / "drpm-vc" / "seed-0"
    nothing.mkdir(parents=True)
    np.savez(nothing / "arrays.npz", sizes=np.ones(3))
    assert pages.main([str(results), str(page)]) == 0
    names = ["clusters-k-20-drpm-vc.png", "clusters.png", "table-1-mnist-drpm-vc.png"]
    assert sorted(path.name for path in (page.parent / FOLDER).iterdir()) == names
    text = page.read_text(encoding="utf-8")
    # Once, though the method stands in three tables.
    shown = "![DRPM-VC, MNIST, seed 1, ACC 0.800](figures/table-1-mnist-drpm-vc.png)"
    assert text.count(shown) == 1
    assert "![K = 20, DRPM-VC, seed 0, ACC 0.500](figures/clusters-k-20-drpm-vc.png)" in text
    assert text.count("](figures/") == 3
    # That of the run that is shown, not of all seeds.
    assert "generates: DRPM-VC, MNIST, seed 1, ACC 0.800.\n" in text
    for name in names:
        assert (page.parent / FOLDER / name).stat().st_size < 400_000


def test_a_partition_of_the_main_table(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "page.md"
    for sweep in ("table-1", "table-reconstruction"):
        study = results / sweep / "mnist" / "drpm-vc"
        write_variant(study, [0.9])
        run = study / "seed-0"
        write_arrays(run)
        with np.load(run / "arrays.npz") as known:
            samples = known["samples"]
        clusters = np.repeat(np.arange(10), 3)
        np.savez(
            run / "arrays.npz",
            samples=samples,
            partition_points=samples[clusters, 0],
            partition_clusters=clusters,
        )
    assert pages.main([str(results), str(page)]) == 0
    shown = "![DRPM-VC, MNIST, seed 0, ACC 0.900](figures/table-1-mnist-drpm-vc-partition.png)"
    text = page.read_text(encoding="utf-8")
    assert text.count(shown) == text.count("-partition.png") == 1
    assert (tmp_path / FOLDER / "table-1-mnist-drpm-vc-partition.png").stat().st_size > 10_000


def test_scores_against_the_number_of_clusters(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "page.md"
    write_variant(results / "clusters" / "k-6" / "drpm-vc", [0.5, 0.6, 0.55])
    assert "](figures/clusters.png)" not in pages.page(results)
    for count, accuracy in ((8, 0.6), (12, 0.65), (20, 0.55)):
        write_variant(results / "clusters" / f"k-{count}" / "drpm-vc", [accuracy, accuracy + 0.05])
        write_variant(
            results / "clusters" / f"k-{count}" / "vade", [accuracy - 0.3, accuracy - 0.25]
        )
    assert pages.main([str(results), str(page)]) == 0
    assert "](figures/clusters.png)" in page.read_text(encoding="utf-8")
    picture = tmp_path / FOLDER / "clusters.png"
    assert 10_000 < picture.stat().st_size < 400_000
    # The bands of both methods are seen, each in a faint form of its own colour.
    seen = image.imread(picture)[..., :3]
    for colour in colours(2):
        faint = 1 - 0.15 * (1 - colour)
        assert (np.abs(seen - faint).max(-1) < 0.01).sum() > 300


def test_the_page_without_its_figures_is_stale(tmp_path: Path) -> None:
    """The text alone tells that arrays came or went."""
    write_variant(tmp_path / "table-1" / "mnist" / "drpm-vc", [0.9])
    before = pages.page(tmp_path)
    write_arrays(tmp_path / "table-1" / "mnist" / "drpm-vc" / "seed-0")
    assert pages.page(tmp_path) != before


def test_damaged_arrays_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "table-1" / "mnist" / "drpm-vc" / "seed-0"
    run.mkdir(parents=True)
    (run / "arrays.npz").write_bytes(b"no archive")
    assert pages.main([str(tmp_path), str(tmp_path / "page.md")]) == 1
    assert "arrays.npz cannot be read as an archive" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


def test_the_page_says_which_method_is_ahead(tmp_path: Path) -> None:
    folder = tmp_path / "clusters"
    # Of the numbers of clusters that all methods were run with.
    write_study(folder / "k-6", {"drpm-vc": [0.6, 0.5], "vade": [0.5]})
    assert "Highest means" not in pages.page(tmp_path)
    write_study(folder / "k-8", {"drpm-vc": [0.5, 0.7], "vade": [0.65], "latent-gmm": [0.2]})
    alone = "\n\nHighest means here. VaDE: NMI (K = 8), ARI (K = 8), ACC (K = 8).\n"
    assert alone in pages.page(tmp_path)
    write_study(folder / "k-12", {"drpm-vc": [0.5, 0.7], "vade": [0.55], "latent-gmm": [0.58]})
    write_study(folder / "k-14", {"drpm-vc": [0.5, 0.7], "vade": [0.55], "latent-gmm": [0.58]})
    assert "; DRPM-VC: NMI (K = 12, 14), ARI (K = 12, 14), ACC (K = 12, 14).\n" in pages.page(
        tmp_path
    )


def test_the_page_says_which_row_is_ahead(tmp_path: Path) -> None:
    folder = tmp_path / "table-1"
    write_study(folder / "mnist", {"drpm-vc": [0.6, 0.5]})
    assert "Highest means" not in pages.page(tmp_path)
    write_study(folder / "mnist", {"gmm": [0.6]})
    assert "\n\nHighest means here. MNIST: GMM (NMI, ARI, ACC).\n" in pages.page(tmp_path)
    # Equal as printed, equal in what is said.
    found = {"gmm": [0.6], "drpm-vc": [0.70001], "vade": [0.69999]}
    write_study(folder / "fashion-mnist", found)
    both = "VaDE (NMI, ARI, ACC), DRPM-VC (NMI, ARI, ACC)"
    assert f"; Fashion-MNIST: {both}.\n" in pages.page(tmp_path)
