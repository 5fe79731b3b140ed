"""Data sets: one catalogue, and users' own files."""

from typing import TYPE_CHECKING

from drpm.lazy import fetch_from

if TYPE_CHECKING:
    from drpm.data.catalogue import DATASETS, DatasetSpec, load
    from drpm.data.types import DataError, Dataset, Split

__all__ = ["DATASETS", "DataError", "Dataset", "DatasetSpec", "Split", "load"]

if not TYPE_CHECKING:
    _PLACES = {
        "catalogue": ("DATASETS", "DataError", "DatasetSpec", "load"),
        "types": ("Dataset", "Split"),
    }
    __getattr__, __dir__ = fetch_from(__name__, _PLACES)
