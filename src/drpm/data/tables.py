"""Tables of numbers: refused where they cannot be learned from, standardised where they can."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from drpm.data.errors import DataError
from drpm.data.types import Dataset, Split

LABEL = "label"  # the column that is the target unless another one is named

_MISSING = frozenset({"", "na", "n/a", "nan", "nat", "null", "none", "?", "-"})
_SHOWN = 5
_LONGEST = 30  # of a value that an error quotes

# Kinds of values that are no numbers to learn from and no texts either, by numpy's letters.
_OTHER_KINDS = {"c": "complex numbers", "M": "dates", "m": "spans of time", "V": "records"}

_SINGLE = np.finfo(np.float32)


def table(
    source: str, columns: Mapping[str, NDArray[Any]], label_column: str | None = None
) -> Dataset:
    """A data set from named columns of equal length: numbers, or texts that may be numbers.

    Every column but that of the labels is brought to mean 0 and standard deviation 1; both are
    kept in `preprocessing`, so that new rows can be treated alike.

    Args:
        source: what the errors call the table, such as its file.
        columns: the values by the name of the column.
        label_column: the column that is the target; `label` where there is one and none is named.
    """
    if label_column is not None and label_column not in columns:
        raise DataError(
            f"{source} has no column '{label_column}' for the labels: its columns are "
            f"{_listed(list(columns))}."
        )
    target_name = label_column or (LABEL if LABEL in columns else None)
    features = {name: values for name, values in columns.items() if name != target_name}
    if not features:
        raise DataError(f"{source} has no column of inputs.")
    num_rows = len(next(iter(features.values())))
    if num_rows < 2:
        rows = "one row" if num_rows == 1 else "no row"
        raise DataError(f"{source} should have at least two rows, but has {rows}.")

    numbers = _numbers(source, features)
    mean, std = moments(source, numbers, list(features))
    inputs = torch.from_numpy(((numbers - mean) / std).astype(np.float32))
    targets, classes = {}, {}
    if target_name is not None:
        target, names_of_classes = _target(source, target_name, columns[target_name])
        targets[target_name] = target
        if names_of_classes:
            classes[target_name] = names_of_classes
    everything = Split(inputs, targets)
    return Dataset(
        source,
        everything,
        everything,
        classes=classes,
        columns=tuple(features),
        preprocessing={
            # In double precision: of a time stamp, float32 would lose minutes.
            "mean": torch.from_numpy(mean),
            "std": torch.from_numpy(std),
        },
    )


def moments(
    source: str, numbers: NDArray[np.float64], names: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the deviation of each column, refused where they cannot serve to scale it.

    Args:
        source: what the errors call the table.
        numbers: (rows, columns), finite.
        names: of the columns.
    """
    # Beyond single precision, in which the moments are kept, their squares would overflow too.
    largest = np.abs(numbers).max(0)
    _refuse(source, names, largest > _SINGLE.max, "numbers too large for single precision in")
    # Rounding leaves a constant column a deviation that is tiny beside its values, not zero.
    constant = np.ptp(numbers, axis=0) <= 1e-12 * largest
    _refuse(source, names, constant, "the same value in every row of", "leave {} out")
    mean, std = numbers.mean(0), numbers.std(0)
    _refuse(source, names, std < _SINGLE.tiny, "differences too small for single precision in")
    return mean, std


def _refuse(
    source: str,
    names: Sequence[str],
    wrong: NDArray[np.bool_],
    what: str,
    remedy: str = "give {} in another unit",
) -> None:
    """Refuse the columns that are wrong, all of them in one sentence."""
    found = [name for name, is_wrong in zip(names, wrong, strict=True) if is_wrong]
    if found:
        remedy = remedy.format("it" if len(found) == 1 else "them")
        raise DataError(f"{source} has {what} {_named(found)}: {remedy}.")


def targets_of(source: str, values: NDArray[Any]) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Labels as class numbers with the classes' names, or as plain numbers with none."""
    return _target(source, LABEL, values)


