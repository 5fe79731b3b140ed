"""Quantities as people read them."""


def format_seconds(seconds: float) -> str:
    """Three digits and the unit that suits them."""
    if seconds < 1e-3:
        return f"{_three_digits(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{_three_digits(seconds * 1e3)} ms"
    return f"{_three_digits(seconds)} s"


def format_bytes(number: float) -> str:
    """Three digits and the decimal unit that suits them; below 0.1 MB nobody cares."""
    if number < 1e5:
        return "< 0.1 MB"
    if number < 1e9:
        return f"{_three_digits(number / 1e6)} MB"
    return f"{_three_digits(number / 1e9)} GB"


def format_ratio(ratio: float) -> str:
    """How many times as much."""
    return f"{_three_digits(ratio)}x"


def _three_digits(value: float) -> str:
    # Not the "g" format, which turns 999.9 into 1e+03.
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"
