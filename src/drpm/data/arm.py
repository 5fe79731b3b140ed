"""A drawn arm with an object at its end: every picture follows from seven known factors.

The factors and their sizes are those of MPI3D (Gondal et al., 2019), whose pictures are of a real
arm, so that what is tried on one set can be tried on the other. These pictures need no file: any
vector of factors becomes an image at once, on any device.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from drpm.data import arm_drawing
from drpm.data import arm_scene as scene
from drpm.data.errors import DataError
from drpm.data.types import Dataset, DatasetSpec, Device, Split

FACTOR_NAMES = (
    "object_color",
    "object_shape",
    "object_size",
    "camera_height",
    "background_color",
    "horizontal_axis",
    "vertical_axis",
)
FACTOR_SIZES = (
    len(scene.OBJECT_COLOURS),
    len(scene.SHAPES),
    len(scene.SIZES),
    len(scene.HEIGHTS),
    len(scene.ARC_COLOURS),
    scene.NUM_ANGLES,
    scene.NUM_ANGLES,
)
# What the values of the factors are called; an angle is only a number.
CLASSES = MappingProxyType(
    {
        "object_color": tuple(scene.OBJECT_COLOURS),
        "object_shape": tuple(scene.SHAPES),
        "object_size": tuple(scene.SIZES),
        "camera_height": tuple(scene.HEIGHTS),
        "background_color": tuple(scene.ARC_COLOURS),
        "horizontal_axis": tuple(map(str, range(scene.NUM_ANGLES))),
        "vertical_axis": tuple(map(str, range(scene.NUM_ANGLES))),
    }
)
NUM_IMAGES = math.prod(FACTOR_SIZES)

MIN_IMAGE_SIZE = 16

# Images drawn at once. On a CPU what is being drawn should stay in the cache; elsewhere few large
# operations are better than many small ones.
_CHUNK_CPU = 64
_CHUNK_OTHER = 2048

_SHAPE = FACTOR_NAMES.index("object_shape")


@torch.no_grad()
def render(factors: Tensor, *, image_size: int = 64, device: Device | None = None) -> Tensor:
    """Draw one image for each vector of factors.

    Args:
        factors: (N, 7) integers, in the order of `FACTOR_NAMES`, each from 0 to its size less 1.
        image_size: the side of the images in pixels.
        device: where to draw, and where the images lie; the factors' own by default.

    Returns:
        The images, (N, 3, image_size, image_size), float32 in [0, 1].

    Example:
        >>> import torch
        >>> red_cube = torch.tensor([[2, 1, 1, 0, 0, 20, 10]])
        >>> render(red_cube).shape
        torch.Size([1, 3, 64, 64])
    """
    _check(factors)
    if image_size < MIN_IMAGE_SIZE:
        raise DataError(f"An image of the arm needs {MIN_IMAGE_SIZE} pixels, but got {image_size}.")
    factors = factors.to(factors.device if device is None else device, torch.int64)
    chunk = _CHUNK_CPU if factors.device.type == "cpu" else _CHUNK_OTHER
    shape = (len(factors), 3, image_size, image_size)
    images = torch.empty(shape, dtype=torch.float32, device=factors.device)
    # The solids have different numbers of faces, so each is drawn on its own.
    shapes = factors[:, _SHAPE]
    counts: list[int] = torch.bincount(shapes, minlength=FACTOR_SIZES[_SHAPE]).tolist()
    # Half precision, fine for training, would shift the edges.
    with _one_thread(), torch.autocast(factors.device.type, enabled=False):
        for solid, members in enumerate(shapes.argsort(stable=True).split(counts)):
            for part in members.split(chunk):
                if len(part):
                    images[part] = arm_drawing.draw(factors[part], solid, image_size)
    return images


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch work in the calling thread alone.

    The operations on one chunk take microseconds each. A second thread gains a few per cent where
    it has a core to itself; where it has to share one, waiting for it costs ten times the work.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def factors_of(index: Tensor) -> Tensor:
    """The factors (..., 7) at each index (...) of the grid, the last factor changing fastest."""
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < NUM_IMAGES:
        wrong = int(index.min()) if int(index.min()) < 0 else int(index.max())
        raise DataError(f"An index of the arm lies from 0 to {NUM_IMAGES - 1}, but got {wrong}.")
    return torch.stack(torch.unravel_index(index.long(), FACTOR_SIZES), dim=-1)


def index_of(factors: Tensor) -> Tensor:
    """The index (N,) of each vector of factors (N, 7): the inverse of `factors_of`."""
    _check(factors)
    index = torch.zeros(len(factors), dtype=torch.int64, device=factors.device)
    for column, size in enumerate(FACTOR_SIZES):
        index = index * size + factors[:, column]
    return index


def sample_factors(n: int, generator: torch.Generator | None = None) -> Tensor:
    """Vectors of factors (n, 7), independent and uniform, on the generator's device."""
    device = torch.device("cpu") if generator is None else generator.device
    index = torch.randint(NUM_IMAGES, (n,), generator=generator, device=device)
    return factors_of(index)


