"""Loading data sets by name, and users' own files."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from drpm.data import own
from drpm.data.catalogue import DATASETS, DatasetSpec, loader_options
from drpm.data.types import DataError, Dataset, Device, fingerprint


def spec_of(name: str) -> DatasetSpec:
    """The data set of that name."""
    if name not in DATASETS:
        raise DataError(f"There is no data set '{name}': {_did_you_mean(name, DATASETS)}")
    return DATASETS[name]


def load(
    name_or_path: str | Path, *, device: Device = "cpu", seed: int = 0, **options: Any
) -> Dataset:
    """Load a data set by name, or your own data from a file or a folder of images.

    Args:
        name_or_path: A name of the registry, or a path: .npy, .npz, .csv, .parquet or a folder.
        device: Where the tensors are stored.
        seed: Seed of generated data sets.
        options: Options of the data set; for your own data, the arguments of
            :func:`drpm.data.own.load`.

    Example:
        >>> digits = load("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape
        (1442, 355, torch.Size([1, 8, 8]))
    """
    name = str(name_or_path)
    if name not in DATASETS and own.looks_like_path(name):
        _check_options(options, own.load, f"The data of {name}")
        return own.load(Path(name), **options).to(device)
    spec = spec_of(name)
    _check_options(options, spec.load, f"The data set '{name}'")
    taken = signature(spec.load).parameters
    both = {"device": device, "seed": seed}
    options |= {name: value for name, value in both.items() if name in taken}
    return spec.load(**options).to(device)


def load_for_prediction(name: str, **options: Any) -> Dataset:
    """Like :func:`load`, for a trained model: the user's own tables keep their values.

    They are in double precision and without labels, and one example is enough.
    """
    if name in DATASETS or not own.looks_like_path(name):
        return load(name, **options)
    _check_options(options, own.load, f"The data of {name}")
    return own.load(Path(name), True, **options)


def file_names(name: str, count: int) -> list[str]:
    """The file of each of ``count`` examples of a folder of images; empty for other data."""
    folder = Path(name).expanduser()
    if name in DATASETS or not folder.is_dir():
        return []
    names = [path.relative_to(folder).as_posix() for path in own.image_paths(folder)]
    if len(names) != count:
        raise DataError(f"The folder {folder} has changed while it was read; try again.")
    return names


def content_hash(name: str, data: Dataset) -> str:
    """The fingerprint of a user's own data; empty for a data set of the registry."""
    return "" if name in DATASETS else fingerprint(data)


def _check_options(options: Mapping[str, Any], load: Callable[..., Dataset], owner: str) -> None:
    """Refuse unknown options, and values that do not match the annotations of the loader."""
    known = loader_options(load)
    for name, value in options.items():
        if name not in known:
            raise DataError(f"{owner} has no option '{name}': {_did_you_mean(name, known)}")
        given = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        try:
            TypeAdapter(known[name]).validate_python(given, strict=True)
        except ValidationError as error:
            expected = error.errors()[0]["msg"].removeprefix("Input ")
            raise DataError(f"{owner}: the option '{name}' {expected}, not {value!r}.") from None


def _did_you_mean(word: str, valid: Iterable[str]) -> str:
    names = list(valid)
    close = difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.55)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there are {', '.join(names)}." if names else "it has none."
