"""Users' own data: tables, arrays and folders of images."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data import image_folder, tables
from drpm.data.types import DataError, Dataset, Device, Split, reason

SUFFIXES = (".npy", ".npz", ".csv", ".parquet")

_CHANNELS = (1, 3)
_INPUTS = ("inputs", "x", "X", "data", "images")
_LABELS = ("label", "labels", "y", "Y", "target", "targets")
_PARTS = ("x_train", "y_train", "x_test", "y_test")


def looks_like_path(name: str | Path) -> bool:
    """Whether a name can only be meant as a path."""
    if not str(name):
        return False
    path = Path(name).expanduser()
    return path.exists() or path.suffix.lower() in SUFFIXES or len(path.parts) > 1


def load(
    path: Path,
    *,
    device: Device = "cpu",
    seed: int = 0,
    label_column: str | None = None,
    header: bool = True,
    image_size: int | tuple[int, int] | None = None,
) -> Dataset:
    """Load a file or a folder. If it has no split of its own, ``test`` is ``train``.

    Args:
        path: .npy, .npz, .csv, .parquet, or a folder of images.
        device: Where the tensors go.
        seed: Has no effect.
        label_column: Of tables: the target; by default ``label`` if there is such a column.
        header: Of CSV files: whether the first line names the columns.
        image_size: Of folders: the height and width to resize to.
    """
    path = path.expanduser()
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    suffix = "folder" if path.is_dir() else path.suffix.lower()
    for option, given, used_by in (
        ("label_column", label_column is not None, (".csv", ".parquet")),
        ("header", not header, (".csv",)),
        ("image_size", image_size is not None, ("folder",)),
    ):
        if given and suffix not in used_by:
            raise DataError(f"{path} has no use for the option {option}.")
    if suffix == "folder":
        dataset = image_folder.load_folder(path, image_size)
    elif suffix == ".csv":
        dataset = tables.table(str(path), tables.read_csv(path, header=header), label_column)
    elif suffix == ".parquet":
        dataset = tables.table(str(path), tables.read_parquet(path), label_column)
    elif suffix in SUFFIXES:
        dataset = _arrays(path)
    else:
        raise DataError(
            f"{path} should be a folder of images or end in {', '.join(SUFFIXES[:-1])} or "
            f"{SUFFIXES[-1]}."
        )
    return dataset.to(device)


def _arrays(path: Path) -> Dataset:
    """A table or images: one array, inputs and labels by their usual names, or two splits."""
    arrays = read_arrays(path)
    if all(name in arrays for name in _PARTS):
        return _two_splits(path, *(arrays[name] for name in _PARTS))
    labels = next((name for name in _LABELS if name in arrays), None)
    others = [name for name in arrays if name != labels]
    inputs = others[0] if len(others) == 1 else next((n for n in _INPUTS if n in others), None)
    if inputs is None:
        raise DataError(
            f"{path} should hold one array, or one named {', '.join(_INPUTS[:-1])} or "
            f"{_INPUTS[-1]} beside the labels, but holds {', '.join(arrays) or 'nothing'}."
        )
    dataset = _inputs(str(path), arrays[inputs])
    if labels is None:
        return dataset
    (targets,), classes = _targets(str(path), (arrays[inputs], arrays[labels]))
    whole = Split(dataset.train.inputs, targets)
    return Dataset(str(path), whole, whole, classes, dataset.columns, dataset.preprocessing)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an npy or npz file by name; a single one is called ``inputs``."""
    try:
        # Opened here, because numpy leaves a damaged file open.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"inputs": loaded}
            with loaded:
                return {name: np.asarray(loaded[name]) for name in loaded.files}
    except Exception as error:  # numpy and zipfile raise many kinds on damaged files
        raise DataError(f"{path} cannot be read ({reason(error)}).") from error


def _inputs(source: str, array: NDArray[Any]) -> Dataset:
    if array.ndim == 2:
        names = [f"column {number + 1}" for number in range(array.shape[1])]
        return tables.table(source, pd.DataFrame(array, columns=names))
    whole = Split(image_tensor(source, array))
    return Dataset(source, whole, whole)


def _targets(
    source: str, *pairs: tuple[NDArray[Any], NDArray[Any]]
) -> tuple[list[dict[str, Tensor]], dict[str, tuple[str, ...]]]:
    """The targets of each pair of inputs and labels, with the classes numbered together."""
    for inputs, labels in pairs:
        if labels.ndim != 1 or labels.shape != inputs.shape[:1]:
            raise DataError(
                f"{source} should hold one label for each input, but its inputs have the shape "
                f"{inputs.shape} and its labels {labels.shape}."
            )
    together = np.concatenate([labels for _, labels in pairs])
    target, classes = tables.targets_of(source, together, tables.LABEL)
    parts = target.split([len(labels) for _, labels in pairs])
    return [{"label": part} for part in parts], {"label": classes} if classes else {}


def _two_splits(
    path: Path,
    x_train: NDArray[Any],
    y_train: NDArray[Any],
    x_test: NDArray[Any],
    y_test: NDArray[Any],
) -> Dataset:
    (train_targets, test_targets), classes = _targets(
        str(path), (x_train, y_train), (x_test, y_test)
    )
    train = _inputs(f"{path}, x_train", x_train)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(
            f"{path} holds inputs of the shape {x_train.shape[1:]} in x_train, but "
            f"{x_test.shape[1:]} in x_test."
        )
    if x_train.ndim == 2:
        mean, std = (train.preprocessing[name].numpy() for name in ("mean", "std"))
        with np.errstate(over="ignore"):
            test = torch.from_numpy(((x_test.astype(np.float64) - mean) / std).astype(np.float32))
        if not test.isfinite().all():
            raise DataError(f"{path} should hold finite numbers of the scale of x_train in x_test.")
    else:
        test = image_tensor(f"{path}, x_test", x_test)
    return Dataset(
        str(path),
        Split(train.train.inputs, train_targets),
        Split(test, test_targets),
        classes,
        train.columns,
        train.preprocessing,
    )


def image_tensor(source: str, array: NDArray[Any]) -> Tensor:
    """Images (N, channels, H, W) in [0, 1] from bytes, or from floats in [0, 1].

    Args:
        source: The file that errors name.
        array: (N, H, W), (N, channels, H, W) or (N, H, W, channels).
    """
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in _CHANNELS and array.shape[3] in _CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in _CHANNELS or 0 in array.shape:
        raise DataError(
            f"{source} should hold a table (rows, columns) or images (number, height, width), "
            f"with 1 or 3 channels before or after the last two, but has the shape {array.shape}."
        )
    if len(array) < 2:
        raise DataError(f"{source} should hold at least two images, but holds one.")
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array)).float().div_(255)
    # A NaN is not between the two.
    if array.dtype.kind not in "bf" or not (array.min() >= 0 and array.max() <= 1):
        raise DataError(
            f"{source} should hold images of bytes or of numbers from 0 to 1, but holds "
            f"{array.dtype} from {array.min()} to {array.max()}."
        )
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))
