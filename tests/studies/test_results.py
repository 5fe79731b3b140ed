"""Tables of results: means over seeds, published numbers, and the document they stand in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drpm.cli.results_page import step_times
from drpm.studies.results import (
    Table,
    fill_tables,
    metric_columns,
    parse_published,
    summarize_metrics,
)
from drpm.training.errors import RunError

TABLE = Table(
    ("data", "method"),
    {"GMM": "gmm", "DRPM": "drpm", "never run": "other"},
    metric_columns("main/{group}/{row}", {"nmi": "NMI", "accuracy": "ACC"}),
    {"MNIST": "mnist", "Digits": "digits"},
    parse_published("main/mnist/gmm  0.32 0.01  - -", "nmi", "accuracy"),
)


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_study(folder: Path, variants: Mapping[str, Sequence[float]], hours: float = 1.0) -> None:
    """Finished studies, one for each variant, with a run for each accuracy."""
    for name, accuracies in variants.items():
        facts = {"wall_time": 3600 * hours}
        write_json(folder / name / "result.json", facts)
        for seed, accuracy in enumerate(accuracies):
            run, metrics = folder / name / f"seed-{seed}", {"nmi": accuracy - 0.1}
            write_json(run / "result.json", {"metrics": {**metrics, "accuracy": accuracy}, **facts})
            (run / "config.toml").write_text(f"seed = {seed}\n", encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells, in which no line breaks between a mean and its deviation."""
    assert " ±" not in text
    lines = text.replace("\xa0", " ").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_means_beside_published_numbers(tmp_path: Path) -> None:
    write_study(tmp_path / "main" / "mnist", {"gmm": [0.4, 0.5, 0.6], "drpm": [0.9]}, 1.5)
    heading, _, *lines = rows(TABLE(tmp_path))
    assert heading == ["data", "method", "NMI", "NMI, paper", "ACC", "runs", "time", "revision"]
    # The deviation of three values at distances of 0.1 is 0.1 with n - 1 in the denominator.
    gmm = ["MNIST", "GMM", "0.400 ± 0.100", "0.32 ± 0.01", "0.500 ± 0.100", "3", "1:30:00", "none"]
    drpm = ["", "DRPM", "**0.800**", "-", "**0.900**", "1", "1:30:00", "none"]
    assert lines == [gmm, drpm]


def test_studies_that_were_not_run(tmp_path: Path) -> None:
    heading, _, *lines = rows(TABLE(tmp_path))
    assert heading == ["data", "method", "NMI, paper"]
    assert lines == [["MNIST", "GMM", "0.32 ± 0.01"]]


def test_equal_means_are_both_bold_and_a_missing_value_is_a_dash(tmp_path: Path) -> None:
    write_study(tmp_path / "main" / "digits", {"gmm": [0.70001], "drpm": [0.69999]})
    assert TABLE(tmp_path).count("**0.700**") == 2
    path = tmp_path / "main" / "digits" / "gmm" / "seed-0" / "result.json"
    write_json(path, {"metrics": {"nmi": None, "accuracy": 0.5}})
    assert rows(TABLE(tmp_path))[-2][2:4] == ["-", "-"]


@pytest.mark.parametrize(
    ("revision", "shown"),
    [("a" * 40, "aaaaaaa"), (f"{'a' * 40}-dirty", "aaaaaaa+"), (None, "none")],
)
def test_revisions(tmp_path: Path, revision: str | None, shown: str) -> None:
    facts = {"wall_time": 60, "git_revision": revision}
    path = tmp_path / "main" / "mnist" / "drpm" / "seed-0" / "result.json"
    write_json(path, {"metrics": {"nmi": 0.5, "accuracy": 0.5}, **facts})
    assert rows(TABLE(tmp_path))[-1][-3:] == ["1", "0:01:00", shown]


def test_metrics_of_every_row(tmp_path: Path) -> None:
    write_study(tmp_path / "main", {"drpm": [0.9, 0.7]})
    columns = {"DRPM": ("main/drpm", "{row}")}
    table = Table(("metric",), {"a": "nmi", "b": "accuracy"}, columns, has_runs=False, digits=1)
    assert rows(table(tmp_path))[2:] == [["a", "0.7 ± 0.1"], ["b", "**0.8 ± 0.1**"]]
    lowest = replace(table, lowest=["DRPM"])
    assert rows(lowest(tmp_path))[2:] == [["a", "**0.7 ± 0.1**"], ["b", "0.8 ± 0.1"]]


def test_arrays_for_figures(tmp_path: Path) -> None:
    write_study(tmp_path, {"drpm": [0.4, 0.6], "one": [0.5]})
    cells = [("drpm", "accuracy"), ("one", "accuracy"), ("none", "accuracy")]
    means, deviations = summarize_metrics(tmp_path, cells)
    np.testing.assert_allclose(means, [0.5, 0.5, np.nan])
    np.testing.assert_allclose(deviations, [0.02**0.5, 0, 0])


def test_a_document_is_filled_in(tmp_path: Path) -> None:
    text = "One.\n\n<!-- table: a -->\nold\n<!-- end -->\n\n<!-- table: b -->\n<!-- end -->\nTwo.\n"
    filled = fill_tables(text, {"a": lambda _: "new\n", "b": lambda _: "| x |\n"}, tmp_path)
    assert filled == text.replace("old", "new").replace("b -->\n", "b -->\n| x |\n")
    for tables in ({"a"}, {"a", "b", "c"}):
        with pytest.raises(RunError, match=r"each declared table once, but differs in [bc]"):
            fill_tables(text, dict.fromkeys(tables, str), tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_result_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "main" / "mnist" / "gmm" / "seed-0" / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=r"result\.json is not a readable result\.$"):
        TABLE(tmp_path)


def test_step_times(tmp_path: Path) -> None:
    steps = [
        {"model": "VAE", "batch_size": 64, "alone": 2e-4, "stacked": 3e-4},
        {"model": "LeNet", "batch_size": 256, "alone": 1e-4, "stacked": None},
    ]
    for name, step in zip(("steps-h200", "steps-affinity-h200"), steps, strict=True):
        write_json(tmp_path / "benchmarks" / f"{name}.json", {"steps": [step]})
    found = rows(step_times(tmp_path))[2:]
    assert found == [["VAE", "64", "200", "300", "1.50"], ["LeNet", "256", "100", "-", "-"]]
