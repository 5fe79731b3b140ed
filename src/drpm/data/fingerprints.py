"""Knowing data again."""

import hashlib
from collections.abc import Iterable

from torch import Tensor

from drpm.data.registry import DATASETS
from drpm.data.types import Dataset

_ROWS = 4096  # at once, so that what lies on a GPU is not copied as a whole


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


def known_by(name: str, data: Dataset) -> str:
    """What data is known by besides its name: nothing where the name is enough.

    A set of the registry has its own hashes; a file is only known by what is in it.

    Arguments:
        name: Of a set, or a file's.
        data: What was read.
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
