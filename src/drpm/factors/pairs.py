"""Pairs of images that share some of their generative factors.

Pairs are drawn on the device at every training step. Shapes do not depend on values and nothing is
read back, so that a step can be compiled and captured in a CUDA graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Literal, NamedTuple, final

import torch
from torch import Tensor

from drpm.data import arm, mpi3d
from drpm.data.types import Device

SharedCounts = int | Sequence[int] | Literal["mixed"]
"""How many factors a pair shares; of several numbers, each pair takes one at random."""

MIXED_COUNTS: Final = (0, 1, 3, 5)

# Images drawn or read at once; as floats on a GPU these take 0.4 GB.
_CHUNK_CPU = 1024
_CHUNK_OTHER = 8192


@final
@dataclass(frozen=True, eq=False)
class World:
    """The image of every combination of factor values.

    Args:
        images: Images in the order of the grid, whose last factor changes fastest: (N, C, H, W)
            bytes.
        sizes: Number of values of each factor.
        names: Names of the factors.

    Example:
        >>> world = World(
        ...     torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1), (2, 3), ("a", "b")
        ... )
        >>> (world.images_of(torch.tensor([1, 2])) * 255).item()
        5.0
    """

    images: Tensor
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    _strides: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _require_sizes(self.sizes)
        shape = tuple(self.images.shape)
        if len(shape) != 4 or shape[0] != prod(self.sizes) or self.images.dtype != torch.uint8:
            raise ValueError(
                f"images must be bytes of the shape ({prod(self.sizes)}, C, H, W), one for each "
                f"combination of the sizes {self.sizes}, but got {self.images.dtype} of the shape "
                f"{shape}."
            )
        # Made once: a copy from the CPU at every call could not be captured.
        object.__setattr__(self, "_strides", _strides(self.sizes, self.images.device))

    @property
    def image_shape(self) -> torch.Size:
        """The shape (C, H, W) of an image."""
        return self.images.shape[1:]

    def images_of(self, factors: Tensor) -> Tensor:
        """The images (..., C, H, W) in [0, 1] of factor values (..., F), which are not checked."""
        index = (factors * self._strides).sum(-1)
        return self.images[index].to(torch.float32) / 255


def arm_world(
    device: Device = "cpu", angles: int = arm.FACTOR_SIZES[-1], image_size: int = 64
) -> World:
    """Every image of the data set `arm`.

    With all 40 angles these are 1,036,800 images, 12.7 GB of bytes, for a GPU. On a CPU use two to
    eight angles.

    Args:
        device: Where the images are drawn and stay.
        angles: Number of values of either joint, spread evenly over all 40.
        image_size: Side of the images in pixels.
    """

    def draw(factors: Tensor) -> Tensor:
        images = arm.render(factors, image_size=image_size)
        return images.mul_(255).round_().to(torch.uint8)

    shape = (3, image_size, image_size)
    return _world(draw, shape, arm.FACTOR_SIZES, arm.FACTOR_NAMES, angles, torch.device(device))


def mpi3d_world(
    device: Device = "cpu", variant: str = "toy", angles: int = mpi3d.FACTOR_SIZES[-1]
) -> World:
    """Every image of the data set `mpi3d`, which must be on the disk or be downloaded.

    Args:
        device: Where the images go.
        variant: "toy", "realistic" or "real".
        angles: Number of values of either joint, spread evenly over all 40.
    """
    pixels = mpi3d.open_images(variant)

    def read(factors: Tensor) -> Tensor:
        chosen = torch.from_numpy(pixels[mpi3d.index_of(factors).cpu().numpy()])
        return chosen.to(factors.device).permute(0, 3, 1, 2)

    shape = (3, *pixels.shape[1:3])
    sizes, names = mpi3d.FACTOR_SIZES, mpi3d.FACTOR_NAMES
    return _world(read, shape, sizes, names, angles, torch.device(device))


def _world(
    make: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    all_sizes: tuple[int, ...],
    names: tuple[str, ...],
    angles: int,
    device: torch.device,
) -> World:
    """A world of the images that ``make`` returns for factors (N, F); the last two are angles."""
    every = all_sizes[-1]
    if angles not in range(2, every + 1):
        raise ValueError(f"angles must be a whole number from 2 to {every}, but got {angles!r}.")
    sizes = (*all_sizes[:-2], angles, angles)
    # The midpoints of equal parts.
    values = (2 * torch.arange(angles, device=device) + 1) * every // (2 * angles)
    radices, strides = torch.tensor(sizes, device=device), _strides(sizes, device)
    images = torch.empty((prod(sizes), *shape), dtype=torch.uint8, device=device)
    chunk = _CHUNK_CPU if device.type == "cpu" else _CHUNK_OTHER
    index = torch.arange(chunk, device=device)
    for part in images.split(chunk):
        factors = _digits(index[: len(part)], strides, radices)
        factors[:, -2:] = values[factors[:, -2:]]
        part.copy_(make(factors))
        index += len(part)
    return World(images, sizes, names)


class PairFactors(NamedTuple):
    """The factors of B pairs.

    first: The values of the first images, (B, F).
    second: The values of the second images, (B, F).
    is_shared: Where both are equal, (B, F).
    count_shared: The number of shared factors, (B,).
    label: A random factor that differs, (B,); 0 if none does.
    """

    first: Tensor
    second: Tensor
    is_shared: Tensor
    count_shared: Tensor
    label: Tensor


@final
class PairLaw:
    """Pairs of uniform values that share a given number of random factors.

    The second image's values of the other factors are uniform among those that differ.

    Args:
        sizes: Number of values of each factor.
        shared: The number n_s of shared factors; or several numbers, of which every pair takes
            one at random; or "mixed", which is 0, 1, 3 and 5.
        device: Where pairs are drawn.
    """

    def __init__(self, sizes: Sequence[int], shared: SharedCounts, device: Device = "cpu") -> None:
        _require_sizes(sizes)
        self.counts = _require_counts(shared, len(sizes))
        # One random integer per pair, whose digits are the values of the first image, the steps
        # to those of the second, and the choice of a count.
        radices = (*sizes, *(size - 1 for size in sizes), len(self.counts))
        self._total = prod(radices)
        if self._total >= 2**62:
            raise ValueError(f"sizes must fit a 64-bit number, but got {sizes}.")
        device = torch.device(device)
        self._radices = torch.tensor(radices, device=device)
        self._strides = _strides(radices, device)
        self._sizes = torch.tensor(list(sizes), device=device)
        self._counts = torch.tensor(self.counts, device=device)

    def draw(self, count: int, generator: torch.Generator | None = None) -> PairFactors:
        """Draw pairs."""
        place: dict[str, Any] = {"generator": generator, "device": self._sizes.device}
        number = torch.randint(self._total, (count,), **place)
        width = len(self._sizes)
        values, steps, option = _digits(number, self._strides, self._radices).split(
            [width, width, 1], dim=-1
        )
        count_shared = self._counts[option.squeeze(-1)]
        # In a random permutation the places of the smallest n_s numbers are a random subset, and
        # the largest number is at a random one of the other places.
        permutation = torch.rand(count, width, **place).argsort(-1)
        is_shared = permutation < count_shared[:, None]
        second = torch.where(is_shared, values, (values + 1 + steps) % self._sizes)
        label = permutation.argmax(-1) * (count_shared < width)
        return PairFactors(values, second, is_shared, count_shared, label)


@final
class PairSampler:
    """The ``augment`` of a training program: new pairs of images in place of a batch.

    It returns as many pairs as the batch has rows: "first" and "second" are the images
    (B, C, H, W), "factors" their values (B, 2, F), "is_shared" and "label" as in
    :class:`PairFactors`.

    Args:
        world: The images.
        shared: The number n_s of shared factors, several numbers, or "mixed".
    """

    def __init__(self, world: World, shared: SharedCounts) -> None:
        self.world = world
        self.law = PairLaw(world.sizes, shared, world.images.device)

    def __call__(
        self, batch: Mapping[str, Tensor], generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        rows = next(iter(batch.values())).shape[0]
        pairs = self.law.draw(rows, generator)
        return {
            "first": self.world.images_of(pairs.first),
            "second": self.world.images_of(pairs.second),
            "label": pairs.label,
            "factors": torch.stack([pairs.first, pairs.second], 1),
            "is_shared": pairs.is_shared,
        }


def _strides(radices: Sequence[int], device: torch.device) -> Tensor:
    strides = [prod(radices[place + 1 :]) for place in range(len(radices))]
    return torch.tensor(strides, device=device)


def _digits(number: Tensor, strides: Tensor, radices: Tensor) -> Tensor:
    """The digits (..., F) of integers (...) in mixed radices."""
    return (number[..., None] // strides) % radices


def _require_sizes(sizes: Sequence[int]) -> None:
    if len(sizes) == 0 or min(sizes) < 2:
        raise ValueError(
            f"sizes must be whole numbers of 2 or more, one for each factor, but got {sizes}."
        )


def _require_counts(shared: SharedCounts, num_factors: int) -> tuple[int, ...]:
    if shared == "mixed":
        counts: tuple[Any, ...] = MIXED_COUNTS
    else:
        counts = (shared,) if isinstance(shared, int | str) else tuple(shared)
    if not counts or not all(type(n) is int and 0 <= n <= num_factors for n in counts):
        raise ValueError(
            f"shared must be a whole number from 0 to {num_factors}, several of them, or 'mixed', "
            f"but got {shared!r}."
        )
    return counts
