"""Configuration: frozen dataclasses checked by pydantic, read from TOML and overridden by name.

A setting is named by its path, as in ``training.epochs``. Error messages have the setting, the
expected and the given value and, for a misspelt name, the nearest valid one.
"""

import dataclasses
import difflib
import functools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, dataclass_transform

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from drpm.training.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

C = TypeVar("C")

# For None in files and on the command line, since TOML has no null.
NONE: Final = "none"
# One TOML file each. The second word of a name, as in ``paper-cluster-mnist``, is its command.
PRESETS: Final = resources.files("drpm") / "presets"
SUFFIX: Final = ".toml"


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(cls: type[C]) -> type[C]:
    """Make a class a frozen, validated dataclass; all fields need a default."""
    options = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    checked: Any = pydantic_dataclass(frozen=True, config=options)(cls)
    construct = checked.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {name: _plain(value) for name, value in kwargs.items()}
        try:
            construct(self, *map(_plain, args), **given)
        except ValidationError as error:
            raise ConfigError(_sentence(error)) from None

    checked.__init__ = init
    return checked  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """Convert lists to tuples and NumPy scalars to Python numbers."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    # By name, because importing NumPy would slow down ``--help``.
    is_number = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


def check_setting(config: Any, name: str, expected: str, holds: Callable[[Any], object]) -> None:
    """Raise unless ``holds(value)``; ``expected`` follows "must be" in the message."""
    value = getattr(config, name)
    if not holds(value):
        raise ConfigError(f"{name} must be {expected}, but got {value!r}.")


@settings
class TrainingConfig:
    """Training settings.

    Args:
        epochs: Passes over the training data.
        batch_size: Examples per step and device.
        optimizer: The optimizer.
        learning_rate: Its learning rate.
        weight_decay: Its weight decay.
        betas: The coefficients of Adam's running averages; the first is the momentum of SGD.
        learning_rate_decay: Factor applied to the learning rate every ``decay_every`` epochs.
        decay_every: Epochs between decays.
        drop_last: Whether to drop the last batch of an epoch if it is incomplete.
        seed: The random seed.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``, ...
        devices: The number of GPUs that share the work.
        precision: The floating-point type of parameters and activations.
        matmul: Precision of float32 matrix products and convolutions on a GPU: ``highest`` is
            float32, ``high`` is TF32, which is several times as fast and has 10 mantissa bits
            instead of 23. Unlike torch's own default, ``highest`` includes convolutions.
        step: How a step is run. ``eager``: operation by operation. ``graph``: captured in a CUDA
            graph and replayed. ``compile``: loss and gradient compiled by torch, with the device's
            own noise, and captured where possible. ``auto``: on one CUDA device compiled for long
            runs, else captured; elsewhere eager.
        checkpoint_every: Epochs between checkpoints.
        checkpoint_steps: Steps between additional checkpoints; None to disable them.
        log_every: Steps between lines of metrics.
    """

    epochs: Annotated[NonNegativeInt, Field(le=10**9)] = 10
    batch_size: PositiveInt = 256
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    # Beyond 1e30, float32 overflows inside the optimizer.
    learning_rate: Annotated[PositiveFloat, Field(le=1e30)] = 1e-3
    weight_decay: NonNegativeFloat = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    learning_rate_decay: PositiveFloat = 1.0
    decay_every: PositiveInt = 10
    drop_last: bool = True
    seed: Annotated[NonNegativeInt, Field(lt=2**63)] = 0
    device: str = "auto"
    devices: PositiveInt = 1
    precision: Literal["32-true", "64-true"] = "32-true"
    matmul: Literal["highest", "high"] = "highest"
    step: Literal["auto", "eager", "graph", "compile"] = "auto"
    checkpoint_every: PositiveInt = 1
    checkpoint_steps: PositiveInt | None = None
    log_every: PositiveInt = 50

    def __post_init__(self) -> None:
        check_setting(
            self, "betas", "two numbers in [0, 1)", lambda pair: all(0 <= beta < 1 for beta in pair)
        )
        check_setting(
            self,
            "device",
            "'auto', 'cpu', 'cuda' or 'cuda:N' (mps lacks float64, which drpm needs)",
            lambda value: re.fullmatch(r"auto|cpu|cuda(:\d+)?", value),
        )


def require_classes(name: str, labels: "Tensor", examples: int, classes: int) -> None:
    """Raise unless labels are one class per example, from 0 to ``classes - 1``."""
    if labels.shape != (examples,) or labels.is_floating_point() or labels.is_complex():
        raise ConfigError(
            f"{name} must be integers of shape ({examples},), but got "
            f"{labels.dtype} of shape {tuple(labels.shape)}."
        )
    if examples == 0:
        raise ConfigError(f"{name} must not be empty.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ConfigError(
            f"{name} must be from 0 to {classes - 1}, but got values from {low} to {high}."
        )


def require_unit_interval(
    name: str, values: "Tensor", condition: str = "", tolerance: float = 0.0
) -> None:
    """Raise unless all values lie in [0, 1]; ``condition`` ends the requirement in the message."""
    low, high = values.min().item(), values.max().item()
    if not (low >= -tolerance and high <= 1 + tolerance):  # also for NaN
        raise ConfigError(
            f"{name} must lie in [0, 1]{condition}, but got values from {low:g} to {high:g}."
        )


def build(cls: type[C], mapping: Mapping[str, Any], base: C | None = None) -> C:
    """A configuration from nested dictionaries; other settings are from ``base`` or defaults."""
    known: Any = cls() if base is None else base
    values = dataclasses.asdict(known)
    return _validate(cls, _merge(values, mapping, [*dict(flatten(values))]), strict=True)


def override(config: C, assignments: Sequence[str]) -> C:
    """Replace settings of a configuration by ``name=value`` assignments; the last one wins."""
    values = dataclasses.asdict(config)  # type: ignore[call-overload]
    known = dict(flatten(values))
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not name:
            raise ConfigError(f"A setting must have the form name=value, but got {assignment!r}.")
        given: Any = NONE if text.lower() == NONE else text
        if isinstance(known.get(name), tuple):
            entries = text.removeprefix("[").removesuffix("]").split(",")
            given = [entry.strip() for entry in entries if entry.strip()]
        for key in reversed(name.split(".")):
            given = {key: given}
        values = _merge(values, given, [*known])
    # Text is converted to the type of its setting.
    return _validate(type(config), values, strict=False)


def dumps(config: Any) -> str:
    """A configuration or a mapping as TOML, for :func:`loads`.

    None is omitted, since it is the default of every optional setting. The text identifies finished
    studies, so it must not depend on the version of a library.
    """
    mapping = config if isinstance(config, Mapping) else dataclasses.asdict(config)
    tables = {"": mapping}
    tables |= {name: x for name, x in flatten(mapping) if isinstance(x, Mapping)}
    text = ""
    for path, table in tables.items():
        text += f"\n[{path}]\n" if path else ""
        for name, value in table.items():
            if value is not None and not isinstance(value, Mapping):
                # JSON and TOML differ in only one character here.
                line = f"{name} = {json.dumps(value, ensure_ascii=False, allow_nan=False)}\n"
                text += line.replace("\x7f", "\\u007f")
    return text


def loads(cls: type[C], text: str) -> C:
    """A configuration from TOML."""
    return build(cls, _parse(text))


def read_mapping(path: Path | str) -> dict[str, Any]:
    """The content of a TOML file; an error names the file."""
    try:
        return _parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The file {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The file {path} is not text in UTF-8.") from error
    except ConfigError as error:
        raise ConfigError(f"In {path}: {error}") from error


def preset_names(command: str | None = None) -> list[str]:
    """The sorted names of all presets, or of those for a command."""
    files = (entry.name for entry in PRESETS.iterdir())
    names = sorted(name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX))
    return [name for name in names if command in (None, *name.split("-")[1:2])]


def load_preset(cls: type[C], name: str, *, command: str | None = None) -> C:
    """Load a preset; other settings have their defaults."""
    known = preset_names(command)
    if name not in known:  # also rejects names with slashes
        kind = "a preset" if command is None else f"a preset of drpm {command}"
        raise ConfigError(f"{name!r} is not {kind}; {suggest(name, known)}")
    try:
        return loads(cls, (PRESETS / f"{name}{SUFFIX}").read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"In the preset {name!r}: {error}") from error


def _validate(cls: type[C], values: dict[str, Any], *, strict: bool) -> C:
    try:
        # JSON mode converts lists to tuples and tables to dataclasses even in strict mode.
        return TypeAdapter(cls).validate_json(json.dumps(values, default=str), strict=strict)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration is not valid TOML: {error}.") from error


def _merge(
    known: dict[str, Any], given: Any, names: Sequence[str], path: str = ""
) -> dict[str, Any]:
    """Override the values of a configuration by those of a mapping."""
    if not isinstance(given, Mapping):
        where = path.removesuffix(".") or "The configuration"
        raise ConfigError(f"{where} must be a table of settings, but got {given!r}.")
    merged = dict(known)
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"{path}{key} is not a setting; {_suggest_setting(path, key, names)}")
        if isinstance(known[key], dict):
            value = _merge(known[key], value, names, f"{path}{key}.")
        elif value == NONE and not isinstance(known[key], str):
            value = None
        merged[key] = value
    return merged


def flatten(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of all tables and settings."""
    for key, value in table.items():
        yield f"{path}{key}", value
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}{key}.")