def _numbers(source: str, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The columns side by side as numbers; the error names every column that is at fault."""
    converted, words, gaps = [], [], []
    others: dict[str, list[str]] = {}
    for name, values in columns.items():
        numbers, texts = _convert(values)
        if kind := _OTHER_KINDS.get(values.dtype.kind):
            others.setdefault(kind, []).append(name)
        elif texts:
            words.append(f"{name} ('{_brief(texts[0])}')")
        elif num_gaps := int((~np.isfinite(numbers)).sum()):
            gaps.append(f"{name} ({num_gaps:,})")
        converted.append(numbers)
    for kind, names in others.items():
        raise DataError(
            f"{source} should hold plain numbers only, but has {kind} in {_named(names)}: leave "
            f"{'it' if len(names) == 1 else 'them'} out, or put plain numbers in their place."
        )
    if words:
        raise DataError(
            f"{source} should hold numbers only, but has text in {_named(words)}: leave "
            f"{'it' if len(words) == 1 else 'them'} out, or name the column of the labels "
            "(label_column; on the command line -o label_column=NAME)."
        )
    if gaps:
        raise DataError(
            f"{source} has missing or infinite values in {_named(gaps)}: fill them in, or leave "
            "those rows or columns out."
        )
    return np.stack(converted, axis=1)


def _convert(values: NDArray[Any]) -> tuple[NDArray[np.float64], list[str]]:
    """The values as numbers, missing ones as NaN, and the texts that are neither."""
    if values.dtype.kind in "biuf":
        with np.errstate(over="ignore"):  # what is wider than 64 bits becomes infinite: refused
            return values.astype(np.float64), []
    if values.dtype.kind not in "OUS":
        return np.full(len(values), np.nan), [str(values[0]) if len(values) else ""]
    try:
        return values.astype(np.float64), []  # all of them at once, the usual case
    except (ValueError, TypeError, OverflowError):
        pass
    numbers, texts = np.full(len(values), np.nan), []
    for index, value in enumerate(values):
        text = "" if value is None else str(value).strip()
        if text.lower() in _MISSING:
            continue
        try:
            numbers[index] = float(text)
        except ValueError:
            texts.append(text)
    return numbers, texts


def _target(source: str, name: str, values: NDArray[Any]) -> tuple[torch.Tensor, tuple[str, ...]]:
    if values.ndim != 1:
        raise DataError(f"{source} should have one label per row, but '{name}' is {values.ndim}-D.")
    numbers, texts = _convert(values)
    if not texts:
        if num_gaps := int((~np.isfinite(numbers)).sum()):
            raise DataError(f"{source} has {num_gaps:,} missing labels in the column '{name}'.")
        if (numbers != np.round(numbers)).any():
            single = numbers.astype(np.float32)
            if np.ptp(single) == 0 < np.ptp(numbers):
                raise DataError(
                    f"{source} has labels in the column '{name}' whose differences are too small "
                    "for single precision: give them in another unit."
                )
            return torch.from_numpy(single), ()
        found, codes = np.unique(numbers, return_inverse=True)
        return torch.from_numpy(codes.astype(np.int64)), tuple(f"{value:.0f}" for value in found)
    words = np.array(["" if value is None else str(value).strip() for value in values])
    if num_gaps := sum(word.lower() in _MISSING for word in words):
        raise DataError(f"{source} has {num_gaps:,} missing labels in the column '{name}'.")
    found_words, codes = np.unique(words, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), tuple(map(str, found_words))


def _named(names: Sequence[str]) -> str:
    # As those of an array are called.
    if all(name.startswith("column ") for name in names):
        return _listed(names)
    return f"the column{'s' if len(names) > 1 else ''} {_listed(names)}"


def _brief(text: str) -> str:
    """A value on one line, its end cut off where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _listed(names: Sequence[str]) -> str:
    """The names, cut short where there are many."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
