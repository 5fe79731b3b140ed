"""The embedded digits."""

import torch

from drpm.data import load


def test_shapes_and_values() -> None:
    digits = load("digits")
    assert digits.input_shape == (1, 8, 8)
    assert (len(digits.train), len(digits.test)) == (1442, 355)
    for split in (digits.train, digits.test):
        assert split.inputs.dtype == torch.float32
        assert (float(split.inputs.min()), float(split.inputs.max())) == (0, 1)
        assert torch.equal(split.inputs * 16, (split.inputs * 16).round())


def test_the_split_is_fixed_and_even() -> None:
    first, second = load("digits", seed=0), load("digits", seed=1)
    assert torch.equal(first.test.inputs, second.test.inputs)
    train, test = (split.targets["label"].bincount() for split in (first.train, first.test))
    assert torch.equal(test, (train + test) // 5)
