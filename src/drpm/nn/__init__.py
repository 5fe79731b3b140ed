"""Layers that put a partition into a network."""

from drpm.nn.heads import PartitionHead
from drpm.nn.tasks import TaskPartition, TaskSplit, size_penalty

__all__ = ["PartitionHead", "TaskPartition", "TaskSplit", "size_penalty"]
