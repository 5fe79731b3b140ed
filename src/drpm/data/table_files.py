"""Tables from csv and parquet files."""

import csv
import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drpm.data.errors import DataError

Columns = dict[str, NDArray[Any]]


def read_csv(path: Path, *, header: bool = True) -> Columns:
    """The columns of a csv file as texts.

    Commas, semicolons and tabs may separate the values.

    Args:
        path: the file, in UTF-8.
        header: whether the first line names the columns; they are numbered where it does not.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            separator = max(",;\t", key=first.count)
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, strict=True)
            # Blank lines are no rows. The number of the line is kept for the errors.
            rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8 ({error.reason}).") from error
    except csv.Error as error:
        raise DataError(f"{path} is not a csv file ({error}).") from error
    if not rows:
        raise DataError(f"{path} is empty.")
    names = [name.strip() for name in rows[0][1]]
    if not header:
        names = [f"column {number}" for number in range(1, len(names) + 1)]
    elif all(map(_is_number, names)):
        raise DataError(
            f"{path} should name its columns in the first line, but that holds only numbers: add "
            "the names, or set header to false (on the command line -o header=false)."
        )
    else:
        rows = rows[1:]
    _refuse_bad_names(path, names)
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(
                f"{path}, line {line}: there should be {len(names)} values, one for each column, "
                f"but there are {len(row)}."
            )
    columns = zip(*(row for _, row in rows), strict=True) if rows else [()] * len(names)
    return {name: np.array(values, str) for name, values in zip(names, columns, strict=True)}


def read_parquet(path: Path) -> Columns:
    """The columns of a parquet file, through pyarrow."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{path} needs the package pyarrow to be read: install it with pip install pyarrow."
        ) from error
    try:
        content = parquet.read_table(path)
    except Exception as error:
        # pyarrow has its own errors, which cannot be named where it is not installed.
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise DataError(f"{path} is not a whole parquet file ({reason}).") from error
    _refuse_bad_names(path, content.column_names)
    return {
        name: column.to_numpy()
        for name, column in zip(content.column_names, content.columns, strict=True)
    }


def _refuse_bad_names(path: Path, names: list[str]) -> None:
    if "" in names:
        raise DataError(f"{path} has no name for its column {names.index('') + 1}.")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{path} has more than one column named '{repeated[0]}'.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
