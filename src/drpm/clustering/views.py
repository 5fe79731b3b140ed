"""Random augmentations of a batch for contrastive learning."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from drpm.training.errors import ConfigError

View = Callable[[Tensor, torch.Generator | None], Tensor]


class _Draws:
    """Random numbers, one per image."""

    def __init__(self, images: Tensor, generator: torch.Generator | None) -> None:
        self.images, self.generator = images, generator

    def uniform(self, low: float, high: float) -> Tensor:
        like = self.images
        numbers = torch.rand(
            len(like), dtype=like.dtype, device=like.device, generator=self.generator
        )
        return low + (high - low) * numbers

    def coin(self) -> Tensor:
        return self.uniform(0, 1) < 0.5


def _warp(images: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """Sample images (N, C, H, W) at ``matrix p + shift`` for every point p in [-1, 1]^2."""
    height, width = images.shape[-2:]
    y = (torch.arange(height, dtype=images.dtype, device=images.device) + 0.5) * 2 / height - 1
    x = (torch.arange(width, dtype=images.dtype, device=images.device) + 0.5) * 2 / width - 1
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # (H, W, 2)
    grid = torch.einsum("hwj,nij->nhwi", points, matrix) + shift[:, None, None, :]
    return F.grid_sample(images, grid, align_corners=False)


def _matrix(rows: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


class _Warp:
    """An affine transformation of images."""

    def draw(self, draws: _Draws) -> tuple[Tensor, Tensor]:
        """The matrix (N, 2, 2) and the shift (N, 2) of each image."""
        raise NotImplementedError

    def __call__(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        return _warp(images, *self.draw(_Draws(images, generator)))


@dataclass(frozen=True)
class Affine(_Warp):
    """Random rotation, translation, scale and shear.

    Args:
        degrees: The maximum rotation.
        translation: The maximum translation, as a fraction of the image.
        scale: The range of the scale.
        shear: The maximum shear in degrees, in both directions.
    """

    degrees: float
    translation: float
    scale: tuple[float, float]
    shear: float

    def draw(self, draws: _Draws) -> tuple[Tensor, Tensor]:
        turn = draws.uniform(-self.degrees, self.degrees) * math.pi / 180
        zoom = 1 / draws.uniform(*self.scale)
        lean = [(draws.uniform(-self.shear, self.shear) * math.pi / 180).tan() for _ in range(2)]
        cosine, sine, one = turn.cos() * zoom, turn.sin() * zoom, torch.ones_like(turn)
        rotation = _matrix([[cosine, -sine], [sine, cosine]])
        matrix = rotation @ _matrix([[one, lean[0]], [lean[1], one]])
        reach = 2 * self.translation
        shift = torch.stack([draws.uniform(-reach, reach) for _ in range(2)], -1)
        return matrix, shift


@dataclass(frozen=True)
class ResizedCrop(_Warp):
    """A random crop, resized to the size of the image.

    Args:
        area: The range of its area, as a fraction of the image; at most the whole image is used.
        aspect: The range of its width divided by its height.
    """

    area: tuple[float, float]
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    def draw(self, draws: _Draws) -> tuple[Tensor, Tensor]:
        area = draws.uniform(*self.area)
        aspect = draws.uniform(math.log(self.aspect[0]), math.log(self.aspect[1])).exp()
        width, height = ((area * ratio).sqrt().clamp_max(1) for ratio in (aspect, 1 / aspect))
        zero = torch.zeros_like(width)
        shift = torch.stack([draws.uniform(-1, 1) * (1 - size) for size in (width, height)], -1)
        return _matrix([[width, zero], [zero, height]]), shift


@dataclass(frozen=True)
class Either:
    """One of two transformations, each with probability 1/2."""

    first: _Warp
    second: _Warp

    def __call__(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        draws = _Draws(images, generator)
        coin = draws.coin()
        one, other = self.first.draw(draws), self.second.draw(draws)
        matrix = torch.where(coin[:, None, None], one[0], other[0])
        return _warp(images, matrix, torch.where(coin[:, None], one[1], other[1]))


@dataclass(frozen=True)
class CropFlipBlur:
    """A crop, a horizontal flip with probability 1/2, and a Gaussian blur."""

    crop: ResizedCrop
    sigma: tuple[float, float]

    def __call__(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        draws = _Draws(images, generator)
        matrix, shift = self.crop.draw(draws)
        mirrored = torch.where(draws.coin(), -1.0, 1.0)
        matrix = torch.stack([matrix[..., 0] * mirrored[:, None], matrix[..., 1]], -1)
        seen = _warp(images, matrix, shift)
        # Three taps in each direction.
        side = (-0.5 / draws.uniform(*self.sigma).square()).exp()
        outer, centre = side / (1 + 2 * side), 1 / (1 + 2 * side)
        for dim in (-1, -2):
            padding = (1, 1, 0, 0) if dim == -1 else (0, 0, 1, 1)
            wide = F.pad(seen, padding, mode="reflect")
            size = seen.shape[dim]
            near = wide.narrow(dim, 0, size) + wide.narrow(dim, 2, size)
            seen = centre[:, None, None, None] * seen + outer[:, None, None, None] * near
        return seen


@dataclass(frozen=True)
class Noise:
    """Gaussian noise and dropout of columns, for tables.

    Args:
        scale: The standard deviation of the noise.
        dropped: The probability that a column is set to zero.
    """

    scale: float = 0.2
    dropped: float = 0.1

    def __call__(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        def draw(function: Callable[..., Tensor]) -> Tensor:
            return function(rows.shape, dtype=rows.dtype, device=rows.device, generator=generator)

        return (rows + self.scale * draw(torch.randn)) * (draw(torch.rand) > self.dropped)


VIEWS: dict[str, View] = {
    "digits": Affine(degrees=20, translation=0.12, scale=(0.8, 1.2), shear=10),
    "mnist": Either(
        Affine(degrees=30, translation=0.2, scale=(0.75, 1.25), shear=10),
        ResizedCrop(area=(0.5, 1.2), aspect=(0.8, 1.2)),
    ),
    "fashion-mnist": CropFlipBlur(ResizedCrop(area=(0.2, 1.0)), sigma=(0.1, 2.0)),
    "noise": Noise(),
}


def choose_view(name: str, shape: torch.Size) -> View:
    """The augmentation of inputs of a shape; ``"auto"`` is weaker for small images."""
    if name == "auto":
        small = len(shape) == 3 and min(shape[-2:]) < 16
        name = "noise" if len(shape) != 3 else "digits" if small else "mnist"
    if len(shape) != 3 and name != "noise":
        raise ConfigError(
            f"pretraining.views must be 'noise' for rows of numbers, but got {name!r}."
        )
    return VIEWS[name]
