"""The settings that the options of a command ask for."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

from drpm.cli.completion import CONFIGURATIONS

C = TypeVar("C")

# The table of a run's file that has the settings of a command: named like the package they are of.
RUN_TABLES: Final = {
    command: module.split(".")[1] for command, (module, _) in CONFIGURATIONS.items()
}


def read_settings(
    cls: type[C],
    command: str,
    preset: str,
    settings: Sequence[str],
    device: str,
    **options: object,
) -> C:
    """The configuration that the options of a command ask for.

    Arguments:
        cls: Its class, with the settings of a training.
        command: The command; presets of others are refused.
        preset: What it starts from: one that comes with the package, or a TOML file, which may be
            that of a run.
        settings: Changes, as ``name=value``; a later one wins.
        device: Where; a setting may still say otherwise.
        options: Settings with an option of their own, by their names; None where it is not given.
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
    if presets.is_own(preset):
        start = _build_own(cls, command, preset)
    else:
        start = presets.load(cls, preset, command=command)
    assignments = [f"{name}={value}" for name, value in named.items()]
    return configs.override(start, [f"training.device={device}", *assignments, *settings])


class Own(NamedTuple):
    """What a file of the user's says.

    Arguments:
        settings: By their names.
        is_run: Whether it is that of a run, which leaves none out; else what it leaves out is as
            in the quick preset of the command.
    """

    settings: dict[str, Any]
    is_run: bool


def read_own(command: str, path: str) -> Own:
    """The settings of a file: a preset, or what a run was begun with.

    Arguments:
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
    # What a training that was begun from Python knows its data by is no setting.
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
