"""Clusterings of tables with known classes: ours compared with scikit-learn's.

Columns have unit variance, except for ``k-means-raw`` and for our estimators, which scale them.
"""

import re
import time
import warnings
from collections.abc import Callable, Mapping
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


def load_table(name: str, seed: int) -> tuple[Array, Array]:
    """Rows and their classes: drawn with the seed, or a table that comes with scikit-learn."""
    if name in ("balanced-blobs", "unequal-blobs"):
        sizes = [100] * 4 if name == "balanced-blobs" else [400, 200, 80, 20]
        X, y = datasets.make_blobs(sizes, 5, cluster_std=1.5, center_box=(-5, 5), random_state=seed)
        return X, y
    if name == "stretched-blobs":
        centers = np.array([[-9.0, -6.0], [-5.0, 0.0], [2.0, 0.5]])
        X, y = datasets.make_blobs(600, centers=centers, random_state=seed)
        return X @ np.array([[0.6, -0.6], [-0.4, 0.8]]), y
    load: Callable[..., tuple[Array, Array]] = getattr(datasets, f"load_{name.replace('-', '_')}")
    return load(return_X_y=True)


# The class of each method, as package.module:name.
METHODS: Final = {
    "k-means": "sklearn.cluster:KMeans",
    "k-means-raw": "sklearn.cluster:KMeans",
    "gmm": "sklearn.mixture:GaussianMixture",
    "latent-gmm": "drpm.clustering:LatentGMM",
    "vade": "drpm.clustering:VaDE",
    "drpm-vc": "drpm.clustering:DRPMClustering",
}
LIMITED: Final = {
    "k-means-constrained": "k_means_constrained:KMeansConstrained",
    "drpm-vc": METHODS["drpm-vc"],
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

    A method whose package is not installed is left out. The metric ``seconds`` is CPU time. With
    ``limits``, sizes are equal up to ``SLACK``; ``settings`` and ``device`` are of our estimators.
    """
    settings = dict(settings or {})
    given = {"data": data, "seed": seed, "limits": limits, "settings": settings}
    run = open_run(folder, configs.dumps(given), overwrite=True)
    with run.lock():
        X, y = load_table(data, seed)
        clusters, scaled = len(np.unique(y)), StandardScaler().fit_transform(X)
        least, most = len(X) // clusters - SLACK, -(-len(X) // clusters) + SLACK
        sizes = {"size_min": least, "size_max": most} if limits else {}
        metrics, packages = dict[str, float](), {}
        for name, place in (LIMITED if limits else METHODS).items():
            package = re.split("[.:]", place)[0]
            try:
                estimator = resolve_name(place)
            except ImportError:
                warnings.warn(
                    f"{name} is left out, because the package {package} is not installed; "
                    f"install it with: pip install {package}.",
                    stacklevel=2,
                )
                continue
            packages[package] = resolve_name(package).__version__
            # Of ten starts, the best is kept.
            ours = {**settings, "device": device}
            options = ours if package == "drpm" else {"n_init": 10}
            rows = X if package == "drpm" or name == "k-means-raw" else scaled
            before = time.process_time()
            labels = estimator(clusters, random_state=seed, **options, **sizes).fit_predict(rows)
            scores = {"seconds": time.process_time() - before, **score(scaled, y, labels, sizes)}
            metrics |= {f"{name} {metric}": value for metric, value in scores.items()}
        run.finish(metrics, device=device, facts={"packages": packages, "sizes": sizes})


def score(rows: Array, y: Array, labels: Array, limits: Mapping[str, int]) -> dict[str, float]:
    """Agreement with the classes, and whether limits are met and what varies within clusters."""
    found: dict[str, float] = resolve_name("drpm.clustering.fitted:clustering_scores")(y, labels)
    if limits:
        members = np.eye(len(np.unique(y)))[labels]
        sizes = members.sum(0)
        means = members.T @ rows / np.maximum(sizes, 1)[:, None]  # a cluster may be empty
        found["within"] = float(((rows - means[labels]) ** 2).sum() / (rows**2).sum())
        found["met"] = float(limits["size_min"] <= sizes.min() <= sizes.max() <= limits["size_max"])
    return found
