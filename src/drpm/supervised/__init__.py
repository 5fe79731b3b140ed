"""Supervised partitions: models, training and scores."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.supervised.config import SupervisedConfig
    from drpm.supervised.evaluation import PartitionScores, partition_scores
    from drpm.supervised.fitted import FittedPartitioner, PredictedPartition, load_partitioner
    from drpm.supervised.training import TrainedPartitioner, fit_partitioner

_PLACES = {
    "config": ("SupervisedConfig",),
    "evaluation": ("PartitionScores", "partition_scores"),
    "fitted": ("FittedPartitioner", "PredictedPartition", "load_partitioner"),
    "training": ("TrainedPartitioner", "fit_partitioner"),
}

__all__ = [
    "FittedPartitioner",
    "PartitionScores",
    "PredictedPartition",
    "SupervisedConfig",
    "TrainedPartitioner",
    "fit_partitioner",
    "load_partitioner",
    "partition_scores",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)
