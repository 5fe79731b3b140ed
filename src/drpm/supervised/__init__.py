"""Supervised partitioning: models, training and scores."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.supervised.config import SupervisedConfig as SupervisedConfig
    from drpm.supervised.models import Partitioner as Partitioner
    from drpm.supervised.models import TrainedPartitioner as TrainedPartitioner
    from drpm.supervised.models import fit_partitioner as fit_partitioner
    from drpm.supervised.models import load_partitioner as load_partitioner

_PLACES = {
    "config": ("SupervisedConfig",),
    "models": ("Partitioner", "TrainedPartitioner", "fit_partitioner", "load_partitioner"),
}
__all__ = [name for names in _PLACES.values() for name in names]

if not TYPE_CHECKING:
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)
