"""Words that a shell completes.

Spelt out, because a shell waits for them and importing torch takes seconds; a test compares them
with what there is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import typer

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

# Where the settings of a command are; these modules do without torch.
CONFIGURATIONS: Final = {
    "cluster": ("drpm.clustering.config", "ClusteringConfig"),
    "factors": ("drpm.factors.config", "FactorsConfig"),
    "multitask": ("drpm.multitask.config", "MultitaskConfig"),
    "supervised": ("drpm.supervised.config", "SupervisedConfig"),
}


def among(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Completes to one of some words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def presets_like(example: str) -> Callable[[str], list[str]]:
    """Completes to one of the presets for the command that an example is for."""

    def complete(incomplete: str) -> list[str]:
        from drpm.training.presets import command_of, names

        return [name for name in names(incomplete) if command_of(name) == command_of(example)]

    return complete


def settings_like(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes to the names of the settings of the command that is typed."""
    from dataclasses import asdict

    module, name = CONFIGURATIONS[ctx.info_name or ""]
    settings = _names(asdict(getattr(import_module(module), name)()))
    return [f"{setting}=" for setting in settings if setting.startswith(incomplete)]


def _names(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
