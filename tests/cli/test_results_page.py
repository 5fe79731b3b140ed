"""The page of results: what is there and what is not, means and deviations, the paper's figures."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from drpm.cli import results_page as results
from drpm.clustering import published
from drpm.clustering.paper_tables import DATA
from drpm.factors import published as factors_published
from drpm.training.errors import RunError
from drpm.training.summaries import summarize
from tests.training.results_folder import write_json, write_study, write_variant

ROOT = Path(__file__).parents[2]


def section(text: str, title: str) -> list[str]:
    """The lines under a title."""
    return text.split(f"### {title}\n")[1].split("\n##")[0].strip().splitlines()


def test_the_page_in_the_repository_is_what_the_results_give() -> None:
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert written == results.page(ROOT / "results"), "run `make results`"


def test_nothing_was_run(tmp_path: Path) -> None:
    text = results.page(tmp_path)
    assert text.count("\nNot run yet.\n") == 16
    assert "| here |" not in text
    assert "| DRPM-VC | paper | 0.89 ± 0.01 | 0.88 ± 0.03 | 0.94 ± 0.02 | 5 |" in text
    # The paper prints nothing of other numbers of clusters, so there is no table at all.
    assert not any(line.startswith("|") for line in section(text, "Other numbers of clusters"))


def test_means_and_deviations(tmp_path: Path) -> None:
    write_study(tmp_path / "table-1" / "mnist", {"gmm": [0.4, 0.5, 0.6], "drpm-vc": [0.9]}, 1.5)
    lines = section(results.page(tmp_path), "MNIST and Fashion-MNIST")
    here = [line for line in lines if "| here |" in line]
    # The deviation of three values, each 0.1 from the next, is 0.1 where n - 1 divides.
    assert here == [
        "|  | here | 0.400 ± 0.100 | 0.300 ± 0.100 | 0.500 ± 0.100 | 3 | - | - | - | - |",
        "|  | here | 0.800 | 0.700 | 0.900 | 1 | - | - | - | - |",
    ]
    # Ours stands under the paper's.
    assert lines[lines.index(here[0]) - 1].startswith("| GMM | paper | 0.32 ± 0.01 |")
    assert (
        "Not run yet: GMM (Fashion-MNIST); Latent GMM; VaDE; DRPM-VC (Fashion-MNIST); "
        "Contrastive head."
    ) in lines
    where = "cuda:0 (Some card), torch 2.9.0, no recorded revision"
    assert f"- MNIST on {where}: GMM 1:30:00, DRPM-VC 1:30:00." in lines


def test_revisions_that_say_too_little(tmp_path: Path) -> None:
    write_study(tmp_path / "table-1" / "mnist", {"gmm": [0.4, 0.5], "vade": [0.9], "drpm-vc": [1]})
    for name, revision in (("gmm", f"{'a' * 40}-dirty"), ("vade", "b" * 40)):
        for path in (tmp_path / "table-1" / "mnist" / name).rglob("result.json"):
            write_json(path, {**json.loads(path.read_text()), "git_revision": revision})
    text = results.page(tmp_path)
    assert "no recorded revision: 1 of 4; with uncommitted changes: 2." in text
    lines = [line for line in text.splitlines() if line.startswith("- MNIST on")]
    ends = [line.partition("torch 2.9.0, ")[2].partition(":")[0] for line in lines]
    assert ends == [
        f"revision {'a' * 7} with uncommitted changes",
        f"revision {'b' * 7}",
        "no recorded revision",
    ]


def test_both_objectives_are_compared_seed_by_seed(tmp_path: Path) -> None:
    folder = tmp_path / "table-1" / "mnist"
    write_study(folder, {"drpm-vc": [0.9, 0.5], "drpm-vc-exact": [0.5, 0.88]})
    lines = section(results.page(tmp_path), "Bounds and exact mass")
    (told,) = [line for line in lines if "for one seed" in line]
    assert told.endswith("MNIST 0.4000 (NMI), 0.4000 (ARI), 0.4000 (ACC).")
    # Nothing is said before both have the same seeds.
    write_study(folder, {"drpm-vc": [0.9, 0.5, 0.7]})
    assert "for one seed" not in results.page(tmp_path)


def test_rows_of_another_sweep(tmp_path: Path) -> None:
    for data in DATA:
        write_study(tmp_path / "table-1" / data, {"drpm-vc": [0.9], "latent-gmm": [0.8]})
        write_study(tmp_path / "table-1" / data, {"drpm-vc-exact": [0.7]})
    text = results.page(tmp_path)
    bounds = section(text, "Bounds and exact mass")
    scores = "0.800 | 0.700 | 0.900 | 1"
    assert f"|  | here | {scores} | {scores} |" in bounds
    scores = "0.600 | 0.500 | 0.700 | 1"
    assert f"| exact | here | {scores} | {scores} |" in bounds
    assert not any("Not run yet" in line for line in bounds)


def test_what_falls_short_is_said(tmp_path: Path) -> None:
    """The paper's VaDE on MNIST: 0.84 ± 0.01, 0.76 ± 0.05, 0.82 ± 0.04."""
    # 0.72, 0.62 and 0.82: the accuracy is the paper's.
    write_study(tmp_path / "table-1" / "mnist", {"vade": [0.82], "drpm-vc": [0.99]})
    text = results.page(tmp_path)
    line = (
        "Lower than the paper by more than two of its deviations, as rounded there: "
        "VaDE (MNIST NMI, ARI); DRPM-VC (MNIST ARI)."
    )
    assert line in section(text, "MNIST and Fashion-MNIST")
    # Once, though VaDE stands in two tables.
    assert text.count("Lower than the paper") == 1


