"""What the page of results says of shared factors: tables, and how many were found."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from drpm.factors import published, sweeps
from drpm.report.bars import draw_bars
from drpm.report.result_page import ResultFigure, Section
from drpm.report.result_tables import Place, Row, Table, table_text
from drpm.report.style import png
from drpm.training.runs import RESULT

INTRODUCTION: Final = """\
## Shared factors

The paper's images are those of mpi3d; ours are those of `arm`, which has the same factors, so that
figures cannot be compared one by one, but what comes first can.
"""

METHODS: Final = {"label": "Label-VAE", "ada": "Ada-VAE", "hg": "HG-VAE", "drpm": "DRPM-VAE"}
_SWEEP: Final = "table-2"


def tables() -> list[Table]:
    """The tables of the page, whatever there is to fill them with."""
    groups = [f"n_s = {shared}" for shared in sweeps.SHARED]
    places = {
        method: tuple(Place(_SWEEP, f"shared-{shared}", method) for shared in sweeps.SHARED)
        for method in METHODS
    }
    guests = [Row(name, places[method], is_guest=True) for method, name in METHODS.items()]
    return [
        Table(
            "Telling factors from the representation",
            "Table 2 of the paper (`table-2`): adjusted balanced accuracy of linear classifiers, "
            "from the shared part of the representation to the shared factors (S), and from the "
            "independent part to the others (I).",
            "method",
            groups,
            [
                Row(
                    name,
                    places[method],
                    tuple(published.MAIN[method][shared] for shared in sweeps.SHARED),
                )
                for method, name in METHODS.items()
            ],
            {"shared_accuracy": "S", "independent_accuracy": "I"},
        ),
        Table(
            "How many factors are shared",
            "The number of dimensions taken as shared, on average, and its mean squared error. "
            "The paper draws the errors and prints none of them.",
            "method",
            groups,
            guests,
            {"mean_count": "number", "count_error": "error"},
        ),
        Table(
            "Disentanglement",
            "The usual scores of whole representations, which the paper does not have: DCI "
            "disentanglement and the mutual information gap (MIG).",
            "method",
            groups,
            guests,
            {"disentanglement": "DCI", "mutual_information_gap": "MIG"},
        ),
    ]


def factors_sections(results: Path) -> Iterator[Section]:
    """The part of the page on shared factors.

    Arguments:
        results: The folder of finished studies.
    """
    yield Section(INTRODUCTION)
    for table in tables():
        figures = tuple(_error_figure(results)) if "count_error" in table.metrics else ()
        yield Section(table_text(table, results), figures)


def _error_figure(results: Path) -> Iterator[ResultFigure]:
    """The paper's figure, as soon as all that belongs in it was run."""
    errors = np.array(
        [
            [_mean_error(results / _SWEEP / f"shared-{shared}" / method) for method in METHODS]
            for shared in sweeps.SHARED
        ]
    )
    if np.isfinite(errors).all():
        caption = "error of the number of shared factors, by how many there are"
        groups = [f"n_s = {shared}" for shared in sweeps.SHARED]
        draw = partial(_draw, errors, groups, list(METHODS.values()))
        yield ResultFigure("table-2-count-error.png", "The paper's figure", caption, draw)


def _mean_error(study: Path) -> float:
    found = [
        json.loads(path.read_bytes())["metrics"]["count_error"]
        for path in study.glob(f"seed-*/{RESULT}")
    ]
    return float(np.mean(found)) if found and None not in found else float("nan")


def _draw(errors: np.ndarray, groups: list[str], names: list[str]) -> bytes:
    title = "Mean squared error of the number of shared factors"
    return png(draw_bars(errors, groups, names, title))
