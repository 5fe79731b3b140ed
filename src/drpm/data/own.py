"""Users' own data: tables, arrays and folders of images."""

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from drpm.data.files import track
from drpm.data.types import DataError, Dataset, Split, column_scales, reason

SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

_INPUTS = ("inputs", "x", "X", "data", "images")
_LABELS = ("label", "labels", "y", "Y", "target", "targets")
_MISSING = ["?", "-", "na", "none", "NONE", "NAN", "NaT"]  # in addition to those of pandas


def load(
    path: Path,
    for_prediction: bool = False,
    *,
    label_column: str | None = None,
    header: bool = True,
    image_size: int | tuple[int, int] | None = None,
    standardize: bool = True,
) -> Dataset:
    """Load a file or a folder; if it has no split, ``test`` is ``train``.

    Args:
        path: .npy, .npz, .csv, .parquet, or a folder of images.
        for_prediction: Whether the data is input for a trained model.
        label_column: For tables: the target; by default ``label`` if that column exists.
        header: For CSV files: whether the first line has the column names.
        image_size: For folders: the height and width to resize to.
        standardize: For tables: whether to center each column and divide it by its scale.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    suffix = "folder" if path.is_dir() else path.suffix.lower()
    for option, given, used_by in (
        ("label_column", label_column is not None, (".csv", ".parquet")),
        ("header", not header, (".csv",)),
        ("image_size", image_size is not None, ("folder",)),
    ):
        if given and suffix not in used_by:
            raise DataError(f"{path} does not support the option {option}.")
    scaling = None if for_prediction else standardize
    if suffix == "folder":
        data = load_folder(path, image_size)
    elif suffix in (".csv", ".parquet"):
        frame = read_csv(path, header=header) if suffix == ".csv" else read_parquet(path)
        data = table(str(path), frame, label_column, scaling)
    elif suffix in SUFFIXES:
        data = _load_arrays(path, scaling)
    else:
        raise DataError(f"{path} should be a folder of images or end in {', '.join(SUFFIXES)}.")
    if len(data.train) < 2 and not for_prediction:
        raise DataError(f"{path} should contain at least two examples, but contains one.")
    return data


def read_csv(path: Path, *, header: bool = True) -> pd.DataFrame:
    """The columns of a CSV file as strings; numbered without a header."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = next(filter(str.strip, file), "")
        # As strings, because Python converts them exactly and pandas does not.
        frame = pd.read_csv(
            path,
            sep=max(",;\t", key=first.count),
            header=None,
            dtype=object,
            na_values=_MISSING,
            skipinitialspace=True,
            encoding="utf-8-sig",
        ).dropna(how="all")
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} is empty.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8 ({error.reason}).") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as CSV ({reason(error)}).") from error
    if not header:
        return frame.set_axis([f"column {number + 1}" for number in frame.columns], axis=1)
    names = [str(name).strip() for name in frame.iloc[0].fillna("")]
    if pd.to_numeric(pd.Series(names), errors="coerce").notna().all():
        raise DataError(
            f"{path} should name its columns in the first line, but that holds only numbers: add "
            "the names, or set header to false (on the command line -o header=false)."
        )
    if "" in names:
        raise DataError(f"{path} has no name for its column {names.index('') + 1}.")
    if len(set(names)) < len(names):
        name = max(names, key=names.count)
        raise DataError(f"{path} has more than one column named '{name}'.")
    return frame.iloc[1:].set_axis(names, axis=1)


def read_parquet(path: Path) -> pd.DataFrame:
    """The columns of a Parquet file, through pyarrow."""
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except ImportError as error:
        raise DataError(
            f"{path} needs the package pyarrow to be read: install it with pip install pyarrow."
        ) from error
    except Exception as error:  # including errors of pyarrow, which may not be installed
        raise DataError(f"{path} cannot be read as Parquet ({reason(error)}).") from error


