"""Options of the command line, refused with what was expected and what came."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from drpm.cli.completion import DEVICES, among, presets_like, settings_like

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


def whole_number_option(
    help: str, *, least: int, most: int | None = None, show_default: bool | str = True
) -> Any:
    """An option that is a whole number in a range.

    Arguments:
        help: What it is for.
        least: The smallest number that will do.
        most: The largest, if there is one.
        show_default: Whether its default is shown, or what is shown in its place.
    """
    parser = number(int, least, most)
    return typer.Option(help=help, metavar="NUMBER", parser=parser, show_default=show_default)


def preset_option(example: str) -> Any:
    """An option that names a preset.

    Arguments:
        example: One that its help names; the others that a shell completes are for its command.
    """
    return typer.Option(
        help=f"Settings to start from: a preset, such as {example}, or a .toml file.",
        metavar="NAME_OR_FILE",
        autocompletion=presets_like(example),
    )


def seeds_option(together: str) -> Any:
    """An option that is read by :func:`parse_seeds`.

    Arguments:
        together: What its help says of several that are trained together.
    """
    return typer.Option(
        help=f"One seed, or several such as 0,1,2, each in its own folder; {together}.",
        show_default="0",
    )


Seed = Annotated[int, whole_number_option("Settles what is random.", least=0, most=2**63 - 1)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

# What commands that train have in common.
Out = Annotated[Path, typer.Option(help="The run's folder, new or interrupted.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting, such as training.epochs=50; may be repeated.",
        autocompletion=settings_like,
    ),
]
Device = Annotated[
    str,
    typer.Option(help="auto, cpu, cuda, or cuda: with a number.", autocompletion=among(DEVICES)),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start anew where a run lies.")]


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


def seed_folders(out: Path, seeds: Sequence[int]) -> list[Path]:
    """Where the run of each seed lies: one alone in the given folder, several in folders of it."""
    return [out] if len(seeds) == 1 else [out / f"seed-{seed}" for seed in seeds]
