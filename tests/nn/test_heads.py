"""A head returns a law, one for each row, and learns through it."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from drpm import RelaxedAffinityPartition, RelaxedRandomPartition
from drpm.nn import PartitionHead
from tests.oracles import generator


def test_a_law_for_every_row() -> None:
    head = PartitionHead(3, 5, 2)
    features = torch.randn(4, 7, 3, generator=generator())
    law = head(features)
    assert isinstance(law, RelaxedRandomPartition)
    assert isinstance(PartitionHead(3, 5, 2, affinities=True)(features), RelaxedAffinityPartition)
    assert (law.batch_shape, law.event_shape) == ((4, 7), (2, 5))
    torch.testing.assert_close(law.log_scores, head.log_scores(features))
    torch.testing.assert_close(law.log_weights, head.log_weights(features))
    draw = law.rsample(generator=generator(1))
    assert (draw.sum(-2) == 1).all()
    assert ((draw == 0) | (draw == 1)).all()


def test_temperature() -> None:
    head = PartitionHead(3, 5, 2, temperature=0.7)
    features = torch.zeros(3)
    assert head(features).temperature == pytest.approx(0.7)
    assert head(features, 0.2).temperature == pytest.approx(0.2)
    assert head(features, torch.tensor(0.3)).temperature == pytest.approx(0.3)
    # It may be set anew, and come from where numbers come from.
    head.temperature.fill_(0.5)
    head.temperature *= 0.5
    assert head(features).temperature == 0.25
    for value in (np.float32(0.5), torch.tensor(0.5)):
        assert PartitionHead(3, 5, 2, temperature=value).temperature == 0.5
    assert "hard=True, temperature=0.25" in repr(head)
    # It goes where the layer goes.
    assert PartitionHead(3, 5, 2).load_state_dict(head.state_dict()).missing_keys == []
    assert nn.Sequential(head).double()[0].temperature.dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0, 5, 2), "in_features must be an integer of at least 1, but got 0."),
        ((3, 5.0, 2), "num_elements must be an integer of at least 1, but got 5.0."),
        ((3, 5, -1), "num_subsets must be an integer of at least 1, but got -1."),
    ],
)
def test_bad_numbers(arguments: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        PartitionHead(*arguments)


@pytest.mark.parametrize("features", [torch.zeros(3, 2), torch.zeros(3, dtype=torch.long), [1.0]])
def test_bad_features(features: Any) -> None:
    sentence = "features must be a floating-point tensor with 3 entries in its last dimension"
    with pytest.raises(ValueError, match=sentence):
        PartitionHead(3, 5, 2)(features)
