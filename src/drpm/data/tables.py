"""Users' tables: CSV and Parquet files read by pandas, with standardized columns."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from drpm.data.types import DataError, Dataset, Split, reason

LABEL = "label"  # the default label column

_MISSING = ("?", "-", "na", "none", "NONE", "NAN", "NaT")  # besides those of pandas
_SHOWN = 5


def read_csv(path: Path, *, header: bool = True) -> pd.DataFrame:
    """The columns of a CSV file as texts, with commas, semicolons or tabs between them.

    Args:
        path: The file, in UTF-8.
        header: Whether the first line names the columns; otherwise they are numbered.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = next(filter(str.strip, file), "")
        # As texts, which Python converts to the nearest double; pandas can be off by one bit.
        frame = pd.read_csv(
            path,
            sep=max(",;\t", key=first.count),
            header=None,
            dtype=object,
            na_values=list(_MISSING),
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
    for name in names:
        if names.count(name) > 1:
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
    except Exception as error:  # pyarrow's own errors, which cannot be named without pyarrow
        raise DataError(f"{path} cannot be read as Parquet ({reason(error)}).") from error


def table(
    source: str,
    columns: pd.DataFrame | Mapping[str, Any],
    label_column: str | None = None,
    standardize: bool = True,
    num_train: int | None = None,
) -> Dataset:
    """A data set from named columns of equal length: numbers, or texts of numbers.

    Every column except the labels is standardized; ``preprocessing`` has the ``mean`` and
    ``std`` of each.

    Args:
        source: The file that errors name.
        columns: The values by column name.
        label_column: The target; by default ``label`` if there is such a column.
        standardize: If False, columns keep their values, with mean 0 and divisor 1.
        num_train: How many rows come before the test split; None if there is none.
    """
    frame = pd.DataFrame(columns)
    if label_column is not None and label_column not in frame:
        raise DataError(
            f"{source} has no column '{label_column}' for the labels: its columns are "
            f"{_listed(list(frame))}."
        )
    target = label_column or (LABEL if LABEL in frame else None)
    features = frame if target is None else frame.drop(columns=target)
    names = tuple(map(str, features))
    if not names or len(frame) < 2:
        raise DataError(
            f"{source} should have at least two rows and one column of inputs, but has "
            f"{len(frame)} and {len(names)}."
        )
    numbers = _numbers(source, features)
    largest = np.abs(numbers).max(0)
    _refuse(source, "numbers too large for single precision", names, largest > np.finfo("f4").max)
    train = numbers[:num_train]
    mean, std = train.mean(0), train.std(0)
    # Rounding leaves a constant column a deviation that is tiny beside its values.
    is_constant = (np.ptp(train, axis=0) <= 1e-12 * largest) | (std == 0)
    _refuse(source, "the same value in every row", names, is_constant)
    if not standardize:
        mean, std = np.zeros_like(mean), np.ones_like(std)
    inputs = torch.from_numpy(((numbers - mean) / std).astype(np.float32))
    # In double precision: float32 would round a time stamp to minutes.
    preprocessing = {"mean": torch.from_numpy(mean), "std": torch.from_numpy(std)}
    targets = {} if target is None else {target: frame[target]}
    dataset = labelled(source, inputs, targets, num_train)
    return replace(dataset, columns=names, preprocessing=preprocessing)


def labelled(
    source: str, inputs: torch.Tensor, labels: Mapping[str, Any], num_train: int | None
) -> Dataset:
    """A data set from inputs (N, ...) and labels (N,), numbers or texts, by target.

    Whole numbers and texts become class indices; other numbers have no classes.
    """
    targets, classes = {}, {}
    for name, values in labels.items():
        targets[name], found = _targets(source, values, name)
        if found:
            classes[name] = found
    train, test = (
        Split(inputs[rows], {name: target[rows] for name, target in targets.items()})
        for rows in (slice(num_train), slice(num_train, None))
    )
    return Dataset(source, train, train if num_train is None else test, classes)


def _targets(source: str, labels: Any, name: str) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Class indices with the class names, or floats with no names."""
    column = pd.Series(labels)
    numbers, text = _convert(column)
    is_bad = column.isna() | (np.isinf(numbers) & (text is None))
    if is_bad.any():
        raise DataError(
            f"{source} has {is_bad.sum():,} missing or infinite labels in the column '{name}'."
        )
    if text is None and (numbers != np.round(numbers)).any():
        return torch.from_numpy(numbers.astype(np.float32)), ()
    values = numbers if text is None else column.astype(str).str.strip().to_numpy(str)
    found, codes = np.unique(values, return_inverse=True)
    names = (str(value) if text is not None else f"{value:.0f}" for value in found)
    return torch.from_numpy(codes.astype(np.int64)), tuple(names)


def _numbers(source: str, frame: pd.DataFrame) -> NDArray[np.float64]:
    """All columns as numbers (rows, columns)."""
    converted = [_convert(frame[name]) for name in frame]
    texts = [
        f"{name} ('{textwrap.shorten(text, 30, placeholder='...')}')"
        for name, (_, text) in zip(frame, converted, strict=True)
        if text is not None
    ]
    if texts:
        raise DataError(
            f"{source} should contain numbers only, but has other values in {_listed(texts)}: "
            "remove these columns, or name the label column (label_column; on the command line "
            "-o label_column=NAME)."
        )
    numbers = np.stack([column for column, _ in converted], axis=1)
    names = [str(name) for name in frame]
    _refuse(source, "missing or infinite values", names, ~np.isfinite(numbers).all(0))
    return numbers


def _convert(column: "pd.Series[Any]") -> tuple[NDArray[np.float64], str | None]:
    """A column as numbers, NaN where a value is missing, and its first value that is neither."""
    values = column.to_numpy()
    try:
        if values.dtype.kind in "biufOU":
            with np.errstate(over="ignore"):
                return values.astype(np.float64), None
    except (TypeError, ValueError):
        pass
    numbers = pd.to_numeric(column.astype(str), errors="coerce").to_numpy(np.float64)
    others = column[np.isnan(numbers) & column.notna()]
    return numbers, str(others.iloc[0]) if len(others) else ""


def _refuse(source: str, fault: str, names: Sequence[str], is_bad: Any) -> None:
    if bad := [name for name, found in zip(names, is_bad, strict=True) if found]:
        raise DataError(f"{source} has {fault} in {_listed(bad)}: change or remove these columns.")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
