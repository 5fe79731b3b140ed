"""Pairs of images that share some of their generative factors.

Pairs are made on the device, as many as a training step asks for: whatever a step calls is made of
operations whose shapes do not depend on values and that read nothing back, so that it can be
captured in a CUDA graph, compiled, and mapped over stacked runs.
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

# Images drawn or read at once while a world is made; as floats on a GPU these take 0.4 GB.
_CHUNK_CPU = 1024
_CHUNK_OTHER = 8192


@final
@dataclass(frozen=True, eq=False)
class World:
    """The image of every combination of the values of some factors.

    Arguments:
        images: The images in the order of the grid, whose last factor changes fastest:
            (N, C, H, W) bytes.
        sizes: How many values each factor has.
        names: What each factor is called.

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
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise ValueError(
                "images must be bytes of the shape (N, C, H, W), but got "
                f"{self.images.dtype} of the shape {tuple(self.images.shape)}."
            )
        _require_sizes(self.sizes)
        if len(self.images) != prod(self.sizes):
            raise ValueError(
                f"images must hold {prod(self.sizes):,}, one for each combination of the sizes "
                f"{self.sizes}, but got {len(self.images):,}."
            )
        if len(self.names) != len(self.sizes):
            raise ValueError(
                f"names must have the length of sizes, {len(self.sizes)}, but got "
                f"{len(self.names)}."
            )
        # Made here once: a copy from the CPU at every call could not be captured.
        object.__setattr__(self, "_strides", _strides(self.sizes, self.images.device))

    @property
    def image_shape(self) -> torch.Size:
        """The shape (C, H, W) of one image."""
        return self.images.shape[1:]

    def images_of(self, factors: Tensor) -> Tensor:
        """The images (..., C, H, W) in [0, 1] of these values of the factors.

        Whether a value lies in its range is not asked: that would wait for the device.

        Arguments:
            factors: The values, (..., F) whole numbers on the device of the images.
        """
        index = (factors * self._strides).sum(-1)
        return self.images[index].to(torch.float32) / 255


def arm_world(
    device: Device = "cpu", angles: int = arm.FACTOR_SIZES[-1], image_size: int = 64
) -> World:
    """Every image of the data set `arm`.

    With all 40 angles these are 1,036,800 images, 12.7 GB of bytes: a GPU has room for them, and
    draws them quickly. On a CPU two to eight angles are enough to learn from.

    Arguments:
        device: Where to draw them, and where they stay.
        angles: The values of either axis, spread evenly over all 40.
        image_size: The side of the images in pixels.
    """

    def draw(factors: Tensor) -> Tensor:
        images = arm.render(factors, image_size=image_size)
        return images.mul_(255).round_().to(torch.uint8)

    shape = (3, image_size, image_size)
    return _world(draw, shape, arm.FACTOR_SIZES, arm.FACTOR_NAMES, angles, torch.device(device))


def mpi3d_world(
    device: Device = "cpu", variant: str = "toy", angles: int = mpi3d.FACTOR_SIZES[-1]
) -> World:
    """Every image of the data set `mpi3d`, which must lie on the disk or be downloaded.

    Arguments:
        device: Where the images go.
        variant: "toy", "realistic" or "real".
        angles: The values of either axis, spread evenly over all 40.
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
    """A world whose images, bytes of a shape (C, H, W), are made for factors (N, F).

    The last two factors are the angles.
    """
    every = all_sizes[-1]
    if angles not in range(2, every + 1):
        raise ValueError(f"angles must be a whole number from 2 to {every}, but got {angles!r}.")
    sizes = (*all_sizes[:-2], angles, angles)
    # In the middles of equal parts, as the angles of the arm themselves are of half a turn.
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
    is_shared: Where both have the same value, (B, F).
    count_shared: How many factors they share, (B,).
    label: The index of one factor that differs, (B,), each that does as likely; 0 where none does.
    """

    first: Tensor
    second: Tensor
    is_shared: Tensor
    count_shared: Tensor
    label: Tensor


