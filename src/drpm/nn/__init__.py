"""Layers with random partitions."""

from drpm.nn.partitions import PartitionHead, TaskPartition, TaskSplit, size_penalty

__all__ = ["PartitionHead", "TaskPartition", "TaskSplit", "size_penalty"]
