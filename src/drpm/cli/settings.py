"""The configuration of a command, from its options."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

from drpm.cli.completion import CONFIGURATIONS

C = TypeVar("C")

# The table of a run's file with the settings of a command: the name of their package.
RUN_TABLES: Final = {
    command: module.split(".")[1] for command, (module, _) in CONFIGURATIONS.items()
}


def read_settings(
    cls: type[C],
    command: str,
    preset: str | None,
    settings: Sequence[str],
    device: str,
    **options: object,
) -> C:
    """The configuration of a command, from its options.

    Args:
        cls: The configuration's class.
        command: The command; presets of others are refused.
        preset: A preset of the package, or a TOML file, which may be that of a run; None for the
            defaults of the class.
        settings: Overrides, as ``name=value``; a later one wins.
        device: The device, unless ``settings`` override it.
        options: Settings with an option of their own, by name; None if it was not given.
    """
    from drpm.training import config as configs
    from drpm.training import presets
    from drpm.training.config import TrainingConfig
    from drpm.training.errors import ConfigError

    TrainingConfig(device=device)  # refused under the option's own name
    named = {name: value for name, value in options.items() if value is not None}
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in named:
            raise ConfigError(
                f"{name} must be given once, but got --{name} {named[name]} and --set {setting}."
            )
    if preset is None:
        start = cls()
    elif presets.is_own(preset):
        start = _build_own(cls, command, preset)
    else:
        start = presets.load(cls, preset, command=command)
    assignments = [f"{name}={value}" for name, value in named.items()]
    return configs.override(start, [f"training.device={device}", *assignments, *settings])


class Own(NamedTuple):
    """The settings of a user's own file.

    Args:
        settings: Values by name.
        is_run: Whether the file is the ``config.toml`` of a run, which is complete. Other files
            are completed by the quick preset of the command.
    """

    settings: dict[str, Any]
    is_run: bool


def read_own(command: str, path: str) -> Own:
    """The settings of a file: a preset, or the ``config.toml`` of a run.

    Args:
        command: The command; runs of others are refused.
        path: The file.
    """
    from drpm.training.config import read_mapping
    from drpm.training.errors import ConfigError
    from drpm.training.runs import FINGERPRINT

    mapping = read_mapping(path)
    for known, table in RUN_TABLES.items():
        if "data" in mapping and isinstance(mapping.get(table), dict):
            if known != command:
                raise ConfigError(f"{path} is of a run of drpm {known}, not of drpm {command}.")
            return Own(mapping[table], is_run=True)
    # The content hash of the data of a training in Python is not a setting.
    mapping.pop(FINGERPRINT, None)
    return Own(mapping, is_run=False)


def _build_own(cls: type[C], command: str, path: str) -> C:
    from drpm.training import presets
    from drpm.training.config import build
    from drpm.training.errors import ConfigError

    own = read_own(command, path)
    base = None if own.is_run else presets.load(cls, f"fast-{command}")
    try:
        return build(cls, own.settings, base)
    except ConfigError as error:
        raise ConfigError(f"In {path}: {error}") from error
