"""Configuration: frozen dataclasses, read from TOML, overridden by name, written back exactly.

A setting is named by its path, as in ``training.epochs``. Whatever does not fit is refused in one
sentence that says which setting, what was expected, what came and, for a misspelt name, which one
was probably meant.
"""

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from drpm.training import toml
from drpm.training.errors import ConfigError

__all__ = [
    "ConfigError",
    "TrainingConfig",
    "build",
    "check_setting",
    "check_types",
    "dumps",
    "loads",
    "nearest",
    "override",
    "read_mapping",
    "require_one_device",
    "to_mapping",
]

C = TypeVar("C")

# TOML has no word for nothing. The text stands for it where leaving the setting out would give
# its default, and on the command line.
NONE = "none"


def check_setting(config: Any, name: str, expected: str, holds: Callable[[Any], object]) -> None:
    """Refuse a configuration one of whose settings has a value that cannot be.

    Arguments:
        config: The configuration; its class calls this once it has its fields.
        name: The setting's.
        expected: What it must be, in words that fit after "must be".
        holds: Whether a value is that.

    Example:
        >>> check_setting(TrainingConfig(), "epochs", "less than 5", lambda value: value < 5)
        Traceback (most recent call last):
        drpm.training.errors.ConfigError: epochs must be less than 5, but got 10.
    """
    value = getattr(config, name)
    if not holds(value):
        raise ConfigError(f"{name} must be {expected}, but got {value!r}.")


def check_types(config: Any) -> None:
    """Refuse a configuration one of whose settings is not of its field's type.

    :func:`build` asks the same of what it reads; this is for those made in Python, where a
    misspelt word would be taken for any other one.

    Arguments:
        config: The configuration; its class calls this first of all once it has its fields.

    Example:
        >>> TrainingConfig(drop_last="no")
        Traceback (most recent call last):
        drpm.training.errors.ConfigError: drop_last must be true or false, but got 'no'.
    """
    builder, hints = _Builder(type(config)), typing.get_type_hints(type(config))
    for field in _fields(config):
        name, hint, value = field.name, hints[field.name], getattr(config, field.name)
        table = _table_of(hint)
        if table is not None:
            if not isinstance(value, hint):
                either = " or none" if isinstance(None, hint) else ""
                raise ConfigError(
                    f"{name} must be of the class {table.__name__}{either}, but got {value!r}."
                )
            continue
        # As it would be read: whole numbers become floats where these are wanted, lists tuples.
        read = builder.value(hint, _plain_numbers(value), name)
        # Only text that is read may say "none" for None.
        if read is None and value is not None:
            raise _mismatch(name, hint, value)
        object.__setattr__(config, name, read)


