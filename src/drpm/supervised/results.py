"""Supervised partitions in the results document: tables, published numbers and figures."""

from functools import partial
from pathlib import Path
from typing import Final

from drpm.experiments import summarize
from drpm.report.plots import draw_stored
from drpm.studies.results import Table, markdown_table, metric_columns, parse_published
from drpm.training.runs import RunFolder

DATA: Final = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist"}

# In a sentence of the appendix.
PUBLISHED: Final = parse_published(
    """
    supervised/mnist/drpm          0.9643 0.0002
    supervised/fashion-mnist/drpm  0.8271 0.0003
    """,
    "f1",
)


def _size_weights(results: Path) -> str:
    """F1 scores on the validation part by the weight of the size term."""
    lines = []
    for name, data in DATA.items():
        result = RunFolder(results / f"supervised/{data}/drpm/seed-0").result()
        scores: dict[float, list[float]] = {}
        for score in result["selection"]["scores"]:
            scores.setdefault(score["size_weight"], []).append(score["f1"])
        for weight, values in sorted(scores.items()):
            text = summarize(values).text(4)
            is_chosen = weight == result["selection"]["size_weight"]
            lines.append([name, f"{weight:g}", f"**{text}**" if is_chosen else text])
    return markdown_table(["data", "weight", "validation F1"], *lines)


TABLES: Final = {
    "supervised": Table(
        ("data",),
        DATA,
        metric_columns("supervised/{row}/drpm", {"f1": "F1", "size_error": "size error"}),
        published=PUBLISHED,
        digits=4,
        is_bold=False,
        main=("F1",),
    ),
    "supervised-weights": _size_weights,
}
FIGURES: Final = {
    f"supervised-{data}": partial(draw_stored, f"supervised/{data}/drpm/seed-0", "subsets")
    for data in DATA.values()
}
