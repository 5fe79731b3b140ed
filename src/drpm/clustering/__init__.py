"""Clustering with partitions: estimators, mixtures and the scores of a clustering."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drpm.clustering.estimators import DRPMClustering, LatentGMM, VaDE
    from drpm.clustering.fitted import load_clustering

__all__ = ["DRPMClustering", "LatentGMM", "VaDE", "load_clustering"]

if not TYPE_CHECKING:
    # The estimators need torch and scikit-learn, which whoever only wants the settings of a
    # clustering should not wait for.

    def __getattr__(name: str) -> Any:
        if name in __all__:
            estimators = import_module("drpm.clustering.estimators")
            globals().update({each: getattr(estimators, each) for each in __all__})
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
