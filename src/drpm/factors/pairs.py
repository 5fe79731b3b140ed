"""Pairs of images that share some generative factors: sampled from a world, or given.

Sampling does not synchronize with the device, so that steps can be captured.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final, Literal, final

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from drpm.data import arm, mpi3d, own
from drpm.data.types import DataError, Device, fingerprint_tensors
from drpm.distributions.validation import describe
from drpm.training.config import require_unit_interval
from drpm.training.program import Batch

MIXED_COUNTS: Final = (0, 1, 3, 5)

_CHUNK = 2048  # images drawn or read at once


@final
@dataclass(frozen=True, eq=False)
class World:
    """The image of every combination of factor values.

    Args:
        images: Images in the order of the grid, whose last factor changes fastest: (N, C, H, W)
            bytes.
        sizes: Number of values of each factor.

    Example:
        >>> world = World(torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1), (2, 3))
        >>> (world.images_of(torch.tensor([1, 2])) * 255).item()
        5.0
    """

    images: Tensor
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.sizes, default=0) < 2:
            raise ValueError(
                f"sizes must be integers of 2 or more, one for each factor, but got {self.sizes}."
            )
        shape = tuple(self.images.shape)
        if len(shape) != 4 or shape[0] != prod(self.sizes) or self.images.dtype != torch.uint8:
            raise ValueError(
                f"images must be bytes of shape ({prod(self.sizes)}, C, H, W), one for each "
                f"combination of the sizes {self.sizes}, but got {describe(self.images)}."
            )

    def images_of(self, factors: Tensor) -> Tensor:
        """The images (..., C, H, W) in [0, 1] of factor values (..., F), which are not checked."""
        chosen: Tensor = self.images.unflatten(0, self.sizes)[factors.unbind(-1)]
        return chosen.to(torch.float32) / 255


def arm_world(
    device: Device = "cpu", angles: int = arm.FACTOR_SIZES[-1], image_size: int = 64
) -> World:
    """Every image of the data set `arm`.

    With all 40 angles these are 1,036,800 images (12.7 GB), for a GPU. On a CPU use 2 to 8 angles.

    Args:
        device: Where the images are rendered and stored.
        angles: Number of values of either joint, spread evenly over all 40.
        image_size: Side of the images in pixels.
    """

    def draw(factors: Tensor) -> Tensor:
        images = arm.render(factors, image_size=image_size)
        return images.mul_(255).round_().to(torch.uint8)

    return _world(draw, image_size, arm.FACTOR_SIZES, angles, torch.device(device))


def mpi3d_world(device: Device = "cpu", angles: int = mpi3d.FACTOR_SIZES[-1]) -> World:
    """Every image of the data set `mpi3d`, which is downloaded if it is not on disk.

    Args:
        device: Where the images are stored.
        angles: Number of values of either joint, spread evenly over all 40.
    """
    pixels = mpi3d.open_images("toy")

    def read(factors: Tensor) -> Tensor:
        chosen = torch.from_numpy(pixels[mpi3d.index_of(factors).cpu().numpy()])
        return chosen.to(factors.device).permute(0, 3, 1, 2)

    return _world(read, pixels.shape[1], mpi3d.FACTOR_SIZES, angles, torch.device(device))


def _world(
    make: Callable[[Tensor], Tensor],
    side: int,
    all_sizes: tuple[int, ...],
    angles: int,
    device: torch.device,
) -> World:
    """A world of the images of ``make`` for factors (N, F), of which the last two are angles."""
    every = all_sizes[-1]
    if angles not in range(2, every + 1):
        raise ValueError(f"angles must be an integer from 2 to {every}, but got {angles!r}.")
    sizes = (*all_sizes[:-2], angles, angles)
    # The midpoints of equal parts.
    values = (2 * torch.arange(angles, device=device) + 1) * every // (2 * angles)
    images = torch.empty((prod(sizes), 3, side, side), dtype=torch.uint8, device=device)
    for number, part in enumerate(images.split(_CHUNK)):
        index = number * _CHUNK + torch.arange(len(part), device=device)
        factors = torch.stack(torch.unravel_index(index, sizes), -1)
        factors[:, -2:] = values[factors[:, -2:]]
        part.copy_(make(factors))
    return World(images, sizes)


@final
class PairSampler:
    """Samples pairs of images that share factors: the ``augment`` of a training program.

    The first image's factors are uniform. A pair shares a given number of factors; the second
    image's other factors are uniform among values that differ.

    It returns one pair per row of the batch: "first" and "second" are the images (B, C, H, W),
    "factors" their values (B, 2, F), "is_shared" (B, F) is true where these are equal, and "label"
    (B,) is a random factor that differs, or 0.

    Args:
        world: The images.
        shared: The number n_s of shared factors; "mixed" for 0, 1, 3 or 5 at random.
        which: "random": a new random set of factors for every pair; "fixed": the first n_s.
    """

    def __init__(
        self,
        world: World,
        shared: int | Literal["mixed"],
        which: Literal["fixed", "random"] = "random",
    ) -> None:
        self.world, self.which = world, which
        self.counts = MIXED_COUNTS if shared == "mixed" else (shared,)
        width, device = len(world.sizes), world.images.device
        if not all(count in range(width + 1) for count in self.counts):
            raise ValueError(
                f"shared must be an integer from 0 to {width}, or 'mixed' if there are 5 factors "
                f"or more, but got {shared!r}."
            )
        if which not in ("fixed", "random"):
            raise ValueError(f"which must be 'fixed' or 'random', but got {which!r}.")
        # One random integer per pair: its mixed-radix digits are the values of the first image, the
        # steps to those of the second, and the choice of a count.
        radices = (*world.sizes, *(size - 1 for size in world.sizes), len(self.counts))
        strides = [prod(radices[place + 1 :]) for place in range(len(radices))]
        self._total = prod(radices)
        # Created once, because copies from the CPU cannot be captured.
        self._radices, self._strides, self._sizes, self._counts = (
            torch.tensor(x, device=device) for x in (radices, strides, world.sizes, self.counts)
        )
        self._places = torch.arange(width, device=device)
        self.image_shape = tuple(world.images.shape[1:])

    def __call__(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        rows, width = next(iter(batch.values())).shape[0], len(self._sizes)
        place: dict[str, Any] = {"generator": generator, "device": self._sizes.device}
        number = torch.randint(self._total, (rows,), **place)
        digits = (number[..., None] // self._strides) % self._radices
        first, steps, option = digits.split([width, width, 1], dim=-1)
        count = self._counts[option.squeeze(-1)]
        # The positions of the smallest n_s numbers of a random permutation are a random subset, and
        # the position of its largest other number is a random other position.
        permutation = torch.rand(rows, width, **place).argsort(-1)
        ranks = self._places if self.which == "fixed" else permutation
        is_shared = ranks < count[:, None]
        second = torch.where(is_shared, first, (first + 1 + steps) % self._sizes)
        return {
            "first": self.world.images_of(first),
            "second": self.world.images_of(second),
            "label": permutation.masked_fill(is_shared, -1).argmax(-1) * (count < width),
            "factors": torch.stack([first, second], 1),
            "is_shared": is_shared,
        }

    def fingerprint(self) -> str:
        """A hash of 100 images of the world."""
        images = self.world.images
        some = torch.linspace(0, len(images) - 1, 100, dtype=torch.float64).long()
        name = f"{self.world.sizes} {self.counts}" + " fixed" * (self.which == "fixed")
        return fingerprint_tensors([(name, images[some.to(images.device)])])


@final
@dataclass(frozen=True, eq=False)
class OwnPairs:
    """Given pairs, sampled at random in training.

    Args:
        first: The first images, (P, C, H, W) in [0, 1].
        second: The second images, likewise.
        names: Names of the pairs; by default their indices.
    """

    first: Tensor
    second: Tensor
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_views(self.first, self.second)
        count = len(self.first)
        if not self.names:
            object.__setattr__(self, "names", tuple(map(str, range(count))))
        if len(self.names) != count:
            raise ValueError(
                f"names must be {count}, one for each pair, but got {len(self.names)}."
            )

    @property
    def image_shape(self) -> tuple[int, ...]:
        """C, H and W."""
        return tuple(self.first.shape[1:])

    def to(self, device: Device) -> "OwnPairs":
        """The same pairs on another device."""
        return replace(self, first=self.first.to(device), second=self.second.to(device))

    def __call__(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        rows = next(iter(batch.values())).shape[0]
        place: dict[str, Any] = {"generator": generator, "device": self.first.device}
        chosen = torch.randint(len(self.first), (rows,), **place)
        return {"first": self.first[chosen], "second": self.second[chosen]}

    def fingerprint(self) -> str:
        """A hash of all images."""
        return fingerprint_tensors([("first", self.first), ("second", self.second)])


Pairs = PairSampler | OwnPairs


def require_views(first: Any, second: Any) -> None:
    """Raise unless views are images (P, C, H, W) of one shape with values in [0, 1]."""
    views = {"first": first, "second": second}
    if (
        not all(isinstance(x, Tensor) and x.is_floating_point() for x in views.values())
        or first.dim() != 4
        or len(first) == 0
        or first.shape != second.shape
    ):
        raise ValueError(
            "first and second must be tensors of floating-point numbers of one shape "
            f"(P, C, H, W), but got {describe(first)} and {describe(second)}."
        )
    for name, images in views.items():
        require_unit_interval(name, images)


def load_pairs(path: str | Path, image_size: int | tuple[int, int] | None = None) -> OwnPairs:
    """Read pairs of images.

    Args:
        path: A folder of images named `<name>-1.png` and `<name>-2.png` (or `_1` and `_2`, or
            jpg); a folder of two folders `first` and `second` that hold images of the same names;
            or an npz file of the arrays `first` and `second`.
        image_size: Height and width to resize to; if None, all images must have one size.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(
            f"{path} does not exist; use arm, mpi3d, a folder of images or an npz file."
        )
    if path.is_dir():
        return _read_folder(path, image_size)
    arrays = own.read_arrays(path)
    if any(name not in arrays or arrays[name].ndim < 3 for name in ("first", "second")):
        found = ", ".join(f"{name} of shape {x.shape}" for name, x in arrays.items()) or "nothing"
        raise DataError(f"{path} should contain images `first` and `second`, but contains {found}.")
    first, second = (own.image_tensor(str(path), arrays[x]) for x in ("first", "second"))
    if image_size is not None:
        resize = partial(interpolate, size=image_size, mode="bilinear", antialias=True)
        first, second = resize(first).clamp_(0, 1), resize(second).clamp_(0, 1)
    return OwnPairs(first, second)


