"""Writing TOML, which the standard library only reads."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from drpm.training.errors import ConfigError


def dumps(mapping: Mapping[str, Any]) -> str:
    """A nested mapping as TOML; ``tomllib.loads`` gives the same values back, to the last bit."""
    return "".join(_table_lines(mapping, ()))


def _table_lines(mapping: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    # A table's own values come before its inner tables: after a header there is no way back.
    tables = {key: value for key, value in mapping.items() if isinstance(value, Mapping)}
    for key, value in mapping.items():
        if key not in tables:
            yield f"{_toml_key(key)} = {_toml(value, '.'.join((*path, key)))}\n"
    for key, value in tables.items():
        inner = (*path, key)
        yield f"\n[{'.'.join(map(_toml_key, inner))}]\n"
        yield from _table_lines(value, inner)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_text(key)


def _toml(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # Half of a surrogate pair is no character, and no UTF-8 file can hold it.
    if isinstance(value, str) and not re.search("[\ud800-\udfff]", value):
        return _toml_text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        # The shortest digits that give the same number back, with a point or an exponent.
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item, path) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{_toml_key(key)} = {_toml(item, path)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    raise ConfigError(f"{path} must be a value that TOML can hold exactly, but got {value!r}.")


def _toml_text(text: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    escape = {code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F)}
    escape |= {ord(char): code for char, code in short.items()}
    return f'"{text.translate(escape)}"'
