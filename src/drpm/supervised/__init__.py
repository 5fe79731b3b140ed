"""Partitions that are learnt from known ones: models, their training and their scores."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drpm.supervised.config import SupervisedConfig
    from drpm.supervised.evaluation import PartitionScores, partition_scores
    from drpm.supervised.fitted import FittedPartitioner, PredictedPartition, load_partitioner
    from drpm.supervised.pipeline import fit_partitioners

_PLACES = {
    "config": ("SupervisedConfig",),
    "evaluation": ("PartitionScores", "partition_scores"),
    "fitted": ("FittedPartitioner", "PredictedPartition", "load_partitioner"),
    "pipeline": ("fit_partitioners",),
}

__all__ = [
    "FittedPartitioner",
    "PartitionScores",
    "PredictedPartition",
    "SupervisedConfig",
    "fit_partitioners",
    "load_partitioner",
    "partition_scores",
]

if not TYPE_CHECKING:
    # Whoever only wants the settings should not wait for torch.

    def __getattr__(name: str) -> Any:
        for place, names in _PLACES.items():
            if name in names:
                return getattr(import_module(f"drpm.supervised.{place}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
