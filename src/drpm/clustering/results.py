"""Clustering in the results document: tables, published numbers and figures."""

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from drpm.report.plots import Series, draw_stored, series_panels
from drpm.studies import sweeps
from drpm.studies.results import Table, metric_columns, parse_published, summarize_metrics

DATA: Final = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist"}
METRICS: Final = {"nmi": "NMI", "ari": "ARI", "accuracy": "ACC"}
_LIMITED: Final = {"k-means-constrained": "k-means-constrained", "DRPM-VC": "drpm-vc"}
METHODS: Final = {"Latent GMM": "latent-gmm", "VaDE": "vade", "DRPM-VC": "drpm-vc"}

# "tab:cluster_scores", "tab:abblation_clustering_freeze_enc",
# "tab:abblation_clustering_rec_pretraining" and "tab:ablation_stl10". The paper plots its scores
# for other numbers of clusters without printing them.
PUBLISHED: Final = parse_published(
    """
    table-1/mnist/gmm                              0.32 0.01  0.22 0.02  0.41 0.01
    table-1/mnist/latent-gmm                       0.86 0.02  0.83 0.06  0.88 0.07
    table-1/mnist/vade                             0.84 0.01  0.76 0.05  0.82 0.04
    table-1/mnist/drpm-vc                          0.89 0.01  0.88 0.03  0.94 0.02
    table-1/mnist/vade-frozen                      0.90 0.02  0.88 0.06  0.92 0.06
    table-1/fashion-mnist/gmm                      0.49 0.01  0.33 0.00  0.44 0.01
    table-1/fashion-mnist/latent-gmm               0.60 0.00  0.47 0.01  0.62 0.01
    table-1/fashion-mnist/vade                     0.56 0.02  0.40 0.04  0.56 0.03
    table-1/fashion-mnist/drpm-vc                  0.64 0.00  0.51 0.01  0.65 0.00
    table-1/fashion-mnist/vade-frozen              0.64 0.01  0.47 0.01  0.59 0.03
    table-reconstruction/mnist/latent-gmm          0.75 0.00  0.66 0.01  0.75 0.01
    table-reconstruction/mnist/vade                0.77 0.02  0.62 0.04  0.69 0.04
    table-reconstruction/mnist/drpm-vc             0.74 0.00  0.67 0.01  0.75 0.02
    table-reconstruction/fashion-mnist/latent-gmm  0.56 0.02  0.41 0.03  0.57 0.02
    table-reconstruction/fashion-mnist/vade        0.53 0.07  0.35 0.08  0.47 0.09
    table-reconstruction/fashion-mnist/drpm-vc     0.59 0.01  0.47 0.02  0.62 0.01
    stl10/stl10/vade                               0.80 0.03  0.76 0.04  0.88 0.02
    stl10/stl10/drpm-vc                            0.83 0.01  0.80 0.02  0.91 0.00
    """,
    *METRICS,
)


def _of_tables(sweep: str, rows: dict[str, str], metrics: dict[str, str], *main: str) -> Table:
    columns = {f"{{row}} {metric}": heading for metric, heading in metrics.items()}
    return Table(
        ("data", "method"),
        rows,
        metric_columns(f"{sweep}/{{group}}", columns),
        {name.replace("-", " "): name for name in sweeps.TABLES},
        lowest={"within", "seconds"},
        has_runs=False,
        main=main,
    )


def _by_data(sweep: str, rows: dict[str, str]) -> Table:
    columns = metric_columns(f"{sweep}/{{group}}/{{row}}", METRICS)
    return Table(("data", "method"), rows, columns, DATA, PUBLISHED, main=("ACC",))


TABLES: Final = {
    "table-1": _by_data(
        "table-1", {"GMM": "gmm", **METHODS, "Contrastive head": "contrastive-head"}
    ),
    "vade": _by_data(
        "table-1",
        {
            "VaDE": "vade",
            "VaDE, frozen encoder": "vade-frozen",
            "VaDE, small variances": "vade-reset",
        },
    ),
    "table-reconstruction": _by_data("table-reconstruction", METHODS),
    "objectives": _by_data("table-1", {"bounds": "drpm-vc", "exact": "drpm-vc-exact"}),
    "partitions": Table(
        ("data", "partition"),
        {"order": "drpm-vc-order", "affinity": "drpm-vc-affinity"},
        metric_columns("partitions/{group}/{row}", {**METRICS, "lower_bound": "ELBO"}),
        DATA,
        main=("ACC",),
    ),
    "starts": Table(
        ("data",),
        DATA,
        metric_columns("starts/{row}/contrastive-head", METRICS),
        is_bold=False,
        main=("ACC",),
    ),
    "stl10": Table(
        ("method",),
        {"GMM": "gmm", **METHODS},
        metric_columns("stl10/stl10/{row}", METRICS),
        published=PUBLISHED,
    ),
    "clusters": Table(
        ("clusters", "method"),
        METHODS,
        metric_columns("clusters/k-{group}/{row}", METRICS),
        {str(count): str(count) for count in sweeps.CLUSTERS},
        main=("ACC",),
    ),
    "tables": _of_tables(
        "tables",
        {
            "k-means": "k-means",
            "k-means, raw": "k-means-raw",
            "Gaussian mixture": "gmm",
            **METHODS,
        },
        {**METRICS, "seconds": "seconds"},
        "ACC",
    ),
    "limits": _of_tables(
        "limits",
        _LIMITED,
        {"within": "within", **METRICS, "met": "limits met", "seconds": "seconds"},
        "within",
    ),
    "limits-classes": _of_tables("limits", _LIMITED, {"accuracy": "ACC"}),
}


def _draw_clusters(results: Path) -> Figure:
    """Scores against the number of clusters."""
    panels: dict[str, list[Series]] = {heading: [] for heading in METRICS.values()}
    for name, method in METHODS.items():
        for metric, heading in METRICS.items():
            cells = [(f"clusters/k-{count}/{method}", metric) for count in sweeps.CLUSTERS]
            scores = summarize_metrics(results, cells)
            panels[heading].append(Series(name, np.array(sweeps.CLUSTERS), *scores))
    return series_panels(panels, "clusters", "Scores against the number of clusters", height=2.0)


_DRPM: Final = [f"table-1/{data}/drpm-vc" for data in DATA.values()]
_SAMPLES: Final = [
    *_DRPM,
    *(f"{study}-exact" for study in _DRPM),
    *(f"table-reconstruction/{data}/drpm-vc" for data in DATA.values()),
    "clusters/k-20/drpm-vc",
]
FIGURES: Final = {
    "clusters": _draw_clusters,
    **{
        study.replace("/", "-"): partial(draw_stored, f"{study}/seed-0", "samples", images=12)
        for study in _SAMPLES
    },
    **{
        f"{study}-partition".replace("/", "-"): partial(draw_stored, f"{study}/seed-0", "partition")
        for study in _DRPM
    },
}
