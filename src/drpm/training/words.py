"""Parts of sentences."""

from collections.abc import Sequence


def joined(names: Sequence[str]) -> str:
    """Names joined by commas and "and".

    Example:
        >>> joined(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
