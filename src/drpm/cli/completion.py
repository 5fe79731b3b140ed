"""Words that a shell completes.

Spelt out, because a shell waits for them and importing torch takes seconds; a test compares them
with what there is.
"""

from collections.abc import Callable, Iterable
from typing import Final

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
SWEEPS: Final = (
    "bounds",
    "table-1",
    "table-reconstruction",
    "stl10",
    "clusters",
    "table-2",
    "factor-weights",
    "noise",
    "mosaic",
    "celeba",
    "supervised",
    "list",
)
CLUSTERING_METHODS: Final = ("drpm-vc", "vade", "latent-gmm", "gmm", "contrastive-head")

FACTOR_DATA: Final = ("arm", "mpi3d")
FACTOR_METHODS: Final = ("drpm", "hg", "ada", "label")

MULTITASK_DATA: Final = ("multimnist", "mosaic", "celeba")
MULTITASK_METHODS: Final = ("drpm", "uls", "uncertainty", "gradient")


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
