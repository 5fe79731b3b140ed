"""A test part for data that has none."""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from drpm.data.types import Dataset, Split

TEST_PART: Final = 0.2
_SEED: Final = 3_000_000


def with_test_part(data: Dataset) -> Dataset:
    """The same data; where training and test part are one, a fifth is taken for the latter.

    It is always the same fifth.
    """
    if data.train is not data.test:
        return data
    whole = data.train
    train, test = (
        Split(whole.inputs[rows], {name: x[rows] for name, x in whole.targets.items()})
        for rows in (part.to(whole.inputs.device) for part in split_rows(len(whole)))
    )
    return replace(data, train=train, test=test)


def split_rows(count: int) -> tuple[Tensor, Tensor]:
    """Which of so many rows :func:`with_test_part` leaves to be learnt from, and which it takes."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SEED))
    tested = max(1, round(TEST_PART * count))
    return order[tested:], order[:tested]
