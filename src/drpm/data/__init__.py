"""Data sets: one registry, and users' own files."""

from drpm.data.registry import DATASETS, load
from drpm.data.types import DataError, Dataset, DatasetSpec, Split

__all__ = ["DATASETS", "DataError", "Dataset", "DatasetSpec", "Split", "load"]
