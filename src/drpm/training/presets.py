"""Named configurations that come with the package: one TOML file each, in ``drpm/presets``.

The second word of a name, as in ``fast-cluster`` and ``paper-cluster-mnist``, is the command that
it is for.
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
    """The presets there are, in alphabetical order.

    Arguments:
        prefix: Only those whose name begins like this.
        folder: Where to look instead of in the package.
    """
    folder = shipped() if folder is None else folder
    if not folder.is_dir():
        return []
    files = [entry.name for entry in folder.iterdir() if entry.name.endswith(SUFFIX)]
    return sorted(name.removesuffix(SUFFIX) for name in files if name.startswith(prefix))


def command_of(name: str) -> str:
    """The command that a preset is for.

    Example:
        >>> command_of("paper-cluster-mnist")
        'cluster'
    """
    return f"{name}-".split("-")[1]


def is_own(name: str) -> bool:
    """Whether a preset is a file of the user's, not one that comes with the package."""
    return name.endswith(SUFFIX)


def load(
    cls: type[C], name: str, *, command: str | None = None, folder: Traversable | None = None
) -> C:
    """The configuration of a preset.

    Arguments:
        cls: The configuration's class; settings that the preset leaves out have its defaults.
        name: One of :func:`names`.
        command: The one command whose presets will do; by default any.
        folder: Where to look instead of in the package.
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
