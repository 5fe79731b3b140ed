"""Pairs of images that share some of their generative factors.

Pairs are made on the device, as many as a training step asks for: whatever a step calls is made of
operations whose shapes do not depend on values and that read nothing back, so that it can be
captured in a CUDA graph, compiled, and mapped over stacked runs.
"""

import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from drpm.data import arm, array_files, image_folder, mpi3d
from drpm.data.errors import DataError
from drpm.data.types import Device

Shared = int | Sequence[int] | Literal["mixed"]
"""How many factors a pair shares; of several numbers, each pair takes one at random."""

MIXED: Final = (0, 1, 3, 5)

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
    pixels = mpi3d.open_images(variant).pixels

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

    def __init__(self, sizes: Sequence[int], shared: Shared, device: Device = "cpu") -> None:
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
    shared: Shared,
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

    def __init__(self, world: World, shared: Shared) -> None:
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


class OwnPairs(NamedTuple):
    """A user's own pairs.

    first: The first images, (P, C, H, W) in [0, 1].
    second: The second images, likewise.
    names: What each pair is called.
    """

    first: Tensor
    second: Tensor
    names: tuple[str, ...]


@final
class OwnSampler:
    """Own pairs in place of a batch, for the ``augment`` of a training program.

    It gives as many pairs as the batch has rows, each of them any of those that there are, so that
    training takes as many steps from few of them as from many.

    Arguments:
        pairs: The pairs.
        device: Where they go.
    """

    def __init__(self, pairs: OwnPairs, device: Device = "cpu") -> None:
        self.first, self.second = pairs.first.to(device), pairs.second.to(device)

    def __call__(
        self, batch: Mapping[str, Tensor], generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        rows = next(iter(batch.values())).shape[0]
        place: dict[str, Any] = {"generator": generator, "device": self.first.device}
        chosen = torch.randint(len(self.first), (rows,), **place)
        return {"first": self.first[chosen], "second": self.second[chosen]}


def require_views(first: Tensor, second: Tensor) -> None:
    """Refuse what no model can take for the images of pairs.

    Arguments:
        first: The first images, (P, C, H, W) in [0, 1].
        second: The second images, likewise.
    """
    for name, images in (("first", first), ("second", second)):
        if not isinstance(images, Tensor):
            raise ValueError(f"{name} must be a tensor, but got {type(images).__name__}.")
        if not images.is_floating_point():
            raise ValueError(f"{name} must hold floating numbers, but got {images.dtype}.")
        if images.dim() != 4:
            raise ValueError(
                f"{name} must have the shape (P, C, H, W), but got {tuple(images.shape)}."
            )
        # Asked this way round, what is not a number is refused as well.
        if not ((images >= 0) & (images <= 1)).all():
            raise ValueError(
                f"{name} must have values from 0 to 1, but they go from {images.min():g} to "
                f"{images.max():g}."
            )
    if len(first) != len(second):
        raise ValueError(
            f"second must hold {len(first)} images as first does, but got {len(second)}."
        )


def load_pairs(path: str | Path, image_size: int | tuple[int, int] | None = None) -> OwnPairs:
    """Read pairs of images.

    Arguments:
        path: A folder of images named `<name>-1.png` and `<name>-2.png` (or `_1` and `_2`, or
            jpg); a folder of two folders `first` and `second` that hold images of the same names;
            or an npz file of the arrays `first` and `second`.
        image_size: The height and width to resize to; all must have one size where it is None.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(
            f"{path} does not exist; pairs come from arm, mpi3d, a folder of images or an npz file."
        )
    if path.is_dir():
        return _pairs_of_folder(path, image_size)
    if path.suffix.lower() == ".npz":
        return _pairs_of_arrays(path, image_size)
    raise DataError(f"{path} should be a folder of images or an npz file.")


def _pairs_of_folder(folder: Path, image_size: int | tuple[int, int] | None) -> OwnPairs:
    files = _images_in(folder)
    if files:
        views = [_name_and_view(file) for file in files]
    else:
        within = {
            inner.name: _images_in(inner) for inner in sorted(folder.iterdir()) if inner.is_dir()
        }
        holding = [name for name, images in within.items() if images]
        if not holding:
            raise DataError(
                f"{folder} should hold pairs of images ({', '.join(sorted(image_folder.SUFFIXES))})"
                ", or folders `first` and `second` of images, but holds none."
            )
        if holding != ["first", "second"]:
            raise DataError(
                f"{folder} should have images in two folders, `first` and `second`, but has them "
                f"in {', '.join(holding)}."
            )
        files = [file for name in holding for file in within[name]]
        views = [(file.stem, holding.index(file.parent.name)) for file in files]
    rows: dict[tuple[str, int], int] = {}
    for row, key in enumerate(views):
        if key in rows:
            raise DataError(f"{files[row]} has the name and number of {files[rows[key]].name}.")
        rows[key] = row
    for (name, view), row in rows.items():
        if (name, 1 - view) not in rows:
            other = ("first", "second")[1 - view]
            raise DataError(
                f"{files[row]} should have a partner, but its pair has no {other} image."
            )
    names = tuple(sorted({name for name, _ in rows}))
    # It reads the images in the order in which they were listed here.
    images = image_folder.load_folder(folder, image_size).train.inputs
    first, second = (images[[rows[name, view] for name in names]] for view in (0, 1))
    return OwnPairs(first, second, names)


def _images_in(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in image_folder.SUFFIXES and not file.name.startswith(".")
    )


def _name_and_view(file: Path) -> tuple[str, int]:
    found = re.fullmatch(r"(.+)[-_]([12])", file.stem)
    if found is None:
        raise DataError(
            f"{file} should be named as one of a pair, such as {file.stem}-1{file.suffix} or "
            f"{file.stem}-2{file.suffix}."
        )
    return found[1], int(found[2]) - 1


def _pairs_of_arrays(path: Path, image_size: int | tuple[int, int] | None) -> OwnPairs:
    arrays = _read_npz(path)
    missing = [name for name in ("first", "second") if name not in arrays]
    if missing:
        raise DataError(
            f"{path} should hold the arrays `first` and `second`, but holds "
            f"{', '.join(arrays) or 'nothing'}."
        )
    first, second = arrays["first"], arrays["second"]
    if first.shape != second.shape or first.dtype != second.dtype:
        raise DataError(
            f"{path} should hold two arrays of one shape and type, but `first` is {first.dtype} of "
            f"the shape {first.shape} and `second` {second.dtype} of the shape {second.shape}."
        )
    if first.ndim < 3:
        raise DataError(f"{path} should hold images, but `first` has the shape {first.shape}.")
    # Together, because a single image would be refused.
    images = array_files.images(str(path), np.concatenate([first, second]))
    if image_size is not None:
        # As images of a folder are resized: each new pixel is a mean over all that it covers.
        images = interpolate(images, image_size, mode="bilinear", antialias=True).clamp_(0, 1)
    names = tuple(map(str, range(len(first))))
    return OwnPairs(images[: len(first)], images[len(first) :], names)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opened here, because numpy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (AttributeError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a whole npz file of numbers.") from error


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


def _require_counts(shared: Shared, num_factors: int) -> tuple[int, ...]:
    if shared == "mixed":
        counts: tuple[Any, ...] = MIXED
    else:
        counts = (shared,) if isinstance(shared, int | str) else tuple(shared)
    if not counts or not all(type(n) is int and 0 <= n <= num_factors for n in counts):
        raise ValueError(
            f"shared must be a whole number from 0 to {num_factors}, several of them, or 'mixed' "
            f"where there are {max(MIXED)} factors or more, but got {shared!r}."
        )
    return counts
