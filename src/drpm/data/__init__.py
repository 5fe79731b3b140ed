"""Data sets: one file per set, one registry."""

from drpm.data.errors import DataError
from drpm.data.registry import DATASETS, load
from drpm.data.types import Dataset, DatasetSpec, Split

__all__ = ["DATASETS", "DataError", "Dataset", "DatasetSpec", "Split", "load"]
