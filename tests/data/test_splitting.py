"""A test part for data that has none."""

import torch

from drpm.data.splitting import with_test_part
from drpm.data.types import Dataset, Split


def numbered(count: int) -> Split:
    return Split(torch.arange(float(count))[:, None], {"label": torch.arange(count)})


def test_a_fifth_is_taken() -> None:
    whole = numbered(10)
    found = with_test_part(Dataset("some", whole, whole))
    assert (len(found.train), len(found.test)) == (8, 2)
    both = torch.cat([found.train.inputs, found.test.inputs]).flatten()
    assert sorted(both.tolist()) == list(range(10))
    for part in (found.train, found.test):
        assert torch.equal(part.targets["label"], part.inputs.flatten().long())
    again = with_test_part(Dataset("some", whole, whole))
    assert torch.equal(again.test.inputs, found.test.inputs)


def test_one_at_least() -> None:
    whole = numbered(2)
    found = with_test_part(Dataset("some", whole, whole))
    assert (len(found.train), len(found.test)) == (1, 1)


def test_a_test_part_stays() -> None:
    data = Dataset("some", numbered(4), numbered(3))
    assert with_test_part(data) is data