@final
class PairLaw:
    """Pairs whose values are uniform, and which share exactly as many factors as they are told to.

    Which ones they share is drawn for every pair. The second image's values of the others are
    uniform among those that the first one does not have.

    Arguments:
        sizes: How many values each factor has.
        shared: The number n_s of shared factors; or several numbers, of which every pair takes
            one at random; or "mixed", which is 0, 1, 3 and 5.
        device: Where pairs are drawn.
    """

    def __init__(self, sizes: Sequence[int], shared: SharedCounts, device: Device = "cpu") -> None:
        _require_sizes(sizes)
        self.counts = _require_counts(shared, len(sizes))
        """The numbers of shared factors among which a pair takes one."""
        # All whole numbers that a pair needs are the digits of one: the values of the first image,
        # the steps from there to those of the second, and which number of shared factors.
        radices = (*sizes, *(size - 1 for size in sizes), len(self.counts))
        self._total = prod(radices)
        if self._total >= 2**62:
            raise ValueError(
                f"sizes must be fewer or smaller for a 64-bit number, but got {sizes}."
            )
        device = torch.device(device)
        self._radices = torch.tensor(radices, device=device)
        self._strides = _strides(radices, device)
        self._sizes = torch.tensor(list(sizes), device=device)
        self._counts = torch.tensor(self.counts, device=device)

    def draw(self, count: int, generator: torch.Generator | None = None) -> PairFactors:
        """Draw pairs.

        Arguments:
            count: How many, B.
            generator: The source of the noise; by default the device's own.
        """
        place: dict[str, Any] = {"generator": generator, "device": self._sizes.device}
        number = torch.randint(self._total, (count,), **place)
        width = len(self._sizes)
        values, steps, option = _digits(number, self._strides, self._radices).split(
            [width, width, 1], dim=-1
        )
        count_shared = self._counts[option.squeeze(-1)]
        # In a random permutation the places of the smallest n_s numbers are a random subset, and
        # that of the largest number is any one of the other places.
        permutation = torch.rand(count, width, **place).argsort(-1)
        is_shared = permutation < count_shared[:, None]
        second = torch.where(is_shared, values, (values + 1 + steps) % self._sizes)
        label = permutation.argmax(-1) * (count_shared < width)
        return PairFactors(values, second, is_shared, count_shared, label)


def draw_pairs(
    sizes: Sequence[int],
    shared: SharedCounts,
    count: int,
    generator: torch.Generator | None = None,
    device: Device = "cpu",
) -> PairFactors:
    """Draw the factors of some pairs at once; a training step uses :class:`PairLaw`.

    Arguments:
        sizes: How many values each factor has.
        shared: The number n_s of shared factors, several numbers, or "mixed".
        count: How many pairs.
        generator: The source of the noise; by default the device's own.
        device: Where they are drawn.

    Example:
        >>> pairs = draw_pairs((6, 6, 2), 1, 100, torch.Generator().manual_seed(0))
        >>> bool(((pairs.first == pairs.second).sum(1) == 1).all())
        True
    """
    return PairLaw(sizes, shared, device).draw(count, generator)


@final
class PairSampler:
    """New pairs of images in place of a batch, for the ``augment`` of a training program.

    It gives as many pairs as the batch has rows, and does not look at what is in them: "first" and
    "second" are the images (B, C, H, W), "factors" their values (B, 2, F), "is_shared" and "label"
    as in :class:`PairFactors`.

    Arguments:
        world: Where the images come from.
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
    """What a step in each digit is worth, where the last one changes fastest."""
    strides = [prod(radices[place + 1 :]) for place in range(len(radices))]
    return torch.tensor(strides, device=device)


def _digits(number: Tensor, strides: Tensor, radices: Tensor) -> Tensor:
    """The digits (..., F) of whole numbers (...)."""
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
            f"shared must be a whole number from 0 to {num_factors}, several of them, or 'mixed' "
            f"where there are {max(MIXED_COUNTS)} factors or more, but got {shared!r}."
        )
    return counts
