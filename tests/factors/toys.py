"""A world of two factors: where a bar lies in the left half of an image, and in the right half."""

import math
from typing import Any

import torch

from drpm.factors.pairs import PairSampler, World
from tests.oracles import generator

VALUES = 8


def two_bars() -> World:
    rows = torch.arange(float(VALUES))
    heights = torch.cartesian_prod(rows, rows)
    bars = (-0.8 * (rows - heights[..., None]).square()).exp()  # (64, 2, 8)
    images = (255 * bars.mT.repeat_interleave(4, -1)).round().to(torch.uint8)
    return World(images[:, None], (VALUES, VALUES))


def numbered(sizes: tuple[int, ...]) -> World:
    """Images whose one pixel is their number, modulo 256."""
    images = torch.arange(math.prod(sizes)).to(torch.uint8).reshape(-1, 1, 1, 1)
    return World(images, sizes)


def draw(
    count: int, shared: Any = 1, world: World | None = None, seed: int = 0, which: Any = "random"
) -> Any:
    """Pairs of a world, by default of two bars, one of which they share."""
    sampler = PairSampler(world or two_bars(), shared, which)
    return sampler({"pair": torch.zeros(count)}, generator(seed))
