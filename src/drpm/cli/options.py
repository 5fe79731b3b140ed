"""Options that commands share, and the words that a shell completes.

Words are spelt out here, because a shell waits for them and importing torch takes seconds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from drpm.training.config import preset_names

DATA_SETS: Final = (
    "digits",
    "mnist",
    "fashion-mnist",
    "stl10",
    "celeba",
    "mpi3d",
    "multimnist",
    "mosaic",
    "arm",
)
DEVICES: Final = ("auto", "cpu", "cuda")

Completion = Callable[[str], list[str]]


def among(words: Iterable[str]) -> Completion:
    """Completes to one of some words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def presets_of(command: str) -> Completion:
    """Completes to a preset of a command."""
    return among(preset_names(command))


def settings_of(config: Any) -> Completion:
    """Completes to the name of a setting of a configuration."""

    def complete(incomplete: str) -> list[str]:
        return among(f"{name}=" for name in _names(asdict(config)))(incomplete)

    return complete


def _names(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


Seed = Annotated[int, typer.Option(help="The random seed.", min=0, max=2**63 - 1, metavar="NUMBER")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Out = Annotated[Path, typer.Option(help="Folder of a new or interrupted run.")]
Device = Annotated[
    str,
    typer.Option(help="auto, cpu, cuda or cuda:N.", autocompletion=among(DEVICES)),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run in the folder, if there is one.")
]
NameOrPath = Annotated[
    str,
    typer.Argument(
        help="A data set (see drpm data list), or your own data: a .csv, .npy, .npz or .parquet "
        "file, or a folder of images.",
        metavar="DATA",
        autocompletion=among(DATA_SETS),
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="An option of the data set; may be repeated."
    ),
]
