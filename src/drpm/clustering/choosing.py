"""Choosing the number of clusters without labels."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, silhouette_score
from torch import Tensor

from drpm.clustering.config import ClusteringJob
from drpm.clustering.fitted import FittedClustering
from drpm.clustering.pipeline import fit_clusterings, list_starts
from drpm.training.devices import Devices
from drpm.training.loop import ProgressFactory

CANDIDATES: Final = "candidates"
FIGURES: Final = {"elbo": "held-out ELBO", "stability": "stability", "silhouette": "silhouette"}

_HELD_OUT: Final = 0.2  # of the rows
_STARTS: Final = 2  # at least, of every candidate
_POINTS: Final = 2000  # whose silhouette is computed, in quadratic time
_EQUAL: Final = 0.05  # adjusted Rand indices that differ by less are equally stable


def choose_clusters(
    rows: Tensor,
    shape: torch.Size,
    job: ClusteringJob,
    folder: Path,
    *,
    progress: ProgressFactory,
    devices: Devices,
) -> dict[str, Any]:
    """Fit all candidates of a job to four fifths of the rows, and choose one as in :func:`decide`.

    Each is fitted from two starts, or as many as the job has; interrupted fits are resumed.
    """
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(job.seed))
    held_out, fitted = rows[order].tensor_split([max(1, int(_HELD_OUT * len(rows)))])
    clusters, bounds, figures = [*job.candidate_range], [], []
    for count in clusters:
        models = fit_clusterings(
            fitted,
            shape,
            replace(job.clustering, clusters=count),
            list_starts(folder / CANDIDATES / str(count), job.seed, max(_STARTS, job.starts)),
            progress=lambda stage, count=count: progress(f"{count} clusters, {stage}"),  # type: ignore[misc]
            devices=devices,
        )
        elbos = torch.stack([model.lower_bounds(held_out) for model in models])
        bounds.append(elbos.double().mean(0).cpu().numpy())
        labels = [model.predict(rows).cpu() for model in models]
        # Starts that leave a cluster empty agree on fewer clusters.
        is_full = all(len(each.unique()) == count for each in labels)
        pairs = [is_full * adjusted_rand_score(*pair) for pair in combinations(labels, 2)]
        widths = [_silhouette(model, rows, x) for model, x in zip(models, labels, strict=True)]
        figures.append((np.mean(pairs), np.mean(widths)))
    stability, silhouette = np.array(figures).T
    return decide(clusters, np.stack(bounds), stability, silhouette)


def _silhouette(model: FittedClustering, rows: Tensor, labels: Tensor) -> float:
    """The mean silhouette of the codes; that of a single cluster is the lowest possible."""
    codes, labels = model.embed(rows[:_POINTS]).cpu(), labels[:_POINTS]
    if not 1 < len(labels.unique()) < len(labels):
        return -1.0
    return float(silhouette_score(codes.numpy(), labels.numpy()))


def decide(
    clusters: Sequence[int],
    bounds: NDArray[Any],
    stability: NDArray[Any],
    silhouette: NDArray[Any],
) -> dict[str, Any]:
    """Choose the median of what three figures take.

    The ELBO takes the fewest clusters whose mean is within a standard error of the best, by
    differences of the same rows; the stability the most clusters that are as stable as any; the
    silhouette the highest.

    Args:
        clusters: The C candidates, in ascending order.
        bounds: The ELBO of n held-out rows, (C, n).
        stability: The mean adjusted Rand index between starts, (C,); 0 if a cluster is empty.
        silhouette: The mean silhouette of the codes, (C,).

    Returns:
        ``clusters``, the figures, ``votes`` (what each takes), ``taken`` (the choice), and a
        ``sentence`` that sums them up.
    """
    elbo = bounds.mean(1)
    gaps = bounds[elbo.argmax()] - bounds
    errors = gaps.std(1) / np.sqrt(bounds.shape[1])
    best = {
        "elbo": np.flatnonzero(gaps.mean(1) <= errors)[0],
        "stability": np.flatnonzero(stability >= stability.max() - _EQUAL)[-1],
        "silhouette": silhouette.argmax(),
    }
    votes = {name: clusters[place] for name, place in best.items()}
    taken = sorted(votes.values())[1]
    agree = sum(vote == taken for vote in votes.values())
    each = ", ".join(f"{FIGURES[name]} {vote}" for name, vote in votes.items())
    return {
        "clusters": list(clusters),
        "elbo": elbo.tolist(),
        "stability": stability.tolist(),
        "silhouette": silhouette.tolist(),
        "votes": votes,
        "taken": taken,
        "sentence": f"{agree} of 3 figures choose {taken} clusters: {each}.",
    }
