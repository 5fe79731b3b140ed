"""Users' arrays: npy and npz files of tables or images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.errors import DataError
from drpm.data.npz import DAMAGED
from drpm.data.tables import moments, table, targets_of
from drpm.data.types import Dataset, Split

_CHANNELS = (1, 3)
_INPUTS = ("inputs", "x", "X", "data", "images")
_LABELS = ("label", "labels", "y", "Y", "target", "targets")
_PARTS = ("x_train", "y_train", "x_test", "y_test")


def load_npy(path: Path) -> Dataset:
    """A table (N, columns) or images (N, H, W), (N, H, W, channels), (N, channels, H, W)."""
    loaded = _read(path)
    if not isinstance(loaded, np.ndarray):
        raise DataError(f"{path} should be an npy file, but is an npz file under that name.")
    return _dataset(str(path), loaded, None)


def load_npz(path: Path) -> Dataset:
    """Inputs and labels by their usual names, or a single array; or four arrays of two parts."""
    loaded = _read(path)
    if isinstance(loaded, np.ndarray):
        raise DataError(f"{path} should be an npz file, but is an npy file under that name.")
    if all(name in loaded for name in _PARTS):
        return _two_parts(path, loaded)
    labels = next((name for name in _LABELS if name in loaded), None)
    others = [name for name in loaded if name != labels]
    inputs = others[0] if len(others) == 1 else next((n for n in _INPUTS if n in others), None)
    if inputs is None:
        raise DataError(
            f"{path} should hold one array, or one named {', '.join(_INPUTS[:-1])} or "
            f"{_INPUTS[-1]} beside the labels, but holds {', '.join(loaded) or 'nothing'}."
        )
    return _dataset(str(path), loaded[inputs], loaded[labels] if labels else None)


def _read(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    try:
        # Opened here, because numpy leaves a damaged file open.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                members = {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error
    except MemoryError as error:
        raise DataError(f"{path} announces an array too large for the memory ({error}).") from error
    except DAMAGED as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        if "pickle" in reason or "Object arrays" in reason:
            reason = "it holds Python objects, which are never loaded, or is in another format"
        raise DataError(f"{path} is not a whole array of numbers ({reason}).") from error
    # Numpy hands out the bytes of what is no array.
    return {name: array for name, array in members.items() if isinstance(array, np.ndarray)}


def _dataset(source: str, inputs: NDArray[Any], labels: NDArray[Any] | None) -> Dataset:
    _refuse_labels(source, inputs, labels)
    if inputs.ndim == 2:
        columns = {f"column {number}": inputs[:, number - 1] for number in _numbers(inputs)}
        dataset = table(source, columns)
        if labels is None:
            return dataset
        inputs_tensor, preprocessing = dataset.train.inputs, dataset.preprocessing
        names = dataset.columns
    else:
        inputs_tensor, preprocessing, names = images(source, inputs), {}, ()
    targets, classes = _targets(source, labels)
    everything = Split(inputs_tensor, targets)
    return Dataset(source, everything, everything, classes, names, preprocessing)


def _two_parts(path: Path, arrays: dict[str, NDArray[Any]]) -> Dataset:
    x_train, y_train, x_test, y_test = (arrays[name] for name in _PARTS)
    _refuse_labels(str(path), x_train, y_train)
    _refuse_labels(str(path), x_test, y_test)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(
            f"{path} holds inputs of the shape {x_train.shape[1:]} in x_train, but "
            f"{x_test.shape[1:]} in x_test."
        )
    # The labels of both parts are numbered together; a table is standardised by its training part.
    targets, classes = _targets(str(path), np.concatenate([y_train, y_test]))
    train_targets = {name: target[: len(y_train)] for name, target in targets.items()}
    test_targets = {name: target[len(y_train) :] for name, target in targets.items()}
    if x_train.ndim != 2:
        return Dataset(
            str(path),
            Split(images(str(path), x_train), train_targets),
            Split(images(str(path), x_test), test_targets),
            classes,
        )
    train = _dataset(f"{path}, x_train", x_train, None)
    if x_test.dtype.kind not in "biuf" or not np.isfinite(x_test).all():
        raise DataError(f"{path} should hold finite numbers only, but x_test does not.")
    # In double precision, as the training part: large values may differ by little.
    mean, std = moments(f"{path}, x_train", x_train.astype(np.float64), train.columns)
    with np.errstate(over="ignore"):
        test = torch.from_numpy(((x_test.astype(np.float64) - mean) / std).astype(np.float32))
    if not test.isfinite().all():
        raise DataError(
            f"{path} should hold numbers of one size in x_train and x_test, but some in x_test are "
            "too large for single precision beside those in x_train."
        )
    return Dataset(
        str(path),
        Split(train.train.inputs, train_targets),
        Split(test, test_targets),
        classes,
        train.columns,
        train.preprocessing,
    )


def images(source: str, array: NDArray[Any]) -> Tensor:
    """Images (N, channels, H, W) in [0, 1] from bytes, or from numbers that are in it already."""
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
    if array.dtype.kind not in "bf":
        raise DataError(
            f"{source} should hold images of bytes or of numbers from 0 to 1, but holds "
            f"{array.dtype}."
        )
    if not np.isfinite(array).all():
        raise DataError(f"{source} has missing or infinite values in its images.")
    if array.min() < 0 or array.max() > 1:
        raise DataError(
            f"{source} should hold images of bytes or of numbers from 0 to 1, but its numbers go "
            f"from {array.min():g} to {array.max():g}."
        )
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def _numbers(inputs: NDArray[Any]) -> range:
    return range(1, inputs.shape[1] + 1)


def _refuse_labels(source: str, inputs: NDArray[Any], labels: NDArray[Any] | None) -> None:
    if inputs.ndim == 0:
        raise DataError(f"{source} should hold a table or images, but holds a single number.")
    if labels is not None and (labels.ndim != 1 or len(labels) != len(inputs)):
        raise DataError(
            f"{source} should hold one label for each of its {len(inputs):,} inputs, but its "
            f"labels have the shape {labels.shape}."
        )


def _targets(
    source: str, labels: NDArray[Any] | None
) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    if labels is None:
        return {}, {}
    target, classes = targets_of(source, labels)
    return {"label": target}, {"label": classes} if classes else {}