def table(
    source: str,
    columns: pd.DataFrame | Mapping[str, Any],
    label_column: str | None = None,
    standardize: bool | None = True,
    num_train: int | None = None,
) -> Dataset:
    """A data set from named columns of numbers or strings of numbers; errors name the source.

    Args:
        standardize: If False, columns are not scaled. If None, for prediction: not scaled, in
            double precision and without labels.
        num_train: The number of rows before the test split; None for no test split.
    """
    frame = pd.DataFrame(columns)
    if label_column is not None and label_column not in frame:
        raise DataError(
            f"{source} has no column '{label_column}' for the labels: its columns are "
            f"{listed(list(frame))}."
        )
    target = label_column or ("label" if "label" in frame else None)
    features = frame if target is None else frame.drop(columns=target)
    names = tuple(map(str, features))
    least = 1 if standardize is None else 2
    if not names or len(frame) < least:
        raise DataError(
            f"{source} should have {least} or more rows and 1 or more columns of inputs, but has "
            f"{len(frame)} and {len(names)}."
        )
    converted, texts = zip(*(_convert(features[name]) for name in features), strict=True)
    if others := [
        f"{name} ('{textwrap.shorten(text, 30, placeholder='...')}')"
        for name, text in zip(names, texts, strict=True)
        if text is not None
    ]:
        raise DataError(
            f"{source} should contain numbers only, but has other values in {listed(others)}: "
            "remove these columns, or name the label column (label_column; on the command line "
            "-o label_column=NAME)."
        )
    numbers = np.stack(converted, axis=1)
    _refuse(source, "missing or infinite values", names, ~np.isfinite(numbers).all(0))
    largest = np.abs(numbers).max(0)
    _refuse(source, "numbers too large for single precision", names, largest > np.finfo("f4").max)
    if standardize is None:
        return labeled(source, torch.from_numpy(numbers), None, num_train, columns=names)
    train = numbers[:num_train]
    # By rounding, constant columns may have a tiny deviation.
    is_constant = (np.ptp(train, axis=0) <= 1e-12 * largest) | (train.std(0) == 0)
    _refuse(source, "the same value in every row", names, is_constant)
    mean, std = np.zeros(len(names)), np.ones(len(names))
    if standardize:
        mean, std = train.mean(0), column_scales(torch.from_numpy(train)).numpy()
    inputs = torch.from_numpy(((numbers - mean) / std).astype(np.float32))
    # In double precision: float32 would round time stamps to minutes.
    scales = {"mean": torch.from_numpy(mean), "std": torch.from_numpy(std)}
    labels = None if target is None else frame[target]
    return labeled(source, inputs, labels, num_train, columns=names, preprocessing=scales)


def labeled(
    source: str,
    inputs: Tensor,
    labels: "pd.Series[Any] | None",
    num_train: int | None = None,
    **facts: Any,
) -> Dataset:
    """A data set from inputs (N, ...) and labels (N,); integers and strings are classes."""
    targets, classes = {}, {}
    if labels is not None:
        name = str(labels.name)
        numbers, text = _convert(labels)
        is_bad = labels.isna() | (np.isinf(numbers) & (text is None))
        if is_bad.any():
            raise DataError(
                f"{source} has {is_bad.sum():,} missing or infinite labels in the column '{name}'."
            )
        if text is None and (numbers != np.round(numbers)).any():
            targets[name] = torch.from_numpy(numbers.astype(np.float32))
        else:
            texts = labels.astype(str).str.strip().to_numpy(str)
            found, codes = np.unique(numbers if text is None else texts, return_inverse=True)
            targets[name] = torch.from_numpy(codes.astype(np.int64))
            classes[name] = tuple(f"{x:.0f}" if text is None else str(x) for x in found)
    whole = Split(inputs, targets)
    parts = (whole, whole) if num_train is None else (whole[:num_train], whole[num_train:])
    return Dataset(source, *parts, classes, **facts)


def _convert(column: "pd.Series[Any]") -> tuple[NDArray[np.float64], str | None]:
    """A column as numbers, NaN for missing values, and the first non-numeric value."""
    values = column.to_numpy()
    if values.dtype.kind in "biufOU":
        with suppress(TypeError, ValueError), np.errstate(over="ignore"):
            return values.astype(np.float64), None
    numbers = pd.to_numeric(column.astype(str), errors="coerce").to_numpy(np.float64)
    others = column[np.isnan(numbers) & column.notna()]
    return numbers, str(others.iloc[0]) if len(others) else ""


def _refuse(source: str, fault: str, names: Sequence[str], is_bad: Any) -> None:
    if bad := [name for name, found in zip(names, is_bad, strict=True) if found]:
        raise DataError(f"{source} has {fault} in {listed(bad)}: change or remove these columns.")


def listed(names: Sequence[str]) -> str:
    """The first five names and the number of others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file by name, or of an npy file as ``inputs``."""
    try:
        # Opened here, because numpy does not close a damaged file.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"inputs": loaded}
            with loaded:
                return {name: np.asarray(loaded[name]) for name in loaded.files}
    except Exception as error:  # damaged files raise many types
        raise DataError(f"{path} cannot be read ({reason(error)}).") from error


