"""Refusals of what training is given from Python, in one sentence each."""

import os
from typing import Any


def require_one_each(**sequences: Any) -> None:
    """Refuse sequences that are not as many as each other, or empty.

    Arguments:
        sequences: By the names that whoever calls knows them by; each has an entry for each run.

    Example:
        >>> require_one_each(folders=["one"], seeds=[0, 1])
        Traceback (most recent call last):
        ValueError: folders and seeds must be as many as each other, one or more, but got 1 and 2.
    """
    for name, value in sequences.items():
        # Text has a length too, and would be taken letter by letter.
        single = isinstance(value, str | bytes | os.PathLike)
        if single or not hasattr(value, "__len__"):
            raise ValueError(
                f"{name} must be a list with an entry for each run, but got {value!r}."
            )
    counts = [len(value) for value in sequences.values()]
    if min(counts) == 0 or len(set(counts)) > 1:
        raise ValueError(
            f"{_listed([*sequences])} must be as many as each other, one or more, "
            f"but got {_listed([str(count) for count in counts])}."
        )


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