def test_other_numbers_of_clusters(tmp_path: Path) -> None:
    write_study(tmp_path / "clusters" / "k-8", {"drpm-vc": [0.5, 0.6], "vade": [0.5, 0.5]})
    write_variant(tmp_path / "clusters" / "k-20" / "drpm-vc", [0.3])
    lines = section(results.page(tmp_path), "Other numbers of clusters")
    rows = [line for line in lines if line.startswith("| K = ")]
    assert len(rows) == 2
    assert rows[0].startswith(
        "| K = 8 | here | 0.450 ± 0.071 | 0.350 ± 0.071 | 0.550 ± 0.071 | 2 |"
    )
    assert "Not run yet: K = 6; K = 8 (Latent GMM); K = 10;" in "\n".join(lines)
    assert "K = 20 (VaDE, Latent GMM)." in "\n".join(lines)
    where = "cuda:0 (Some card), torch 2.9.0, no recorded revision"
    assert f"- DRPM-VC on {where}: K = 8 1:00:00, K = 20 1:00:00." in lines
    assert f"- VaDE on {where}: K = 8 1:00:00." in lines


def test_a_study_knows_its_time(tmp_path: Path) -> None:
    """Where seeds were trained one after the other, it is more than that of any run."""
    folder = tmp_path / "table-1" / "mnist"
    write_study(folder, {"gmm": [0.4, 0.5]}, 1.0)
    study = folder / "gmm" / "result.json"
    content = json.loads(study.read_text())
    write_json(study, {**content, "wall_time": 7200})
    assert "GMM 2:00:00." in "\n".join(section(results.page(tmp_path), "MNIST and Fashion-MNIST"))
    study.unlink()
    assert "GMM 1:00:00." in "\n".join(section(results.page(tmp_path), "MNIST and Fashion-MNIST"))


def test_summaries() -> None:
    assert summarize([2.0, 4.0, 9.0]) == pytest.approx((5.0, 13**0.5))
    assert summarize([2.0]) == (2.0, None)


@pytest.mark.parametrize(
    ("figures", "data"),
    [
        (published.MAIN, DATA),
        (published.FROZEN, DATA),
        (published.RECONSTRUCTION, DATA),
        (published.STL10, ["stl10"]),
    ],
)
def test_the_paper_has_the_same_data_sets_for_every_method(
    figures: published.Published, data: Iterable[str]
) -> None:
    for scores in figures.values():
        assert set(scores) == set(data)
        for each in scores.values():
            assert list(each) == ["nmi", "ari", "accuracy"]
            assert all(0 < figure.mean < 1 and figure.deviation < 0.1 for figure in each.values())


