"""Layers that put a partition into a network."""

from drpm.nn.partitions import PartitionHead, TaskPartition, TaskSplit, size_penalty

__all__ = ["PartitionHead", "TaskPartition", "TaskSplit", "size_penalty"]
