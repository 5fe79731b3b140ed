"""A test part for data that has none."""

from dataclasses import replace
from typing import Final

import torch

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
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(_SEED))
    tested = order[: max(1, round(TEST_PART * len(whole)))]
    taught = order[len(tested) :]
    train, test = (
        Split(whole.inputs[rows], {name: x[rows] for name, x in whole.targets.items()})
        for rows in (part.to(whole.inputs.device) for part in (taught, tested))
    )
    return replace(data, train=train, test=test)
