"""Content hashes of data sets."""

import hashlib
from collections.abc import Iterable

from torch import Tensor

from drpm.data.registry import DATASETS
from drpm.data.types import Dataset

_ROWS = 4096  # copied from a GPU at once


def fingerprint(data: Dataset) -> str:
    """The SHA-256 of all inputs and targets of a data set.

    Example:
        >>> from drpm.data import load
        >>> fingerprint(load("digits")) == fingerprint(load("digits"))
        True
    """
    splits = [data.train] if data.test is data.train else [data.train, data.test]
    return fingerprint_tensors(
        pair for split in splits for pair in (("", split.inputs), *sorted(split.targets.items()))
    )


def content_hash(name: str, data: Dataset) -> str:
    """The fingerprint of a user's own data; empty for a data set of the registry.

    Args:
        name: A data set, or a path.
        data: What was loaded.
    """
    return "" if name in DATASETS else fingerprint(data)


def fingerprint_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """The SHA-256 of tensors, their names, types and shapes."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        for rows in tensor.split(_ROWS):
            digest.update(rows.detach().contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