def names(config: Any) -> list[str]:
    """The dotted names of all settings of a configuration."""
    known = flatten(dataclasses.asdict(config))
    return [name for name, value in known if not isinstance(value, Mapping)]


def suggest(name: str, known: Sequence[str]) -> str:
    """The nearest known names, or all of them, to end an error message about an unknown name."""
    if meant := difflib.get_close_matches(name, known):
        return f"did you mean {' or '.join(map(repr, meant))}?"
    return f"there are {', '.join(map(repr, known)) or 'none'}."


def _suggest_setting(path: str, key: str, names: Sequence[str]) -> str:
    siblings = [name for name in names if name.rpartition(".")[0] == path[:-1]]
    # Prefer names in the same table, then in the first table.
    leaves = {name.rpartition(".")[2]: name for name in (*reversed(names), *siblings)}
    if meant := difflib.get_close_matches(key, leaves, n=1):
        return f"did you mean {leaves[meant[0]]}?"
    return f"there are {', '.join(siblings)}."


def _sentence(invalid: ValidationError) -> str:
    """The first pydantic error as one sentence."""
    error = invalid.errors()[0]
    kind, value = error["type"], error["input"]
    name = re.sub(r"\.(\d+)", r"[\1]", ".".join(map(str, error["loc"])))
    if kind == "value_error":
        sentence = str(error["ctx"]["error"])
        return f"{name}.{sentence}" if name and sentence[0].islower() else sentence
    if kind == "unexpected_keyword_argument":
        return f"{name} is not a setting."
    expected = error["msg"].partition(" should ")[2].partition(", unable to ")[0]
    expected = expected.replace("greater than or equal to", "at least")
    expected = expected.replace("less than or equal to", "at most")
    return f"{name} must {expected or 'be given'}, but got {value!r}."
