"""Writing TOML, which the standard library only reads.

The text of a configuration identifies finished runs and studies, so its form must not change with
the version of a library.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def dumps(mapping: Mapping[str, Any]) -> str:
    """Nested mappings of numbers, booleans, text and lists of these as TOML.

    Example:
        >>> print(dumps({"name": "a", "sizes": (1, 2), "inner": {"rate": 1e-05}}), end="")
        name = "a"
        sizes = [1, 2]
        <BLANKLINE>
        [inner]
        rate = 1e-05
    """
    return "".join(_lines(mapping, ()))


def _lines(mapping: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    # A table's own values come before its inner tables.
    for name, value in mapping.items():
        if not isinstance(value, Mapping):
            # Such values are written alike in JSON and TOML, but for one character.
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            yield f"{name} = {text}\n".replace("\x7f", "\\u007f")
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield f"\n[{'.'.join((*path, name))}]\n"
            yield from _lines(value, (*path, name))
