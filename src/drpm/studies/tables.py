"""Clusterings of tables with known classes: ours beside those of scikit-learn.

The study ``tables`` compares them at default settings, ``limits`` with clusters of equal size.
Inputs of k-means and of Gaussian mixtures have unit variance unless the method says otherwise; our
estimators scale columns themselves.
"""

import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

from drpm.training import config as configs
from drpm.training.runs import open_run

Array = NDArray[Any]

# How far the size of a cluster may be from that of equal clusters.
SLACK: Final = 2


def unequal_blobs(seed: int) -> tuple[Array, Array]:
    """Four round clusters of 400, 200, 80 and 20 rows with five columns."""
    X, y = datasets.make_blobs(
        [400, 200, 80, 20], 5, cluster_std=1.5, center_box=(-5, 5), random_state=seed
    )
    return X, y


def stretched_blobs(seed: int) -> tuple[Array, Array]:
    """Three clusters of 200 rows with two correlated columns."""
    centers = np.array([[-9.0, -6.0], [-5.0, 0.0], [2.0, 0.5]])
    X, y = datasets.make_blobs(600, centers=centers, random_state=seed)
    return X @ np.array([[0.6, -0.6], [-0.4, 0.8]]), y


def bundled(load: Callable[..., tuple[Array, Array]], seed: int) -> tuple[Array, Array]:
    """A table that comes with scikit-learn, the same for every seed."""
    return load(return_X_y=True)


DATA: Final[Mapping[str, Callable[[int], tuple[Array, Array]]]] = {
    "iris": partial(bundled, datasets.load_iris),
    "wine": partial(bundled, datasets.load_wine),
    "breast-cancer": partial(bundled, datasets.load_breast_cancer),
    "digits": partial(bundled, datasets.load_digits),
    "unequal-blobs": unequal_blobs,
    "stretched-blobs": stretched_blobs,
}


@dataclass(frozen=True)
class Method:
    """A clustering to compare.

    Args:
        estimator: The class, as ``package.module:name``.
        options: Parameters other than the number of clusters and the seed.
        is_raw: Whether it takes the table as it is, instead of standardized columns.
    """

    estimator: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_raw: bool = False

    @property
    def package(self) -> str:
        return re.split("[.:]", self.estimator)[0]


# Of ten starts, the best is kept.
STARTS: Final = {"n_init": 10}
# Our estimators scale the columns themselves.
DRPM: Final = Method("drpm.clustering:DRPMClustering", is_raw=True)

METHODS: Final[Mapping[str, Method]] = {
    "k-means": Method("sklearn.cluster:KMeans", STARTS),
    "k-means-raw": Method("sklearn.cluster:KMeans", STARTS, is_raw=True),
    "gmm": Method("sklearn.mixture:GaussianMixture", STARTS),
    "latent-gmm": Method("drpm.clustering:LatentGMM", is_raw=True),
    "vade": Method("drpm.clustering:VaDE", is_raw=True),
    "drpm-vc": DRPM,
}
LIMITED: Final[Mapping[str, Method]] = {
    "k-means-constrained": Method("k_means_constrained:KMeansConstrained", STARTS),
    "drpm-vc": DRPM,
}


def run_study(
    folder: Path,
    data: str,
    seed: int,
    limits: bool = False,
    settings: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> None:
    """All methods on one table, as a run of a sweep; an interrupted one starts again.

    A method whose package is not installed is left out, with a warning. The metric ``seconds`` is
    the CPU time of a fit.

    Args:
        folder: The run's folder.
        data: The name of a table in ``DATA``.
        seed: The seed of all methods, and of tables that are drawn.
        limits: Whether clusters must have equal sizes up to ``SLACK``.
        settings: Parameters of our estimators; the defaults if there are none.
        device: The device of our estimators.
    """
    settings = dict(settings or {})
    given = {"data": data, "seed": seed, "limits": limits, "settings": settings}
    run = open_run(folder, configs.dumps(given), overwrite=True)
    with run.lock():
        X, y = DATA[data](seed)
        clusters, scaled = len(np.unique(y)), StandardScaler().fit_transform(X)
        sizes = {}
        if limits:
            sizes["size_min"] = len(X) // clusters - SLACK
            sizes["size_max"] = -(-len(X) // clusters) + SLACK
        metrics: dict[str, float] = {}
        packages = {}
        for name, method in (LIMITED if limits else METHODS).items():
            try:
                estimator = resolve_name(method.estimator)
            except ImportError:
                warnings.warn(
                    f"{name} is left out, because the package {method.package} is not installed; "
                    f"install it with: pip install {method.package}.",
                    stacklevel=2,
                )
                continue
            packages[method.package] = resolve_name(method.package).__version__
            options = {**method.options, **sizes, "random_state": seed}
            if method.package == "drpm":
                options |= {**settings, "device": device}
            before = time.process_time()
            labels = estimator(clusters, **options).fit_predict(X if method.is_raw else scaled)
            scores = {"seconds": time.process_time() - before, **score(scaled, y, labels, sizes)}
            metrics |= {f"{name} {metric}": value for metric, value in scores.items()}
        run.finish(metrics, device=device, facts={"packages": packages, "sizes": sizes})


def score(rows: Array, y: Array, labels: Array, limits: Mapping[str, int]) -> dict[str, float]:
    """Agreement with the classes, and with limits also the variance and whether they are met.

    Args:
        rows: The standardized table.
        y: The class of every row.
        labels: The cluster of every row.
        limits: ``size_min`` and ``size_max``; empty if there are none.

    Returns:
        ``accuracy``, ``nmi`` and ``ari``. With limits also ``within``, the fraction of the variance
        that is within clusters, and ``met``, which is 0 or 1.
    """
    found: dict[str, float] = resolve_name("drpm.clustering.fitted:clustering_scores")(y, labels)
    if limits:
        members = np.eye(len(np.unique(y)))[labels]
        sizes = members.sum(0)
        means = members.T @ rows / np.maximum(sizes, 1)[:, None]  # a cluster may be empty
        found["within"] = float(((rows - means[labels]) ** 2).sum() / (rows**2).sum())
        met = (sizes >= limits["size_min"]).all() and (sizes <= limits["size_max"]).all()
        found["met"] = float(met)
    return found