def test_stl10(tmp_path: Path) -> None:
    write_study(tmp_path / "stl10" / "stl10", {"gmm": [0.4], "drpm-vc": [0.9, 0.7]}, 0.5)
    lines = section(results.page(tmp_path), "Features of STL-10")
    assert "| GMM | here | 0.300 | 0.200 | 0.400 | 1 |" in lines
    ours = lines.index("|  | here | 0.700 ± 0.141 | 0.600 ± 0.141 | 0.800 ± 0.141 | 2 |")
    assert lines[ours - 1] == "| DRPM-VC | paper | 0.83 ± 0.01 | 0.80 ± 0.02 | 0.91 ± 0.00 | 5 |"
    assert "Not run yet: Latent GMM; VaDE." in lines
    where = "cuda:0 (Some card), torch 2.9.0, no recorded revision"
    assert f"- STL-10 on {where}: GMM 0:30:00, DRPM-VC 0:30:00." in lines


# Shared factors.


def write_factors(folder: Path, shared: int, accuracies: Sequence[float]) -> None:
    for seed, accuracy in enumerate(accuracies):
        metrics = {
            "shared_accuracy": accuracy if shared else None,
            "independent_accuracy": accuracy + 0.1,
            "count_error": 1.0 + shared,
            "mean_count": 2.0,
            "used_dimensions": 5.0,
            "shared_used": 1.5,
            "disentanglement": 0.5,
            "mutual_information_gap": 0.25,
        }
        facts = {"wall_time": 60, "device": "cpu", "versions": {"torch": "2.9.0"}}
        facts["git_revision"] = "0123456789abcdef"
        write_json(folder / f"seed-{seed}" / "result.json", {"metrics": metrics, **facts})


def test_shared_factors(tmp_path: Path) -> None:
    for shared in (0, 3):
        write_factors(tmp_path / "table-2" / f"shared-{shared}" / "drpm", shared, [0.2, 0.4])
    text = results.page(tmp_path)
    lines = section(text, "Telling factors from the representation")
    ours = lines.index(
        "|  | here | - | 0.400 ± 0.141 | 2 | - | - | - | 0.300 ± 0.141 | 0.400 ± 0.141 | 2 "
        "| - | - | - |"
    )
    # With no factor shared there is none to tell.
    assert lines[ours - 1].startswith("| DRPM-VAE | paper | - | 0.26 ± 0.02 | 5 | 0.39 ± 0.07 |")
    missing = "Label-VAE; Ada-VAE; HG-VAE; DRPM-VAE (n_s = 1, n_s = 5); exact DRPM-VAE"
    assert f"Not run yet: {missing}." in lines
    assert "- n_s = 3 on cpu, torch 2.9.0, revision 0123456: DRPM-VAE 0:01:00." in lines
    assert "| 2.000 ± 0.000 | 1.000 ± 0.000 |" in "\n".join(
        section(text, "How many factors are shared")
    )
    assert "| 0.500 ± 0.000 | 0.250 ± 0.000 |" in "\n".join(section(text, "Disentanglement"))
    assert "](figures/" not in text


def test_the_figure_of_errors_needs_all_methods(tmp_path: Path) -> None:
    for shared in (0, 1, 3, 5):
        for method in ("label", "ada", "hg", "drpm"):
            folder = tmp_path / "results" / "table-2" / f"shared-{shared}" / method
            write_factors(folder, shared, [0.2])
    assert results.main([str(tmp_path / "results"), str(tmp_path / "page.md")]) == 0
    assert "](figures/table-2-count-error.png)" in (tmp_path / "page.md").read_text()
    assert (tmp_path / "figures" / "table-2-count-error.png").stat().st_size > 5_000
    # A run without a finite error is none to draw.
    result = folder / "seed-0" / "result.json"
    result.write_text(result.read_text().replace('"count_error": 6.0', '"count_error": null'))
    assert "count-error.png" not in results.page(tmp_path / "results")


