"""Pictures that a run describes itself: grids of images, matrices, groups of bars, lines.

The report knows nothing about them beforehand. ``arrays.npz`` holds the values of a picture under
``KIND__NAME``, and what is written around them under further keys with the same NAME, all of them
optional:

- ``grid__NAME``, images (R, C, H, W) or (R, C, channels, H, W), uint8 or floats from 0 to 1, with
  ``grid_rows__NAME``, R strings beside the rows, and ``grid_columns__NAME``, C strings above;
- ``matrix__NAME``, numbers (R, C), with ``matrix_rows__NAME`` and ``matrix_columns__NAME``;
- ``bars__NAME``, numbers (G, B), G groups of B bars, with ``bars_groups__NAME``, G strings below
  the groups, and ``bars_names__NAME``, B strings for the legend;
- ``lines__NAME``, numbers (L, P), L lines over P epochs, with ``lines_names__NAME``, L strings for
  the legend, and ``lines_epochs__NAME``, P growing numbers;
- ``title__NAME`` and ``about__NAME``, one string each: what stands above the picture, and what
  describes it to those who cannot see it.

A NAME is made of a-z, 0-9, _ and -, and is the name of the picture's file.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drpm.report.archive import read_archive
from drpm.report.arrays import ARRAYS
from drpm.report.bars import MAX_BARS, draw_bars
from drpm.report.images import draw_grid
from drpm.report.lines import MAX_LINES, MAX_PLACES, draw_lines
from drpm.report.matrices import draw_matrix
from drpm.training.errors import RunError

_NAME: Final = re.compile(r"[a-z0-9_-]{1,64}")
_LARGEST: Final = 1e100  # differences of larger numbers need not be numbers
_TOLERANCE: Final = 1e-3  # of images made by rounded arithmetic


class _Form(NamedTuple):
    """What a kind of picture is made of, and how it is drawn."""

    noun: str
    shape: str
    rows: str  # the key of the texts that go with the first dimension
    columns: str  # and with the second
    max_rows: int  # more could not be told apart on a page
    max_columns: int
    draw: Callable[[NDArray[Any], Sequence[str], Sequence[str], str], Figure]
    has_numbers: bool = False  # in place of the texts of the second dimension


_GRID_SHAPE: Final = "(R, C, H, W) or (R, C, channels, H, W)"
_FORMS: Final = {
    "grid": _Form("images", _GRID_SHAPE, "grid_rows", "grid_columns", 50, 32, draw_grid),
    "matrix": _Form("numbers", "(R, C)", "matrix_rows", "matrix_columns", 100, 100, draw_matrix),
    "bars": _Form("numbers", "(G, B)", "bars_groups", "bars_names", MAX_BARS, 10, draw_bars),
    "lines": _Form(
        "numbers",
        "(L, P)",
        "lines_names",
        "lines_epochs",
        MAX_LINES,
        MAX_PLACES,
        draw_lines,
        has_numbers=True,
    ),
}
_TEXTS: Final = ("title", "about")
_KEYS: Final = {
    *_FORMS,
    *_TEXTS,
    *(key for form in _FORMS.values() for key in (form.rows, form.columns)),
}


@dataclass(frozen=True)
class Exhibit:
    """One picture that a run describes itself.

    Arguments:
        kind: ``grid``, ``matrix``, ``bars`` or ``lines``.
        name: The name of its file.
        values: What it shows, as its kind has it.
        rows: A text for each place of the first dimension, or none at all.
        columns: A text for each place of the second dimension, or none at all.
        title: What stands above.
        about: What describes it.
    """

    kind: str
    name: str
    values: NDArray[Any]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: str
    about: str

    def draw(self) -> Figure:
        return _FORMS[self.kind].draw(self.values, self.rows, self.columns, self.title)


def read_exhibits(folder: Path, taken: Collection[str] = ()) -> list[Exhibit]:
    """The pictures that a run's arrays describe, in the order in which their values stand there.

    Arguments:
        folder: The folder of the run.
        taken: Names that belong to other pictures.

    Raises:
        RunError: Where the file is damaged, or arrays in it do not fit what they are meant to be.
    """
    path = folder / ARRAYS
    content = read_archive(path, lambda key: "__" in key and _split(key)[0] in _KEYS)
    by_name: dict[str, dict[str, NDArray[Any]]] = {}
    # The values come first: they make the order, wherever the texts stand.
    for key in sorted(content, key=lambda key: _split(key)[0] not in _FORMS):
        prefix, name = _split(key)
        by_name.setdefault(name, {})[prefix] = content[key]
    for name, parts in by_name.items():
        if complaint := _wrong_name(name, parts, taken) or _wrong_parts(name, parts):
            raise RunError(f"In the file {path}, {complaint}.")
    return [_exhibit(name, parts) for name, parts in by_name.items()]


def find_exhibit(folder: Path, name: str) -> Exhibit | None:
    """One picture that a run's arrays describe, if they do.

    Arguments:
        folder: The folder of the run.
        name: That of the picture.
    """
    return next((x for x in read_exhibits(folder) if x.name == name), None)


def _split(key: str) -> tuple[str, str]:
    """What a key holds, and the name of the picture that it belongs to."""
    prefix, _, name = key.partition("__")
    return prefix, name


def _exhibit(name: str, parts: Mapping[str, NDArray[Any]]) -> Exhibit:
    kind = next(iter(parts))
    form, values = _FORMS[kind], parts[kind]

    def text(key: str, otherwise: str) -> str:
        return " ".join(str(parts.get(key, "")).split()) or otherwise

    return Exhibit(
        kind,
        name,
        values,
        tuple(map(str, parts.get(form.rows, ()))),
        tuple(map(str, parts.get(form.columns, ()))),
        text("title", name),
        text("about", f"{form.noun.capitalize()}, {values.shape[0]} x {values.shape[1]}."),
    )


def _wrong_name(name: str, parts: Mapping[str, NDArray[Any]], taken: Collection[str]) -> str | None:
    """What is wrong with the keys of one picture, as the end of a sentence, or None."""
    first = next(iter(parts))
    if not _NAME.fullmatch(name):
        # Escaped, because it may hold anything.
        return (
            f"the name of {f'{first}__{name}'[:100]!a} must be 1 to 64 characters of a-z, 0-9, _ "
            "and -"
        )
    kinds = [key for key in parts if key in _FORMS]
    if not kinds:
        return f"{first}__{name} comes without a picture of this name"
    if len(kinds) > 1:
        return f"{kinds[0]}__{name} and {kinds[1]}__{name} must have different names"
    if name in taken:
        return f"{first}__{name} must have another name: {name}.png is another picture's"
    for key in parts:
        if key not in (first, *_TEXTS, _FORMS[first].rows, _FORMS[first].columns):
            return f"{key}__{name} comes without {key.partition('_')[0]}__{name}"
    return None


def _wrong_parts(name: str, parts: Mapping[str, NDArray[Any]]) -> str | None:
    """What is wrong with the arrays of one picture, as the end of a sentence, or None."""
    kind = next(iter(parts))
    form, values = _FORMS[kind], parts[kind]
    if complaint := _wrong_values(f"{kind}__{name}", form, values):
        return complaint
    for key, count in ((form.rows, values.shape[0]), (form.columns, values.shape[1])):
        texts = parts.get(key)
        if texts is None:
            continue
        if form.has_numbers and key == form.columns:
            if not _grows(texts, count):
                return _must(f"{key}__{name}", texts, f"growing numbers ({count},)")
        elif texts.shape != (count,) or texts.dtype.kind != "U":
            return _must(f"{key}__{name}", texts, f"strings ({count},)")
    for key in _TEXTS:
        text = parts.get(key)
        if text is not None and (text.ndim or text.dtype.kind != "U"):
            return _must(f"{key}__{name}", text, "one string")
    return None


def _grows(numbers: NDArray[Any], count: int) -> bool:
    """Whether these are so many numbers, each larger than the one before."""
    sound = numbers.shape == (count,) and numbers.dtype.kind in "iuf"
    return sound and bool(np.isfinite(numbers).all() and (numbers[1:] > numbers[:-1]).all())


def _wrong_values(key: str, form: _Form, values: NDArray[Any]) -> str | None:
    images = form.noun == "images"
    type_fits = values.dtype == np.uint8 or values.dtype.kind == "f"
    type_fits = type_fits if images else values.dtype.kind in "biuf"
    if values.ndim not in ((4, 5) if images else (2,)) or 0 in values.shape or not type_fits:
        kinds = ", uint8 or floats" if images else ""
        return _must(key, values, f"{form.noun} {form.shape}{kinds}, none of the sizes zero")
    if values.shape[0] > form.max_rows or values.shape[1] > form.max_columns:
        return _must(key, values, f"at most {form.max_rows}x{form.max_columns} {form.noun}")
    if values.ndim == 5 and values.shape[2] not in (1, 3):
        return _must(key, values, "images of one or three channels, and these third")
    if not np.isfinite(values).all():
        return f"{key} must be finite, but has entries that are not"
    low, high = values.min(), values.max()
    if values.dtype.kind == "f" and images and (low < -_TOLERANCE or high > 1 + _TOLERANCE):
        return f"{key} must be from 0 to 1, but reaches from {low:.4g} to {high:.4g}"
    if max(abs(float(low)), abs(float(high))) > _LARGEST:
        return (
            f"{key} must be at most {_LARGEST:g} in size, but reaches from {low:.4g} to {high:.4g}"
        )
    return None


def _must(key: str, array: NDArray[Any], be: str) -> str:
    shape = "x".join(map(str, array.shape)) or "a single entry"
    return f"{key} must be {be}, but is {shape} of type {array.dtype}"
