"""Named configurations that come with the package: one TOML file each, in ``drpm/presets``.

The second word of a name, as in ``fast-cluster`` and ``paper-cluster-mnist``, is its command.
"""

from importlib import resources
from importlib.resources.abc import Traversable
from typing import TypeVar

from drpm.training.config import loads, suggest
from drpm.training.errors import ConfigError

C = TypeVar("C")

SUFFIX = ".toml"


def shipped() -> Traversable:
    """The folder of the presets that come with the package."""
    return resources.files("drpm") / "presets"


def names(prefix: str = "", *, folder: Traversable | None = None) -> list[str]:
    """The names of all presets, in alphabetical order.

    Args:
        prefix: How the names must begin.
        folder: The folder of the presets, by default that of the package.
    """
    folder = shipped() if folder is None else folder
    if not folder.is_dir():
        return []
    files = [entry.name for entry in folder.iterdir() if entry.name.endswith(SUFFIX)]
    return sorted(name.removesuffix(SUFFIX) for name in files if name.startswith(prefix))


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
    cls: type[C], name: str, *, command: str | None = None, folder: Traversable | None = None
) -> C:
    """The configuration of a preset.

    Args:
        cls: The configuration's class, with the defaults of settings that the preset leaves out.
        name: One of :func:`names`.
        command: The command that the preset must be for; by default any.
        folder: The folder of the presets, by default that of the package.
    """
    folder = shipped() if folder is None else folder
    known = names(folder=folder)
    if command is not None:
        own = [each for each in known if command_of(each) == command]
        if name in known and name not in own:
            raise ConfigError(
                f"{name!r} is a preset of drpm {command_of(name)}, not of drpm {command}."
            )
        known = own
    # Only a listed name is opened, so that a name with slashes leads nowhere.
    if name not in known:
        raise ConfigError(f"{name!r} is not a preset; {suggest(name, known)}")
    try:
        return loads(cls, (folder / f"{name}{SUFFIX}").read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"In the preset {name!r}: {error}") from error
