"""Fully connected layers."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def dense_layers(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers from each width to the next, each followed by a ReLU."""
    return nn.Sequential(
        *(layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU()))
    )
