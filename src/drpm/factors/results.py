"""Generative factors in the results document: tables, published numbers and figures."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from drpm.report.plots import Series, draw_stored, series_panels
from drpm.studies import sweeps
from drpm.studies.results import Table, metric_columns, parse_published, summarize_metrics

METHODS: Final = {
    "Label-VAE": "label",
    "Ada-VAE": "ada",
    "HG-VAE": "hg",
    "DRPM-VAE": "drpm",
    "exact DRPM-VAE": "drpm-exact",
}
_NAMES: Final = {key: name for name, key in METHODS.items()}
_SHARED: Final = {str(shared): str(shared) for shared in sweeps.SHARED}
_EVIDENCE: Final = {"pair_evidence": "evidence", "latent_divergence": "KL of the codes"}

# "tab:exp_ws_downstream_task", on mpi3d. With no factor shared there is none to predict.
PUBLISHED: Final = parse_published(
    """
    table-2/shared-0/label  -    -     0.14 0.01
    table-2/shared-0/ada    -    -     0.12 0.01
    table-2/shared-0/hg     -    -     0.18 0.01
    table-2/shared-0/drpm   -    -     0.26 0.02
    table-2/shared-1/label  0.19 0.03  0.16 0.01
    table-2/shared-1/ada    0.19 0.01  0.15 0.01
    table-2/shared-1/hg     0.22 0.05  0.19 0.01
    table-2/shared-1/drpm   0.39 0.07  0.20 0.01
    table-2/shared-3/label  0.10 0.00  0.23 0.01
    table-2/shared-3/ada    0.10 0.03  0.22 0.02
    table-2/shared-3/hg     0.08 0.02  0.28 0.01
    table-2/shared-3/drpm   0.15 0.01  0.29 0.02
    table-2/shared-5/label  0.34 0.00  0.00 0.00
    table-2/shared-5/ada    0.33 0.03  0.00 0.00
    table-2/shared-5/hg     0.28 0.01  0.01 0.00
    table-2/shared-5/drpm   0.42 0.03  0.01 0.00
    """,
    "shared_accuracy",
    "independent_accuracy",
)


def _by_shared(metrics: dict[str, str], **options: Any) -> Table:
    columns = metric_columns("table-2/shared-{group}/{row}", metrics)
    return Table(("shared", "method"), METHODS, columns, _SHARED, PUBLISHED, **options)


def _by_value(head: str, study: str, values: tuple[float, ...], methods: list[str]) -> Table:
    return Table(
        ("method", head),
        {f"{value:g}": f"{value:g}" for value in values},
        metric_columns(study, _EVIDENCE),
        {_NAMES[method]: method for method in methods},
        digits=1,
        main=("evidence",),
    )


TABLES: Final = {
    "table-2": _by_shared({"shared_accuracy": "S", "independent_accuracy": "I"}, main=("S",)),
    "table-2-independent": _by_shared({"independent_accuracy": "I"}, has_runs=False),
    "table-2-counts": _by_shared(
        {
            "mean_count": "shared dimensions",
            "count_error": "squared error",
            "used_dimensions": "in use",
            "shared_used": "in use and shared",
        },
        digits=2,
        is_bold=False,
        has_runs=False,
        main=("shared dimensions", "in use and shared"),
    ),
    "factor-rates": _by_value(
        "learning rate", "factor-rates/{group}/rate-{row}", sweeps.RATES, [*sweeps.RATES_METHODS]
    ),
    "factor-weights": _by_value(
        "weight", "factor-weights/{group}/weight-{row}", sweeps.WEIGHTS, [*sweeps.WEIGHED]
    ),
    "factor-gammas": _by_value(
        "gamma", "factor-gammas/{group}/gamma-{row}", sweeps.WEIGHTS, ["drpm"]
    ),
}


def _draw_count_errors(results: Path) -> Figure:
    """The error of the number of shared factors, on a scale that is linear up to 1."""
    places = np.arange(len(sweeps.SHARED), dtype=np.float64)
    series = []
    for name, method in METHODS.items():
        cells = [(f"table-2/shared-{shared}/{method}", "count_error") for shared in sweeps.SHARED]
        series.append(Series(name, places, *summarize_metrics(results, cells)))
    title, ylabel = "Error of the number of shared factors", "mean squared error, log from 1"
    figure = series_panels({"": series}, "shared factors", title, ylabel, height=3.2, is_line=False)
    axes = figure.axes[0]
    axes.set_yscale("symlog", linthresh=1)
    axes.yaxis.set_minor_locator(NullLocator())
    ticks = [0, 0.5, 1, 2, 5, 10, 20, 50]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(0, 110)
    axes.set_xticks(places, [str(shared) for shared in sweeps.SHARED])
    return figure


FIGURES: Final = {
    "table-2-count-error": _draw_count_errors,
    "table-2-pairs": partial(draw_stored, "table-2/shared-5/drpm/seed-0", "pairs"),
    "table-2-traversals": partial(draw_stored, "table-2/shared-5/drpm/seed-0", "traversals"),
}
