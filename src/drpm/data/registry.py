"""Every data set by name, and the one function that loads them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from drpm.data import (
    arm,
    celeba,
    digits,
    fashion_mnist,
    mnist,
    mosaic,
    mpi3d,
    multimnist,
    own,
    stl10,
)
from drpm.data.errors import DataError
from drpm.data.options import check_options, nearest
from drpm.data.types import Dataset, DatasetSpec, Device

_MODULES = (digits, mnist, fashion_mnist, stl10, celeba, mpi3d, multimnist, mosaic, arm)

DATASETS: Mapping[str, DatasetSpec] = MappingProxyType(
    {module.SPEC.name: module.SPEC for module in _MODULES}
)


def spec_of(name: str) -> DatasetSpec:
    """The data set of that name."""
    if name not in DATASETS:
        raise DataError(f"There is no data set '{name}': {nearest(name, DATASETS)}")
    return DATASETS[name]


def load(
    name_or_path: str | Path, *, device: Device = "cpu", seed: int = 0, **options: Any
) -> Dataset:
    """Load a data set by name, or your own data from a file or a folder of images.

    Args:
        name_or_path: a name of the registry, or a path: .npy, .npz, .csv, .parquet or a folder.
        device: where the tensors go.
        seed: settles what is random in the making of a set.
        options: further options, named in the set's entry in the registry; those of your own
            data are the arguments of `drpm.data.own.load`.

    Example:
        >>> digits = load("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape
        (1442, 355, torch.Size([1, 8, 8]))
    """
    name = str(name_or_path)
    if name not in DATASETS and own.looks_like_path(name):
        check_options(options, own.OPTIONS, own.load, f"The data of {name}")
        return own.load(Path(name), device=device, seed=seed, **options)
    spec = spec_of(name)
    check_options(options, spec.options, spec.load, f"The data set '{name}'")
    return spec.load(device=device, seed=seed, **options)