def _check(factors: Tensor) -> None:
    if factors.ndim != 2 or factors.shape[1] != len(FACTOR_NAMES):
        raise DataError(
            f"Factors of the arm have the shape (N, {len(FACTOR_NAMES)}), "
            f"but got {tuple(factors.shape)}."
        )
    if factors.is_floating_point() or factors.is_complex() or factors.dtype == torch.bool:
        raise DataError(f"Factors of the arm are integers, but got {factors.dtype}.")
    if len(factors) == 0:
        return
    bad = (factors < 0) | (factors >= torch.tensor(FACTOR_SIZES, device=factors.device))
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise DataError(
            f"The factor '{FACTOR_NAMES[column]}' lies from 0 to {FACTOR_SIZES[column] - 1}, "
            f"but is {int(factors[row, column])} in row {row}."
        )


def load(
    *, device: Device = "cpu", seed: int = 0, num_train: int = 10_000, num_test: int = 5_000
) -> Dataset:
    """Images (3, 64, 64) of factors drawn from the grid, none twice; the targets are the factors.

    Args:
        device: where to draw them. The factors are the same on every device.
        seed: settles which points of the grid are drawn.
        num_train: of training images, each 48 KiB.
        num_test: of test images.
    """
    if num_train < 1 or num_test < 1:
        raise DataError(
            "The data set 'arm' needs at least one training and one test image, "
            f"but got num_train={num_train} and num_test={num_test}."
        )
    if num_train + num_test > NUM_IMAGES:
        raise DataError(
            f"The data set 'arm' has {NUM_IMAGES:,} different images, "
            f"but num_train and num_test ask for {num_train + num_test:,}."
        )
    generator = torch.Generator().manual_seed(seed)
    points = torch.randperm(NUM_IMAGES, generator=generator)[: num_train + num_test]
    train, test = (
        _split(factors_of(index).to(device)) for index in points.split([num_train, num_test])
    )
    return Dataset("arm", train, test, classes=CLASSES)


def _split(factors: Tensor) -> Split:
    targets = {name: factors[:, k].contiguous() for k, name in enumerate(FACTOR_NAMES)}
    return Split(render(factors), targets)


def save_factor_sheet(path: Path, *, columns: int = 8) -> None:
    """Write a picture with one row per factor, along which that factor alone changes.

    Factors with more values than there are columns are shown at evenly spaced ones.
    """
    from matplotlib.figure import Figure

    usual = torch.tensor([3, 4, 1, 1, 0, 27, 12])
    rows = len(FACTOR_NAMES)
    figure = Figure(figsize=(1.3 * columns + 1.7, 1.45 * rows), dpi=80)
    grid = figure.subplots(rows, columns)
    for cell in grid.flat:
        cell.axis("off")
    for row, (name, size) in enumerate(zip(FACTOR_NAMES, FACTOR_SIZES, strict=True)):
        values = torch.linspace(0, size - 1, min(size, columns)).round().long()
        factors = usual.repeat(len(values), 1)
        factors[:, row] = values
        for column, image in enumerate(render(factors, image_size=192)):
            cell = grid[row, column]
            cell.imshow(image.permute(1, 2, 0).numpy(), interpolation="lanczos")
            cell.set_title(CLASSES[name][int(values[column])], fontsize=9, pad=3)
        label = f"{name.replace('_', ' ')}\n{size} values"
        place = {"ha": "right", "va": "center", "transform": grid[row, 0].transAxes}
        grid[row, 0].text(-0.08, 0.5, label, fontsize=10, **place)
    figure.subplots_adjust(0.13, 0.005, 0.995, 0.97, wspace=0.05, hspace=0.16)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


SPEC = DatasetSpec(
    name="arm",
    title="A drawn arm that holds an object: seven known factors, no file",
    source="drawn by this package; factors as in MPI3D (Gondal et al., 2019)",
    licence="Apache-2.0",
    shapes=(
        f"any of {NUM_IMAGES:,} images of 3x64x64, 7 factors "
        f"({' x '.join(map(str, FACTOR_SIZES))} values)"
    ),
    load=load,
    options=("num_train", "num_test"),
    sheet_options=MappingProxyType({"num_train": 100, "num_test": 1}),
)
