"""Folders of finished runs to report on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drpm.training.runs import open_run

CONFIG = 'seed = 3\n\n[data]\nname = "digits"\nfraction = 0.5\n'

RECORDS = [
    {"step": step, "epoch": step / 4, "loss": 2.0**-step, "kl": step * 1.0} for step in range(1, 9)
]


def finished_run(
    path: Path,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    *,
    records: Sequence[Mapping[str, Any]] = RECORDS,
    metrics: Mapping[str, Any] | None = None,
    **further: Any,
) -> Path:
    """A folder as a run leaves it, with further entries of the result."""
    run = open_run(path, CONFIG)
    with run.lock():
        for record in records:
            run.log(record)
        run.finish({"accuracy": 0.875} if metrics is None else metrics)
        run.write_atomic("result.json", json.dumps({**run.result(), **further}))
    if arrays is not None:
        np.savez(path / "arrays.npz", allow_pickle=False, **arrays)
    return path


def every_array(
    num_clusters: int, shape: tuple[int, ...], *, num_labels: int = 4, num_points: int = 60
) -> dict[str, NDArray[Any]]:
    """All arrays that a report knows."""
    generator = np.random.default_rng(0)
    clusters = generator.integers(num_clusters, size=num_points)
    labels = generator.integers(num_labels, size=num_points)
    confusion = np.zeros((num_labels, num_clusters), np.int64)
    np.add.at(confusion, (labels, clusters), 1)
    arrays = {
        "samples": generator.random((num_clusters, 3, *shape), dtype=np.float32),
        "partition_points": generator.random((num_points, *shape), dtype=np.float32),
        "partition_clusters": clusters,
        "latent": generator.normal(size=(num_points, 2)),
        "latent_clusters": clusters,
        "latent_labels": labels,
        "confusion": confusion,
        "label_names": np.asarray([f"label {index}" for index in range(num_labels)]),
        "sizes": np.bincount(clusters, minlength=num_clusters),
        "examples": generator.random((num_points, *shape), dtype=np.float32),
    }
    if len(shape) == 1:
        examples = arrays["examples"]
        arrays["column_names"] = np.asarray([f"column {index}" for index in range(shape[0])])
        arrays["column_means"] = generator.random((num_clusters, *shape))
        arrays["column_deviations"] = examples.std(0)
    return arrays


def write_labels(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The ``labels.csv`` of a run without a test split; returns the probabilities in it."""
    clusters = arrays["latent_clusters"]
    confidence = np.linspace(0.25, 1, len(clusters)).round(3)
    rows = zip(clusters, confidence, strict=True)
    lines = [f"train,{index},{cluster},{prob}" for index, (cluster, prob) in enumerate(rows)]
    text = "\n".join(["split,index,cluster,confidence", *lines, ""])
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    return confidence
