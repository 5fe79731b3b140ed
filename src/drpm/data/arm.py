"""A rendered arm that holds an object: seven known factors determine every image.

The factors and their sizes are those of MPI3D (Gondal et al., 2019), whose images show a real arm.
These images need no file: any factor vector is rendered on demand, on any device.
"""

import torch
from torch import Tensor

from drpm.data import arm_drawing
from drpm.data.mpi3d import FACTOR_NAMES as FACTOR_NAMES
from drpm.data.mpi3d import FACTOR_SIZES as FACTOR_SIZES
from drpm.data.mpi3d import FACTORS, NUM_IMAGES, check_factors, draw_indices, factor_targets
from drpm.data.mpi3d import factors_of as factors_of
from drpm.data.mpi3d import index_of as index_of
from drpm.data.types import DataError, Dataset, Device, Split

MIN_IMAGE_SIZE = 16

# Images drawn at once. On a CPU they should fit into the cache.
_CHUNK_CPU = 64
_CHUNK_OTHER = 2048

_SHAPE = FACTOR_NAMES.index("object_shape")


@torch.no_grad()
def render(factors: Tensor, *, image_size: int = 64) -> Tensor:
    """Draw one image for each factor vector, on the device of the factors.

    Args:
        factors: (N, 7) integers, in the order of ``FACTOR_NAMES``, each from 0 to its size minus 1.
        image_size: The side of the images in pixels.

    Returns:
        The images, (N, 3, image_size, image_size), float32 in [0, 1].

    Example:
        >>> import torch
        >>> red_cube = torch.tensor([[2, 1, 1, 0, 0, 20, 10]])
        >>> render(red_cube).shape
        torch.Size([1, 3, 64, 64])
    """
    check_factors(factors)
    if image_size < MIN_IMAGE_SIZE:
        raise DataError(f"image_size must be at least {MIN_IMAGE_SIZE}, but got {image_size}.")
    factors = factors.long()
    chunk = _CHUNK_CPU if factors.device.type == "cpu" else _CHUNK_OTHER
    shape = (len(factors), 3, image_size, image_size)
    images = torch.empty(shape, dtype=torch.float32, device=factors.device)
    # The solids have different numbers of faces, so each is drawn on its own.
    shapes = factors[:, _SHAPE]
    counts: list[int] = torch.bincount(shapes, minlength=FACTOR_SIZES[_SHAPE]).tolist()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the operations on one chunk take microseconds each
    try:
        # Half precision, fine for training, would shift the edges.
        with torch.autocast(factors.device.type, enabled=False):
            for solid, members in enumerate(shapes.argsort(stable=True).split(counts)):
                for part in members.split(chunk) if len(members) else ():
                    images[part] = arm_drawing.draw(factors[part], solid, image_size)
    finally:
        torch.set_num_threads(threads)
    return images


def sample_factors(n: int, generator: torch.Generator | None = None) -> Tensor:
    """Uniform factor vectors (n, 7), on the device of the generator."""
    device = torch.device("cpu") if generator is None else generator.device
    index = torch.randint(NUM_IMAGES, (n,), generator=generator, device=device)
    return factors_of(index)


def load(
    *, device: Device = "cpu", seed: int = 0, num_train: int = 10_000, num_test: int = 5_000
) -> Dataset:
    """Images (3, 64, 64) of factors sampled without replacement; the targets are the factors.

    Args:
        device: Where to draw them. The factors are the same on every device.
        seed: Seed of the sampled factors.
        num_train: The number of training images.
        num_test: The number of test images.
    """
    drawn = draw_indices(seed, num_train, num_test)
    vectors = [factors_of(indices).to(device) for indices in drawn]
    train, test = (Split(render(each), factor_targets(each)) for each in vectors)
    return Dataset("arm", train, test, classes=FACTORS)