def _plain_numbers(value: Any) -> Any:
    """Numbers of NumPy as Python's own, which are those that can be written down."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain_numbers, value))
    # Asked by name, because NumPy takes a while to import, and help should not.
    is_number = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


def require_one_device(training: "TrainingConfig") -> None:
    """Refuse several devices and mixed precision, where a model has no use for them.

    Arguments:
        training: The settings of its training.
    """
    if training.devices != 1:
        raise ConfigError(
            f"devices must be 1 for this kind of model, but got {training.devices}; several "
            "devices are for clustering (drpm cluster --devices N)."
        )
    check_setting(
        training,
        "precision",
        "'32-true' or '64-true' for this kind of model",
        lambda kind: kind != "bf16-mixed",
    )


@dataclass(frozen=True)
class TrainingConfig:
    """What every training run needs to know.

    Arguments:
        epochs: Passes over the training data.
        batch_size: Examples in a step.
        optimizer: The rule that turns gradients into steps.
        learning_rate: Its step size.
        weight_decay: Its weight decay.
        betas: The two averaging constants of Adam; the first is the momentum of SGD.
        learning_rate_decay: What the learning rate is multiplied with every ``decay_every`` epochs.
        decay_every: How many epochs that is.
        gradient_clip: The largest norm of a gradient; none for no limit.
        drop_last: Whether examples that do not fill a batch sit out the epoch.
        seed: Settles everything that is random.
        device: ``auto`` takes a GPU where there is one; else ``cpu``, ``cuda``, ``cuda:1``, ...
        devices: How many GPUs share the work.
        precision: The floating-point numbers of the forward and backward pass.
        matmul: How float32 matrices are multiplied, and convolved, on a GPU: ``highest`` in
            float32, ``high`` in TF32, which is several times as fast and keeps 10 bits after the
            point instead of 23. Unlike torch's own default, ``highest`` includes convolutions.
        step: How a step is taken. ``eager``: as it is written. ``graph``: captured in a CUDA graph
            and replayed. ``compile``: its loss and gradient compiled by torch, with the device's
            own noise, and then captured where that is possible. ``auto``: on one CUDA device
            compiled where many steps are to come, else captured; elsewhere eager.
        checkpoint_every: Epochs from one checkpoint to the next.
        checkpoint_steps: Steps from one checkpoint to the next, besides; none for epochs alone.
        log_every: Steps from one line of metrics to the next.
    """

    epochs: int = 10
    batch_size: int = 256
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    learning_rate_decay: float = 1.0
    decay_every: int = 10
    gradient_clip: float | None = None
    drop_last: bool = True
    seed: int = 0
    device: str = "auto"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"
    matmul: Literal["highest", "high"] = "highest"
    step: Literal["auto", "eager", "graph", "compile"] = "auto"
    checkpoint_every: int = 1
    checkpoint_steps: int | None = None
    log_every: int = 50

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("epochs", "seed"):
            check_setting(self, name, "at least 0", lambda value: value >= 0)
        check_setting(self, "epochs", "at most 1000000000", lambda value: value <= 10**9)
        for name in ("batch_size", "decay_every", "devices", "checkpoint_every", "log_every"):
            check_setting(self, name, "at least 1", lambda value: value >= 1)
        for name in ("learning_rate", "learning_rate_decay"):
            check_setting(self, name, "positive", lambda value: value > 0)
        # Beyond, float32 overflows inside the optimiser.
        check_setting(self, "learning_rate", "at most 1e30", lambda value: value <= 1e30)
        check_setting(self, "weight_decay", "at least 0", lambda value: value >= 0)
        check_setting(
            self, "gradient_clip", "positive or none", lambda value: value is None or value > 0
        )
        check_setting(
            self,
            "checkpoint_steps",
            "at least 1 or none",
            lambda value: value is None or value >= 1,
        )
        check_setting(
            self, "betas", "two numbers in [0, 1)", lambda pair: all(0 <= beta < 1 for beta in pair)
        )
        # What torch takes as a seed.
        check_setting(self, "seed", "less than 2 ** 63", lambda value: value < 2**63)
        check_setting(
            self,
            "device",
            "'auto', 'cpu', 'cuda' or 'cuda:' with a number (mps lacks float64, which laws need)",
            lambda value: re.fullmatch(r"auto|cpu|cuda(:\d+)?", value),
        )


# From nested dictionaries to dataclasses.


def build(cls: type[C], mapping: Mapping[str, Any], base: C | None = None) -> C:
    """A configuration from nested dictionaries; settings left out have their defaults.

    A nested table is laid over the default of its own field, which may differ from the defaults
    of the nested class.

    Arguments:
        cls: A dataclass whose fields are booleans, numbers, strings, literals, tuples, unions of
            these, or such dataclasses themselves.
        mapping: The values by name.
        base: What settings that are left out are taken from instead.
    """
    config: C = _Builder(cls).table(cls, mapping, "", base)
    return config


def override(config: C, assignments: Sequence[str]) -> C:
    """The configuration with some settings replaced, each given as ``name=value``.

    The value is read by the setting's type: ``true`` and ``false``, numbers, text, lists with
    commas, and ``none`` where a setting may have none.

    Arguments:
        config: The configuration to start from; it is left as it is.
        assignments: Texts such as ``training.epochs=3``; a later one wins.

    Example:
        >>> override(TrainingConfig(), ["epochs=3", "betas=0.95,0.999"]).betas
        (0.95, 0.999)
    """
    cls = type(config)
    mapping = to_mapping(config)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"An override must look like name=value, but got {assignment!r}.")
        _assign(cls, mapping, name, text.strip())
    return build(cls, mapping)


def to_mapping(config: Any) -> dict[str, Any]:
    """Nested dictionaries and lists from which :func:`build` makes the same configuration."""
    mapping: dict[str, Any] = _plain(config)
    return mapping


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in _fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _fields(cls: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _default(field: dataclasses.Field[Any], base: Any) -> Any:
    """What a field has where nothing is said, or ``MISSING``."""
    if base is not None:
        return getattr(base, field.name)
    return field.default_factory() if field.default_factory is not MISSING else field.default


class _Builder:
    """Builds one configuration; the root class is where misspelt names are looked up."""

    def __init__(self, root: type[Any]) -> None:
        self.root = root

    def table(self, cls: Any, mapping: Any, path: str, base: Any) -> Any:
        if not isinstance(mapping, Mapping):
            raise _mismatch(path, cls, mapping)
        hints = typing.get_type_hints(cls)
        fields = {field.name: field for field in _fields(cls)}
        for key in mapping:
            if key not in fields:
                raise _unknown(self.root, _join(path, str(key)))
        values = {}
        for name, field in fields.items():
            default = _default(field, base)
            if name in mapping:
                values[name] = self.value(hints[name], mapping[name], _join(path, name), default)
            elif default is not MISSING:
                values[name] = default
            else:
                raise ConfigError(
                    f"{_join(path, name)} must be given, {_expected(hints[name])}: "
                    "it has no default."
                )
        try:
            return cls(**values)
        except ValueError as error:
            raise ConfigError(_located(str(error), path, fields)) from error

    def value(self, hint: Any, value: Any, path: str, default: Any = None) -> Any:
        if dataclasses.is_dataclass(hint):
            base = default if isinstance(default, typing.cast(type, hint)) else None
            return self.table(hint, value, path, base)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self.union(hint, value, path, default)
        if origin is tuple and isinstance(value, list | tuple):
            hints = _entry_hints(arguments, len(value))
            if hints is not None:
                entries = zip(hints, value, strict=True)
                return tuple(self.value(h, x, f"{path}[{i}]") for i, (h, x) in enumerate(entries))
        elif origin is Literal:
            # `1 == True`, so the type has to match as well.
            if any(type(value) is type(choice) and value == choice for choice in arguments):
                return value
        elif hint is float:
            if type(value) in (int, float) and math.isfinite(value):
                return float(value)
        elif hint in (bool, int, str):
            if type(value) is hint:
                return value
        elif origin is not tuple:
            raise TypeError(f"{path} has the type {hint}, which a configuration cannot hold.")
        raise _mismatch(path, hint, value)

    def union(self, hint: Any, value: Any, path: str, default: Any) -> Any:
        members = typing.get_args(hint)
        if types.NoneType in members:
            if value is None or (value == NONE and str not in members):
                return None
            members = tuple(member for member in members if member is not types.NoneType)
        if len(members) > 1:
            for member in members:
                try:
                    return self.value(member, value, path, default)
                except ConfigError:
                    continue
            raise _mismatch(path, hint, value)
        if dataclasses.is_dataclass(members[0]) and isinstance(value, Mapping):
            return self.value(members[0], value, path, default)
        try:
            return self.value(members[0], value, path, default)
        except ConfigError as error:
            raise _mismatch(path, hint, value) from error


def _entry_hints(arguments: tuple[Any, ...], count: int) -> tuple[Any, ...] | None:
    """The type of every entry of a tuple, or None where their number is wrong."""
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return (arguments[0],) * count
    return arguments if len(arguments) == count else None


# What errors say.


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _expected(hint: Any) -> str:
    """A type in words that fit after "must be"."""
    if dataclasses.is_dataclass(hint):
        return "a table of settings"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        members = [_expected(a) for a in arguments if a is not types.NoneType]
        return " or ".join(members + [NONE] * (types.NoneType in arguments))
    if origin is tuple:
        if arguments[1:] == (Ellipsis,):
            return f"a list of which every entry is {_expected(arguments[0])}"
        return f"a list of {len(arguments)}: " + ", ".join(_expected(a) for a in arguments)
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    return words.get(hint, str(hint))


def _mismatch(path: str, hint: Any, value: Any) -> ConfigError:
    sentence = f"{path or 'The configuration'} must be {_expected(hint)}, but got {value!r}"
    choices = [choice for choice in typing.get_args(hint) if isinstance(choice, str)]
    meant = nearest(value, choices) if isinstance(value, str) else []
    return ConfigError(sentence + (f"; did you mean {meant[0]!r}?" if meant else "."))


def _unknown(root: type[Any], name: str) -> ConfigError:
    names = list(_names(root))
    table, _, last = name.rpartition(".")
    # Likeliest first: the right setting without its table or in another one, a slip among the
    # settings of that table, a slip in both. Of names in one table all look alike as a whole.
    beside = _entries(names, table)
    meant = [known for known in names if known.rpartition(".")[2] == last][:3]
    if not meant:
        meant = [_join(table, known) for known in nearest(last, beside)]
        if not beside:
            meant = nearest(name, names)
        anywhere = {known.rpartition(".")[2]: known for known in names}
        meant = (meant or [anywhere[known] for known in nearest(last, list(anywhere))])[:1]
    if meant:
        return ConfigError(f"{name} is not a setting; did you mean {' or '.join(meant)}?")
    there = f"{table} has" if table and beside else "there are"
    return ConfigError(
        f"{name} is not a setting; {there} {', '.join(beside or _entries(names, ''))}."
    )


def _entries(names: Sequence[str], table: str) -> list[str]:
    """What a table holds, by its names there."""
    return [name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == table]


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """The known names that look most like a misspelt one, the likeliest first."""
    return difflib.get_close_matches(name, known, n=3, cutoff=0.6)


def _located(sentence: str, path: str, fields: Mapping[str, Any]) -> str:
    """A complaint of a nested class, whose fields do not know the table they are in."""
    if not path:
        return sentence
    first = re.split(r"\W", sentence, maxsplit=1)[0]
    return f"{path}.{sentence}" if first in fields else f"{path}: {sentence}"


# Names and values on the command line.


def _table_of(hint: Any) -> Any | None:
    """The dataclass that a field holds, be it optional, or None."""
    members = [a for a in typing.get_args(hint) if a is not types.NoneType] or [hint]
    return members[0] if len(members) == 1 and dataclasses.is_dataclass(members[0]) else None


def _names(cls: Any, path: str = "") -> Iterator[str]:
    """The dotted names of all settings and tables."""
    hints = typing.get_type_hints(cls)
    for field in _fields(cls):
        name = _join(path, field.name)
        yield name
        table = _table_of(hints[field.name])
        if table is not None:
            yield from _names(table, name)


def _assign(cls: type[Any], mapping: dict[str, Any], name: str, text: str) -> None:
    *tables, last = name.split(".")
    current: Any = cls
    for key in [*tables, last]:
        hints = typing.get_type_hints(current) if current is not None else {}
        if key not in hints:
            raise _unknown(cls, name)
        hint, current = hints[key], _table_of(hints[key])
    for key in tables:
        if mapping[key] is None:
            mapping[key] = {}
        mapping = mapping[key]
    if current is not None and text.lower() != NONE:
        inner = ", ".join(_names(current, name))
        raise ConfigError(f"{name} is a table; its settings are {inner}.")
    mapping[last] = _parse(hint, text)


def _parse(hint: Any, text: str) -> Any:
    """Text as the value it stands for; what does not parse is left for the type check."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if types.NoneType in arguments and text.lower() == NONE:
            return None
        members = [a for a in arguments if a is not types.NoneType]
        parsed = [_parse(member, text) for member in members]
        # Text is what everything can be read as, so it comes last.
        return next((value for value in parsed if not isinstance(value, str)), text)
    if origin is Literal:
        return next((choice for choice in arguments if str(choice) == text), text)
    if origin is tuple:
        return _parse_list(arguments, text)
    if hint is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return text
    return text


