"""Rows as a model sees them, from data as their owner has them."""

import numpy as np
import torch

from drpm.data.scaling import scale_of, scaled_rows
from drpm.data.tables import table
from drpm.data.types import Dataset, Split


def test_a_table_to_the_last_bit() -> None:
    """Also where values are far larger than their differences."""
    raw = np.random.default_rng(0).normal(size=(20, 3)) * [1, 1e-3, 60] + [0, 5, 1.7e9]
    data = table("rows.csv", {name: raw[:, column] for column, name in enumerate("abc")})
    rows = scaled_rows("rows", raw, tuple(data.input_shape), *scale_of(data))
    assert rows.dtype == torch.float64
    assert torch.equal(rows.float(), data.train.inputs)


def test_a_scale_for_every_pixel() -> None:
    part = Split(torch.rand(4, 3, 2, 2))
    data = Dataset(
        "images",
        part,
        part,
        preprocessing={"mean": torch.arange(3.0).reshape(3, 1, 1), "std": torch.tensor(2.0)},
    )
    shift, scale = scale_of(data)
    assert shift is not None
    assert scale is not None
    assert shift.tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert scale.tolist() == [2.0] * 12
    assert scale_of(Dataset("plain", part, part)) == (None, None)
