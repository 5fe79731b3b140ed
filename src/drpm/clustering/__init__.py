"""Clustering with random partitions: estimators, mixtures and scores."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.clustering.estimators import DRPMClustering, LatentGMM, VaDE
    from drpm.clustering.fitted import load_clustering

_PLACES = {
    "estimators": ("DRPMClustering", "LatentGMM", "VaDE"),
    "fitted": ("load_clustering",),
}

__all__ = ["DRPMClustering", "LatentGMM", "VaDE", "load_clustering"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)