def _load_arrays(path: Path, standardize: bool | None) -> Dataset:
    """A table or images from one array, from inputs and labels, or from two splits of both."""
    source, arrays = str(path), read_arrays(path)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        inputs, labels = ([arrays[f"{x}_{part}"] for part in ("train", "test")] for x in "xy")
    else:
        label = next((name for name in _LABELS if name in arrays), None)
        others = [name for name in arrays if name != label]
        name = others[0] if len(others) == 1 else next((n for n in _INPUTS if n in others), None)
        if name is None:
            raise DataError(
                f"{path} should contain one array, or one named {', '.join(_INPUTS)} next to the "
                f"labels, but contains {', '.join(arrays) or 'nothing'}."
            )
        inputs, labels = [arrays[name]], [] if label is None else [arrays[label]]
    for x, y in zip(inputs, labels, strict=False):
        if y.ndim != 1 or y.shape != x.shape[:1] or x.shape[1:] != inputs[0].shape[1:]:
            raise DataError(
                f"{path} should contain inputs of one shape and one label for each, but its "
                f"inputs have shape {x.shape} and its labels {y.shape}."
            )
    whole = np.concatenate(inputs) if labels else inputs[0]
    target = pd.Series(np.concatenate(labels), name="label") if labels else None
    num_train = len(inputs[0]) if len(inputs) > 1 else None
    if whole.ndim == 2:
        frame = pd.DataFrame(whole).rename(columns=lambda number: f"column {number + 1}")
        frame = frame if target is None else frame.join(target)
        return table(source, frame, None, standardize, num_train)
    images = image_tensor(source, whole)
    return labeled(source, images, None if standardize is None else target, num_train)


def image_tensor(source: str, array: NDArray[Any]) -> Tensor:
    """Images (N, channels, H, W) in [0, 1] from bytes, or from floats in [0, 1]."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise DataError(
            f"{source} should contain a table (rows, columns) or images (number, height, width), "
            f"with 1 or 3 channels before or after the last two, but has shape {array.shape}."
        )
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array)).float().div_(255)
    if array.dtype.kind not in "bf" or not (array.min() >= 0 and array.max() <= 1):  # or NaN
        raise DataError(
            f"{source} should contain images of bytes or of numbers from 0 to 1, but contains "
            f"{array.dtype} from {array.min()} to {array.max()}."
        )
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def load_folder(folder: Path, image_size: int | tuple[int, int] | None = None) -> Dataset:
    """Images (channels, H, W) in [0, 1], gray if all are; subfolders, if any, are the classes."""
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if size is not None and min(size) < 1:
        raise DataError(f"image_size must be one or two integers above 0, not {image_size}.")
    paths = image_paths(folder)
    decoded = [decode(path, size) for path in track(paths, "Images", len(paths))]
    for path, image in zip(paths, decoded, strict=True):
        if image.shape[1:] != decoded[0].shape[1:]:
            raise DataError(
                f"{path} has {image.shape[2]}x{image.shape[1]} pixels, but {paths[0].name} has "
                f"{decoded[0].shape[2]}x{decoded[0].shape[1]}: set image_size to resize them all "
                "(on the command line -o image_size=N, or --image-size N of drpm factors)."
            )
    shape = max(image.shape for image in decoded)
    images = np.array([np.broadcast_to(image, shape) for image in decoded], order="C")
    targets, classes = {}, {}
    if paths[0].parent != folder:
        names, codes = np.unique([path.parent.name for path in paths], return_inverse=True)
        targets["label"] = torch.from_numpy(codes.astype(np.int64))
        classes["label"] = tuple(map(str, names))
    whole = Split(torch.from_numpy(images), targets)
    return Dataset(str(folder), whole, whole, classes)


def image_paths(folder: Path) -> list[Path]:
    """The files of :func:`load_folder`, in order."""
    for pattern in ("*", "*/*"):
        found = sorted(folder.glob(pattern))
        images = [x for x in found if x.suffix.lower() in IMAGE_SUFFIXES and x.name[0] != "."]
        if images:
            return images
    kinds = ", ".join(IMAGE_SUFFIXES)
    raise DataError(f"{folder} should contain images ({kinds}) or folders of images, but has none.")


def decode(path: Path, size: tuple[int, int] | None = None) -> NDArray[np.float32]:
    """A gray (1, H, W) or RGB (3, H, W) image in [0, 1], resized to a height and width."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):  # over 8 bits, which Pillow would clip to 255
                values = np.asarray(image)
                if image.mode == "F" or values.min() < 0 or values.max() > 65535:
                    raise ValueError("it should have 8 or 16 bits per pixel")
                decoded, most = Image.fromarray(values.astype(np.float32) / np.float32(65535)), 1
            else:
                decoded, most = image.convert("L" if image.mode in ("1", "L") else "RGB"), 255
            if size is not None:
                decoded = decoded.resize(size[::-1], Image.Resampling.BILINEAR)
            pixels = (np.asarray(decoded, np.float32) / np.float32(most)).clip(0, 1)
            return np.atleast_3d(pixels).transpose(2, 0, 1)
    except Exception as error:  # damaged files raise many types
        raise DataError(f"{path} cannot be read as an image ({reason(error)}).") from error