def _read_folder(folder: Path, image_size: int | tuple[int, int] | None) -> OwnPairs:
    files, pairs = own.image_paths(folder), dict[str, dict[str, int]]()
    for row, file in enumerate(files):
        inside = file.relative_to(folder).with_suffix("").as_posix()
        found = re.fullmatch(r"(first|second)/(.+)|([^/]+)[-_]([12])", inside)
        if found is None:
            raise DataError(
                f"{file} should be one of a pair, such as {folder / file.stem}-1{file.suffix} and "
                f"{file.stem}-2{file.suffix}, or be in one of two folders `first` and `second`."
            )
        views = pairs.setdefault(found[2] or found[3], {})
        view = {"1": "first", "2": "second"}.get(found[4], found[1])
        if view in views:
            raise DataError(f"{file} has the same name and number as {files[views[view]].name}.")
        views[view] = row
    for views in pairs.values():
        if len(views) == 1:
            (row,) = views.values()
            raise DataError(f"{files[row]} should have a partner, the other image of its pair.")
    names = tuple(sorted(pairs))
    # In the order of `image_paths`.
    images = own.load_folder(folder, image_size).train.inputs
    first, second = (images[[pairs[name][x] for name in names]] for x in ("first", "second"))
    return OwnPairs(first, second, names)