def _parse_list(arguments: tuple[Any, ...], text: str) -> Any:
    if text.startswith("["):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    entries = [entry.strip() for entry in text.split(",")] if text else []
    hints = _entry_hints(arguments, len(entries)) or (str,) * len(entries)
    return [_parse(hint, entry) for hint, entry in zip(hints, entries, strict=True)]


# TOML.


def dumps(config: Any) -> str:
    """The configuration as TOML, from which :func:`loads` makes the same one.

    Settings that are None are left out.
    """
    return toml.dumps(_without_none(config, None, ""))


def loads(cls: type[C], text: str) -> C:
    """A configuration from TOML."""
    return build(cls, _parse_toml(text))


def read_mapping(path: Path | str) -> dict[str, Any]:
    """What a TOML file holds; an error names the file."""
    try:
        return _parse_toml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The file {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The file {path} is not text in UTF-8.") from error
    except ConfigError as error:
        raise ConfigError(f"In {path}: {error}") from error


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration is not valid TOML: {error}.") from error


def _without_none(config: Any, base: Any, path: str) -> dict[str, Any]:
    hints = typing.get_type_hints(type(config))
    mapping: dict[str, Any] = {}
    for field in _fields(config):
        name, value = _join(path, field.name), getattr(config, field.name)
        default = _default(field, base)
        if dataclasses.is_dataclass(value):
            mapping[field.name] = _without_none(
                value, default if isinstance(default, type(value)) else None, name
            )
        elif value is not None:
            mapping[field.name] = _plain(value)
        elif default is not None:
            # Left out, it would come back as its default.
            if str in typing.get_args(hints[field.name]):
                raise ConfigError(f"{name} is none, which TOML cannot tell from the text 'none'.")
            mapping[field.name] = NONE
    return mapping
