"""Values as texts: numbers that line up, counts with their noun."""

import math
from collections.abc import Sequence
from typing import Any, Final

NOTHING: Final = "—"
_MAX_DIGITS: Final = 6  # values that differ only in later digits count as equal


def format_values(values: Sequence[Any], digits: int = 4) -> list[str]:
    """Formats the values of one metric, with the decimals of the largest at so many digits.

    Example:
        >>> format_values([12.5, 0.125, None])
        ['12.50', '0.12', '—']
    """
    floats = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
    largest = max(floats, default=0.0)
    if not 1e-3 <= largest < 1e7:
        return [format_value(value) for value in values]
    decimals = max(0, digits - 1 - math.floor(math.log10(largest)))
    return [
        f"{value:,.{decimals}f}" if isinstance(value, float) else format_value(value)
        for value in values
    ]


def format_distinct(values: Sequence[float]) -> list[str]:
    """Formats the numbers of one figure with enough digits to tell them apart.

    Example:
        >>> format_distinct([4.9981, 5.0023])
        ['4.9981', '5.0023']
    """
    if all(float(value).is_integer() for value in values) or not all(map(math.isfinite, values)):
        return format_values([int(x) if float(x).is_integer() else float(x) for x in values])
    largest, spread = max(map(abs, values)), max(values) - min(values)
    digits = 3
    if spread > 0:
        digits = max(digits, 2 + math.floor(math.log10(largest)) - math.floor(math.log10(spread)))
    return format_values([float(value) for value in values], min(digits, _MAX_DIGITS))


def format_value(value: Any) -> str:
    """Formats one value of a table."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    return str(value)


def counted(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless the count is one."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
