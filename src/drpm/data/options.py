"""The options of a data set, checked against the function that takes them."""

import difflib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from drpm.data.errors import DataError

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def check_options(
    options: Mapping[str, Any], valid: Iterable[str], load: Callable[..., Any], owner: str
) -> None:
    """Refuse options that a set does not have, and values of another type than it expects.

    Args:
        options: what was given.
        valid: the names of the options there are.
        load: the function that takes them; its annotations tell the types.
        owner: what the errors call the set.
    """
    names = tuple(valid)
    hints = get_type_hints(load)
    for name, value in options.items():
        if name not in names:
            raise DataError(f"{owner} has no option '{name}': {nearest(name, names)}")
        kinds = _kinds(hints.get(name, object))
        if not any(_fits(value, kind) for kind in kinds):
            expected = " or ".join(
                _WORDS.get(kind, kind.__name__) for kind in kinds if kind is not type(None)
            )
            raise DataError(f"{owner} takes {expected} for the option '{name}', not {value!r}.")


def nearest(word: str, valid: Iterable[str]) -> str:
    """The end of a sentence: the valid names near to a word, or all of them."""
    names = list(valid)
    close = difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.55)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there are {', '.join(names)}." if names else "it has none."


def _kinds(hint: Any) -> list[type]:
    """The types that an annotation allows."""
    if get_origin(hint) in (Union, types.UnionType):
        return [kind for part in get_args(hint) for kind in _kinds(part)]
    return [get_origin(hint) or hint]


def _fits(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind in (bool, object)
    if kind is float:
        return isinstance(value, int | float)
    if kind is tuple:  # a list is how JSON writes one
        return isinstance(value, list | tuple)
    return isinstance(value, kind)
