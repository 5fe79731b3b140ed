"""Fill the tables of the results document and draw its figures.

    python -m drpm.cli.results_page results docs/results.md README.md

The text of the documents is written by hand; see :mod:`drpm.studies.results`. Figures are written
to the folder ``figures`` next to the first document.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import typer
from matplotlib.figure import Figure

from drpm.cli.common import exit_on_error
from drpm.clustering import results as clustering
from drpm.factors import results as factors
from drpm.multitask import results as multitask
from drpm.report.plots import png
from drpm.studies import bounds
from drpm.studies.results import fill_tables, markdown_table, summarize_metric
from drpm.supervised import results as supervised
from drpm.training.checkpoint import write_atomic


def step_times(results: Path) -> str:
    """A table of training steps, as ``python -m benchmarks --training`` measured them."""
    files = sorted((results / "benchmarks").glob("steps*-h200.json"), reverse=True)
    lines = []
    for step in (step for path in files for step in json.loads(path.read_bytes())["steps"]):
        alone, stacked = 1e6 * step["alone"], 1e6 * (step["stacked"] or 0)
        both = [f"{stacked:,.0f}", f"{stacked / alone:.2f}"] if stacked else ["-"] * 2
        lines.append([step["model"], str(step["batch_size"]), f"{alone:,.0f}", *both])
    return markdown_table(["model", "batch", "one run, µs", "five stacked, µs", "ratio"], *lines)


# Rows of the table in the README: (data, measure, method) -> (study, metric).
_SUMMARY: Final = {
    ("MNIST", "accuracy of clusters", "DRPM-VC"): ("table-1/mnist/drpm-vc", "accuracy"),
    ("Fashion-MNIST", "accuracy of clusters", "DRPM-VC"): (
        "table-1/fashion-mnist/drpm-vc",
        "accuracy",
    ),
    ("MultiMNIST, half noise", "accuracy", "DRPM-MTL"): ("noise/drpm/noise-0.5", "accuracy"),
    ("MultiMNIST, half noise", "accuracy", "ULS"): ("noise/uls/noise-0.5", "accuracy"),
    ("MNIST", "F1 of partitions", "supervised"): ("supervised/mnist/drpm", "f1"),
    ("Fashion-MNIST", "F1 of partitions", "supervised"): ("supervised/fashion-mnist/drpm", "f1"),
}


def summary(results: Path) -> str:
    """Main results compared with the paper."""
    published = {**clustering.PUBLISHED, **supervised.PUBLISHED}
    lines = []
    for names, (study, metric) in _SUMMARY.items():
        found = summarize_metric(results / study, metric)
        paper = published.get(study, {}).get(metric, "plotted only")
        lines.append([*names, found.text(), paper])
    return markdown_table(["data", "measure", "method", "here", "paper"], *lines)


_MODULES: Final = (bounds, clustering, factors, multitask, supervised)
TABLES: Final[Mapping[str, Callable[[Path], str]]] = {
    **{name: table for module in _MODULES for name, table in module.TABLES.items()},
    "step-times": step_times,
}
FIGURES: Final[Mapping[str, Callable[[Path], Figure]]] = {
    name: draw for module in _MODULES for name, draw in module.FIGURES.items()
}


def update(results: Path, page: Path, readme: Path) -> None:
    """Update the tables of both documents and the figures of the first from a folder of results."""
    with exit_on_error():
        for path, tables in ((page, TABLES), (readme, {"summary": summary})):
            text = path.read_text(encoding="utf-8")
            write_atomic(path, fill_tables(text, tables, results).encode())
        folder = page.parent / "figures"
        folder.mkdir(exist_ok=True)
        for name, draw in FIGURES.items():
            write_atomic(folder / f"{name}.png", png(draw(results)))


if __name__ == "__main__":
    typer.run(update)
