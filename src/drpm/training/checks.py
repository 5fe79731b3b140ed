"""Checks of arguments that training gets from Python."""

import os
from typing import Any

from torch import Tensor

from drpm.distributions.validation import describe
from drpm.training.errors import ConfigError
from drpm.training.words import joined


def require_one_each(**sequences: Any) -> None:
    """Refuse sequences that are empty or differ in length.

    Args:
        sequences: Sequences by the caller's names for them, with an entry for each run.

    Example:
        >>> require_one_each(folders=["one"], seeds=[0, 1])
        Traceback (most recent call last):
        ValueError: folders and seeds must have equal length of at least 1, but got 1 and 2.
    """
    for name, value in sequences.items():
        # Text has a length too, and would be taken letter by letter.
        single = isinstance(value, str | bytes | os.PathLike)
        if single or not hasattr(value, "__len__"):
            came = repr(value) if single else describe(value)
            raise ValueError(f"{name} must be a list with an entry for each run, but got {came}.")
    counts = [len(value) for value in sequences.values()]
    if min(counts) == 0 or len(set(counts)) > 1:
        raise ValueError(
            f"{joined([*sequences])} must have equal length of at least 1, "
            f"but got {joined([*map(str, counts)])}."
        )


def require_classes(name: str, labels: Tensor, examples: int, classes: int) -> None:
    """Refuse labels that are not one class for each example, from 0 to K - 1.

    Args:
        name: The caller's name for the labels.
        labels: (N,), the class of every example.
        examples: N.
        classes: K.
    """
    fractions = labels.is_floating_point() or labels.is_complex()
    if labels.shape != (examples,) or fractions:
        raise ConfigError(
            f"{name} must be whole numbers of the shape ({examples},), but got "
            f"{labels.dtype} of the shape {tuple(labels.shape)}."
        )
    if examples == 0:
        raise ConfigError(f"{name} must be one or more, but got none.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ConfigError(
            f"{name} must be from 0 to {classes - 1}, but got some from {low} to {high}."
        )