def test_the_paper_has_the_same_numbers_for_every_method() -> None:
    assert list(factors_published.MAIN) == ["label", "ada", "hg", "drpm"]
    for scores in factors_published.MAIN.values():
        assert list(scores) == [0, 1, 3, 5]
        assert [len(each) for each in scores.values()] == [1, 2, 2, 2]


def test_training_steps(tmp_path: Path) -> None:
    assert "## Training steps" not in results.page(tmp_path)
    step = {"step": "compile", "matmul": "high", "batch_size": 256}
    times = {"empty model": (12e-6, None), "multitask LeNet": (200e-6, 300e-6)}
    times["multitask LeNet, split"] = (250e-6, 1.5e-3)
    steps = [
        {
            "model": model,
            "alone": alone,
            "stacked": stacked,
            "ratio": None if stacked is None else stacked / alone,
            **step,
        }
        for model, (alone, stacked) in times.items()
    ]
    # Only those of compiled steps are shown.
    steps.append({**steps[0], "alone": 99e-6, "step": "eager"})
    environment = {"device_name": "a card", "torch": "2.9", "date": "2026-01-02"}
    environment["git_revision"] = "0123456789abcdef"
    content = {"environment": environment, "steps": steps}
    folder = tmp_path / "benchmarks"
    write_json(folder / "loop-h200.json", content)
    text = results.page(tmp_path)
    assert "one a card, torch 2.9, with" in text
    assert "| empty model | 256 | 12 | - | - | 0123456 |" in text
    assert "| 99 |" not in text
    assert "| multitask LeNet, split | 256 | 250 | 1,500 | 6.00 | 0123456 |" in text
    assert "multitask LeNet, split takes 25% (stacked 400%) longer than multitask LeNet." in text
    # The later of two measurements counts, whatever the names of their files.
    for name, date, revision in (("a", "2026-01-01", "a" * 40), ("z", "2026-01-03", "f" * 40)):
        other = {**environment, "date": date, "git_revision": revision}
        again = {"environment": other, "steps": [{**steps[1], "alone": 150e-6}]}
        write_json(folder / f"loop-h200-{name}.json", again)
    text = results.page(tmp_path)
    assert "one a card, torch 2.9, with" in text
    assert "| multitask LeNet | 256 | 150 | 300 | 2.00 | fffffff |" in text
    assert text.count("| multitask LeNet |") == 1
    assert "| multitask LeNet, split | 256 | 250 | 1,500 | 6.00 | 0123456 |" in text
    # Programs of two revisions are not compared.
    assert "longer than multitask LeNet" not in text
    write_json(tmp_path / "benchmarks" / "loop-h200.json", {"steps": []})
    with pytest.raises(RunError, match=r"loop-h200\.json is not what benchmarks\.loop writes"):
        results.page(tmp_path)


# The command.


def test_the_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert results.main([str(ROOT / "results"), str(page)]) == 0
    assert page.read_bytes() == (ROOT / "docs" / "results.md").read_bytes()


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "table-1" / "mnist" / "gmm" / "seed-0" / "result.json"
    for content, sentence in (
        ({"metrics": {"nmi": 0.5, "ari": None}}, "must hold the metrics nmi, ari, accuracy"),
        ([], "is not a result that can be read"),
    ):
        write_json(result, content)
        with pytest.raises(RunError, match=sentence):
            results.page(tmp_path)
    result.write_text("{")
    assert results.main([str(tmp_path), str(tmp_path / "page.md")]) == 1
    assert (
        capsys.readouterr().err == f"error: The file {result} is not a result that can be read.\n"
    )
    assert not (tmp_path / "page.md").exists()
    result.unlink()
    assert results.main([str(tmp_path), str(tmp_path / "none" / "page.md")]) == 1
    assert "page.md was not written, because of the error" in capsys.readouterr().err
    # A page of nothing but what was not run would be worse than none.
    assert results.main([str(tmp_path / "none"), str(tmp_path / "page.md")]) == 1
    assert f"The folder of results {tmp_path / 'none'} is not there." in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()
