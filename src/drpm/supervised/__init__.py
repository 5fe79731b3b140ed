"""Supervised partitioning: models, training and scores."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.supervised.config import SupervisedConfig
    from drpm.supervised.models import (
        Partitioner,
        PartitionScores,
        PredictedPartition,
        TrainedPartitioner,
        fit_partitioner,
        load_partitioner,
        partition_scores,
    )

__all__ = [
    "PartitionScores",
    "Partitioner",
    "PredictedPartition",
    "SupervisedConfig",
    "TrainedPartitioner",
    "fit_partitioner",
    "load_partitioner",
    "partition_scores",
]

_PLACES = {
    "config": ("SupervisedConfig",),
    "models": tuple(name for name in __all__ if name != "SupervisedConfig"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)
