"""Named configurations that come with the package: one TOML file each, in ``drpm/presets``.

The second word of a name, as in ``fast-cluster`` and ``paper-cluster-mnist``, is its command.
"""

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, TypeVar

from drpm.training.config import loads, suggest
from drpm.training.errors import ConfigError

C = TypeVar("C")

PRESETS: Final = resources.files("drpm") / "presets"
SUFFIX: Final = ".toml"


def names(prefix: str = "", *, folder: Traversable = PRESETS) -> list[str]:
    """The names of all presets in a folder that begin with a prefix, in alphabetical order."""
    found = [entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if is_own(entry.name)]
    return sorted(name for name in found if name.startswith(prefix))


def command_of(name: str) -> str:
    """The command of a preset.

    Example:
        >>> command_of("paper-cluster-mnist")
        'cluster'
    """
    return f"{name}-".split("-")[1]


def is_own(name: str) -> bool:
    """Whether a preset is a user's own file."""
    return name.endswith(SUFFIX)


def load(
    cls: type[C], name: str, *, command: str | None = None, folder: Traversable = PRESETS
) -> C:
    """The configuration of a preset.

    Args:
        cls: The configuration's class, with the defaults of settings that the preset leaves out.
        name: One of :func:`names`.
        command: The command that the preset must be for; by default any.
        folder: The folder of the presets, by default that of the package.
    """
    known = [each for each in names(folder=folder) if command in (None, command_of(each))]
    # Only a listed name is opened, so that a name with slashes leads nowhere.
    if name not in known:
        kind = "a preset" if command is None else f"a preset of drpm {command}"
        raise ConfigError(f"{name!r} is not {kind}; {suggest(name, known)}")
    try:
        return loads(cls, (folder / f"{name}{SUFFIX}").read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"In the preset {name!r}: {error}") from error
