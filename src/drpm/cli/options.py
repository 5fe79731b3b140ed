"""Options of the command line, refused with what was expected and what came."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

N = TypeVar("N", bound=float)


def number(kind: type[N], least: N, most: N | None = None) -> Callable[[Any], N]:
    """A parser for an option: a number of a kind, in a range.

    Arguments:
        kind: ``int`` or ``float``.
        least: The smallest number that will do.
        most: The largest, if there is one.
    """
    word = "a whole number" if kind is int else "a number"
    span = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(value: Any) -> N:
        try:
            parsed = kind(value)
        except ValueError:
            parsed = None
        # Compared this way round, what is not a number is refused as well.
        if parsed is None or not (parsed >= least and (most is None or parsed <= most)):
            raise typer.BadParameter(f"expected {word} {span}, but got '{value}'.")
        return parsed

    return parse


Seed = Annotated[
    int,
    typer.Option(
        help="Settles what is random.", metavar="NUMBER", parser=number(int, 0, 2**63 - 1)
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Options as name=value; a value that reads as JSON is one, any other is text."""
    parsed: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise ValueError(f"An option should read name=value, not '{option}'.")
        try:
            parsed[name] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name] = value
    return parsed


def parse_seeds(text: str | None) -> list[int]:
    """Seeds such as 0,1,2; none where there is no text."""
    from drpm.training.errors import ConfigError

    if text is None:
        return []
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < 2**63 for word in words):
        raise ConfigError(f"seeds must be whole numbers such as 0,1,2, but got {text!r}.")
    numbers = [int(word) for word in words]
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"seeds must all differ, but got {text!r}.")
    return numbers
