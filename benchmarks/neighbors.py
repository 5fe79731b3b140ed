"""Neighboring packages: ``python -m benchmarks.neighbors FILE`` (pip install pot clustpy)."""

import json
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from unittest.mock import MagicMock

import torch
from sklearn.datasets import load_digits
from torch.utils.benchmark import Timer

import drpm
from benchmarks.laws import describe_environment
from drpm.clustering.fitted import clustering_scores

SETUP = """import drpm, ot, torch
x, factor = torch.randn(10, 10_000).requires_grad_(), torch.randn(10, 10_000)
weights, rows, columns = torch.zeros(10), torch.ones(10) / 10, torch.ones(10_000) / 10_000"""
SAMPLES = {
    "POT Sinkhorn": "ot.sinkhorn(rows, columns, -x, 1.0)",
    "by order": "drpm.RelaxedRandomPartition(1.0, x[0], weights).rsample()",
    "by affinity": "drpm.RelaxedAffinityPartition(1.0, x, weights).rsample()",
}
# ClustPy has torchvision for its data sets and residual networks only.
ABSENT = ("", ".datasets", ".transforms", ".models", ".models._api", ".models.resnet", ".ops")
METHODS = "clustpy.deep VaDE", "drpm.clustering VaDE", "drpm.clustering DRPMClustering"


def top_k_error(draws: int = 400_000) -> float:
    """The largest difference of frequencies in Gumbel top-k (4 of 12) from exact marginals."""
    scores, sizes = torch.randn(12).double(), torch.tensor([4, 8])
    noise = -torch.empty(draws, 12).double().exponential_().log()
    shares = (scores + noise).topk(4).indices.flatten().bincount() / draws
    law = drpm.RandomPartition(scores, torch.zeros(2).double(), minimum=sizes, maximum=sizes)
    return (shares - law.marginals()[0]).abs().max().item()


def cluster(method: str, seed: int) -> dict[str, object]:
    """Accuracy and CPU seconds on digits at default settings; ClustPy wants values in [0, 1]."""
    module, name = method.split()
    (X, y), make = load_digits(return_X_y=True), getattr(import_module(module), name)
    rows, start = X / 16 if module == "clustpy.deep" else X, time.process_time()
    labels = make(10, random_state=seed).fit(rows.astype("float32")).labels_
    seconds, accuracy = time.process_time() - start, clustering_scores(y, labels)["accuracy"]
    return {"method": method, "seed": seed, "accuracy": accuracy, "seconds": seconds}


if __name__ == "__main__":
    sys.modules |= {f"torchvision{part}": MagicMock() for part in ABSENT}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    document = {"environment": describe_environment("cpu"), "top_k_error": top_k_error()}
    document["packages"] = {name: version(name) for name in ("pot", "clustpy", "scikit-learn")}
    for name, code in SAMPLES.items():
        timer = Timer(f"({code} * factor).sum().backward()", SETUP, timer=time.process_time)
        document[name] = timer.blocked_autorange(min_run_time=5).median  # CPU seconds
    document["digits"] = [cluster(method, seed) for method in METHODS for seed in range(3)]
    Path(sys.argv[1]).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
