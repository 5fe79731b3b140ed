"""Choosing the number of clusters without labels."""

from collections.abc import Mapping, Sequence
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
from drpm.clustering.pipeline import fit_clusterings, start_seeds
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
    """Fit all candidates to four fifths of the rows, and choose one of them.

    Args:
        rows: (n, d), all training rows.
        shape: The shape of an input.
        job: Its ``candidates`` are fitted, from two starts each or as many as it has.
        folder: The folder of the run; interrupted fits are resumed.
        progress: As in :func:`fit_clusterings`.
        devices: As in :func:`fit_clusterings`.

    Returns:
        The ``clusters`` of the candidates, their figures in the same order, and the choice as in
        :func:`decide`.
    """
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(job.seed))
    held_out, fitted = rows[order].tensor_split([max(1, int(_HELD_OUT * len(rows)))])
    seeds = start_seeds(job.seed, max(_STARTS, job.starts))
    clusters, bounds, figures = [*job.candidate_range], [], []
    for count in clusters:
        models = fit_clusterings(
            fitted,
            shape,
            replace(job.clustering, clusters=count),
            [folder / CANDIDATES / str(count) / str(start) for start in range(len(seeds))],
            seeds=seeds,
            progress=lambda stage, count=count: progress(f"{count} clusters, {stage}"),  # type: ignore[misc]
            devices=devices,
        )
        elbos = torch.stack([model.lower_bounds(held_out) for model in models])
        bounds.append(elbos.double().mean(0).cpu().numpy())
        labels = [model.predict_proba(rows, sampled=False).argmax(-1).cpu() for model in models]
        # Starts that leave a cluster empty agree on fewer clusters.
        is_full = all(len(each.unique()) == count for each in labels)
        pairs = [is_full * adjusted_rand_score(*pair) for pair in combinations(labels, 2)]
        widths = [_silhouette(model, rows, x) for model, x in zip(models, labels, strict=True)]
        figures.append((np.mean(pairs), np.mean(widths)))
    stability, silhouette = np.array(figures).T
    return {"clusters": clusters, **decide(clusters, np.stack(bounds), stability, silhouette)}


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
        The figures, ``votes`` (what each takes), ``taken`` (the choice), and ``sentence`` (how
        clear it is).
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
    return {
        "elbo": elbo.tolist(),
        "stability": stability.tolist(),
        "silhouette": silhouette.tolist(),
        "votes": votes,
        "taken": taken,
        "sentence": _sentence(votes, taken),
    }


def _sentence(votes: Mapping[str, int], taken: int) -> str:
    agree = sum(vote == taken for vote in votes.values())
    if agree == 3:
        return f"The choice of {taken} clusters is clear: ELBO, stability and silhouette agree."
    each = ", ".join(f"{FIGURES[name]} {vote}" for name, vote in votes.items())
    if agree == 2:
        return (
            f"The choice of {taken} clusters is fairly clear: two of three figures agree ({each})."
        )
    return f"The choice of {taken} clusters is not clear: the figures disagree ({each})."
