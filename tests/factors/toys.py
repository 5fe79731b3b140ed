"""A world of two factors: where a bar lies in the left half of an image, and in the right half."""

import math
from typing import Any

import torch
from torch import Tensor

from drpm.factors.pairs import PairSampler, World
from tests.oracles import generator

VALUES = 8


def bars(left: Tensor, right: Tensor) -> Tensor:
    """Images (..., 1, 8, 8) of two bars at heights from 0 to 7."""
    rows = torch.arange(float(VALUES))
    halves = [
        (-0.8 * (rows - height[..., None]).square()).exp()[..., :, None].expand(*height.shape, 8, 4)
        for height in (left, right)
    ]
    return torch.cat(halves, -1)[..., None, :, :]


def two_bars() -> World:
    grid = torch.cartesian_prod(*[torch.arange(float(VALUES))] * 2)
    images = (255 * bars(grid[:, 0], grid[:, 1])).round().to(torch.uint8)
    return World(images, (VALUES, VALUES))


def numbered(sizes: tuple[int, ...]) -> World:
    """Images whose one pixel is their number, modulo 256."""
    images = torch.arange(math.prod(sizes)).to(torch.uint8).reshape(-1, 1, 1, 1)
    return World(images, sizes)


def draw(count: int, shared: Any = 1, world: World | None = None, seed: int = 0) -> Any:
    """Pairs of a world, by default of two bars, one of which they share."""
    return PairSampler(world or two_bars(), shared)({"pair": torch.zeros(count)}, generator(seed))


def left_is_shared(
    batch: dict[str, Tensor], generator: torch.Generator | None
) -> dict[str, Tensor]:
    """Pairs whose left bars lie alike, and whose right bars are drawn apart."""
    rows = next(iter(batch.values())).shape[0]
    left, one, other = torch.rand(3, rows, generator=generator) * (VALUES - 1)
    return {
        "first": bars(left, one),
        "second": bars(left, other),
        "left": left,
        "right": one,
    }
