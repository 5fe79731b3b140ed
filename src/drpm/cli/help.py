"""How help reads: flags take no value, and an argument is no choice in braces."""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption


def _as_typed(parameters: Iterable[Any]) -> list[Any]:
    """The parameters, with no word for the value of those that take none."""
    found = list(parameters)
    for parameter in found:
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""
    return found


class PlainCommand(TyperCommand):
    """A command whose help shows its parameters as they are typed."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_typed(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


class PlainGroup(TyperGroup):
    """A group of commands, with help as theirs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_typed(super().get_params(ctx))
