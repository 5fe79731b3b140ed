"""Configuration: exact round trips through TOML, overrides, and refusals in one sentence."""

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drpm.clustering import config as clustering
from drpm.factors.config import FactorsConfig
from drpm.multitask import config as multitask
from drpm.supervised.config import SupervisedConfig
from drpm.training.config import (
    ConfigError,
    TrainingConfig,
    build,
    check_types,
    dumps,
    loads,
    override,
    read_mapping,
    require_one_device,
    to_mapping,
)


@dataclass(frozen=True)
class Inner:
    name: str = "inner"
    sizes: tuple[int, ...] = (500, 500, 2000)
    rate: float = 1e-4


@dataclass(frozen=True)
class Outer:
    data: str = "digits"
    flag: bool = False
    count: int = 3
    scale: float = 0.5
    pair: tuple[float, float] = (0.9, 0.999)
    words: tuple[str, ...] = ()
    grid: tuple[tuple[int, int], ...] = ()
    limit: float | None = None
    cap: int | None = 7
    title: str | None = None
    hard: bool | Literal["sizes"] = True
    kind: Literal["neuralsort", "softsort"] = "neuralsort"
    inner: Inner = field(default_factory=lambda: Inner(rate=0.25))
    extra: Inner | None = None
    layers: tuple[Inner, ...] = ()
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must be at least 0, but got {self.count}.")


@dataclass(frozen=True)
class Needy:
    path: str
    outer: Outer = field(default_factory=Outer)


# TOML.

texts = st.text(st.characters(codec="utf-8"), max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, texts, st.lists(st.integers(), max_size=3).map(tuple), floats)
outers = st.builds(
    Outer,
    data=texts,
    flag=st.booleans(),
    count=st.integers(min_value=0),
    scale=floats,
    pair=st.tuples(floats, floats),
    words=st.lists(texts, max_size=3).map(tuple),
    grid=st.lists(st.tuples(st.integers(), st.integers()), max_size=2).map(tuple),
    limit=st.none() | floats,
    cap=st.none() | st.integers(),
    title=st.none() | texts,
    hard=st.booleans() | st.just("sizes"),
    kind=st.sampled_from(["neuralsort", "softsort"]),
    inner=inners,
    extra=st.none() | inners,
    layers=st.lists(inners, max_size=2).map(tuple),
)


def exactly(config: Any) -> str:
    """Tells -0.0 from 0.0 and 1 from 1.0, which equality does not."""
    return repr(config)


@given(outers)
def test_toml_gives_the_same_configuration_back(config: Outer) -> None:
    again = loads(Outer, dumps(config))
    assert again == config
    assert exactly(again) == exactly(config)
    assert exactly(build(Outer, to_mapping(config))) == exactly(config)


@pytest.mark.parametrize(
    "value", [1e-4, 0.1, 1e-5, 1e16, 1e300, 5e-324, -0.0, 1 / 3, 123456789.123456789, 2.0**70]
)
def test_floats_are_exact(value: float) -> None:
    assert exactly(loads(Outer, dumps(Outer(scale=value))).scale) == exactly(value)


@pytest.mark.parametrize(
    "value", ['"', "\\", "a\nb\r\n\tc", "'''\"\"\"", "\0\x1b\x7f\x85", "# no = comment", "é☃😀", ""]
)
def test_strings_are_exact(value: str) -> None:
    config = Outer(data=value, words=(value, value), inner=Inner(name=value), title=value)
    assert loads(Outer, dumps(config)) == config


def test_what_the_text_looks_like() -> None:
    assert dumps(Inner(name='a "b"', rate=1e-4)) == (
        'name = "a \\"b\\""\nsizes = [500, 500, 2000]\nrate = 0.0001\n'
    )
    text = dumps(Outer())
    assert "limit" not in text, "None is left out"
    assert "\n[inner]\nname = " in text
    assert tomllib.loads(text)["training"]["betas"] == [0.9, 0.999]


def test_none_survives_where_it_is_not_the_default() -> None:
    config = Outer(cap=None)
    assert 'cap = "none"' in dumps(config)
    assert loads(Outer, dumps(config)) == config

    @dataclass(frozen=True)
    class Text:
        title: str | None = "something"

    with pytest.raises(ConfigError, match="title is none, which TOML cannot tell from the text"):
        dumps(Text(title=None))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="scale must be a value that TOML can hold exactly"):
        dumps(Outer(scale=value))
    with pytest.raises(ConfigError, match="scale must be a finite number, but got"):
        build(Outer, {"scale": value})
    with pytest.raises(ConfigError, match="scale must be a finite number, but got"):
        loads(Outer, f"scale = {value}")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"inner\.name must be a value that TOML can hold exactly"
    ):
        dumps(Outer(inner=Inner(name="\ud800")))


def test_a_file_is_read_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("count = 4\n", encoding="utf-8")
    assert read_mapping(path) == {"count": 4}
    path.write_text("count = \n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"In .*config\.toml: .* not valid TOML: .*line 1"):
        read_mapping(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"config\.toml is not text in UTF-8"):
        read_mapping(path)
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read \(No such file"):
        read_mapping(tmp_path / "nowhere.toml")


# Building.


def test_what_is_left_out_may_come_from_another() -> None:
    base = Outer(count=7, inner=Inner(name="own"))
    found = build(Outer, {"inner": {"rate": 0.5}}, base)
    assert found == replace(base, inner=replace(base.inner, rate=0.5))
    assert build(Outer, {}, base) == base


def test_configurations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainingConfig().epochs = 3  # type: ignore[misc]


def test_a_nested_table_keeps_the_defaults_of_its_field() -> None:
    assert build(Outer, {"inner": {"name": "x"}}).inner == Inner(name="x", rate=0.25)
    assert build(Outer, {"extra": {"name": "x"}}).extra == Inner(name="x")


def test_whole_numbers_become_floats_and_lists_tuples() -> None:
    config = build(Outer, {"scale": 2, "pair": [0, 1], "grid": [[1, 2], [3, 4]]})
    assert exactly(config.scale) == "2.0"
    assert exactly(config.pair) == "(0.0, 1.0)"
    assert config.grid == ((1, 2), (3, 4))


@pytest.mark.parametrize(
    ("mapping", "complaint"),
    [
        ({"cuont": 3}, "cuont is not a setting; did you mean count?"),
        (
            {"training": {"epoch": 3}},
            "training.epoch is not a setting; did you mean training.epochs?",
        ),
        ({"epochs": 3}, "epochs is not a setting; did you mean training.epochs?"),
        ({"epoch": 3}, "epoch is not a setting; did you mean training.epochs?"),
        ({"trainin": {}}, "trainin is not a setting; did you mean training?"),
        ({"zzzzzz": 3}, "zzzzzz is not a setting; there are data, flag, count,"),
        ({3: 3}, "3 is not a setting; there are data,"),
        ({"count": "ten"}, "count must be a whole number, but got 'ten'."),
        ({"count": 3.0}, "count must be a whole number, but got 3.0."),
        ({"count": True}, "count must be a whole number, but got True."),
        ({"count": None}, "count must be a whole number, but got None."),
        ({"scale": True}, "scale must be a finite number, but got True."),
        ({"scale": "1"}, "scale must be a finite number, but got '1'."),
        ({"flag": 1}, "flag must be true or false, but got 1."),
        ({"data": 3}, "data must be text, but got 3."),
        ({"limit": "x"}, "limit must be a finite number or none, but got 'x'."),
        ({"hard": "size"}, "hard must be true or false or one of 'sizes', but got 'size'"),
        (
            {"kind": "softort"},
            "kind must be one of 'neuralsort', 'softsort', but got 'softort'; "
            "did you mean 'softsort'?",
        ),
        (
            {"pair": [1.0]},
            "pair must be a list of 2: a finite number, a finite number, but got [1.0].",
        ),
        ({"pair": 1.0}, "pair must be a list of 2: a finite number, a finite number, but got 1.0."),
        ({"pair": [1.0, "a"]}, "pair[1] must be a finite number, but got 'a'."),
        (
            {"words": "a"},
            "words must be a list of which every entry is text, but got 'a'.",
        ),
        ({"grid": [[1, 2], [3, "x"]]}, "grid[1][1] must be a whole number, but got 'x'."),
        ({"inner": 3}, "inner must be a table of settings, but got 3."),
        ({"extra": 3}, "extra must be a table of settings or none, but got 3."),
        ({"extra": {"rate": "x"}}, "extra.rate must be a finite number, but got 'x'."),
        ({"layers": [{"rate": "x"}]}, "layers[0].rate must be a finite number, but got 'x'."),
        ({"count": -1}, "count must be at least 0, but got -1."),
        ({"training": {"epochs": -1}}, "training.epochs must be at least 0, but got -1."),
        ({"training": {"betas": [0.9, 1.0]}}, "training.betas must be two numbers in [0, 1), but"),
        ([], "The configuration must be a table of settings, but got []."),
    ],
)
def test_what_does_not_fit_is_refused(mapping: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, mapping)
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_a_setting_without_a_default_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"path must be given, text: it has no default\."):
        build(Needy, {})
    assert build(Needy, {"path": "x"}) == Needy("x")
    with pytest.raises(ConfigError, match=r"outer\.count must be at least 0, but got -1\."):
        build(Needy, {"path": "x", "outer": {"count": -1}})


def test_a_complaint_that_names_no_field_gets_its_table() -> None:
    @dataclass(frozen=True)
    class Odd:
        a: int = 1

        def __post_init__(self) -> None:
            if self.a == 2:
                raise ValueError("Two is too many.")

    @dataclass(frozen=True)
    class Around:
        odd: Any

    Around.__annotations__["odd"] = Odd
    with pytest.raises(ConfigError, match=r"odd: Two is too many\."):
        build(Around, {"odd": {"a": 2}})


def test_a_type_that_no_configuration_can_hold_is_a_bug() -> None:
    @dataclass(frozen=True)
    class Strange:
        a: complex = 1j

    with pytest.raises(
        TypeError, match=r"a has the type .*complex.*, which a configuration cannot"
    ):
        build(Strange, {"a": 1})


# Overrides.


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("count=5", "count", 5),
        ("count = 1_000", "count", 1000),
        ("scale=1e-4", "scale", 1e-4),
        ("scale=2", "scale", 2.0),
        ("flag=true", "flag", True),
        ("flag=False", "flag", False),
        ("data=a=b", "data", "a=b"),
        ("data=", "data", ""),
        ("data=3", "data", "3"),
        ("pair=0.5, 0.6", "pair", (0.5, 0.6)),
        ("pair=[0.5, 0.6]", "pair", (0.5, 0.6)),
        ("words=a, b,c", "words", ("a", "b", "c")),
        ("words=", "words", ()),
        ("grid=[[1, 2]]", "grid", ((1, 2),)),
        ("limit=3", "limit", 3.0),
        ("limit=none", "limit", None),
        ("cap=None", "cap", None),
        ("title=x", "title", "x"),
        ("hard=sizes", "hard", "sizes"),
        ("hard=false", "hard", False),
        ("kind=softsort", "kind", "softsort"),
    ],
)
def test_a_setting_is_overridden_by_its_type(assignment: str, name: str, value: Any) -> None:
    config = override(Outer(limit=1.0), [assignment])
    assert exactly(getattr(config, name)) == exactly(value)
    assert config == dataclasses.replace(Outer(limit=1.0), **{name: value})


def test_nested_settings_are_overridden_and_the_last_one_wins() -> None:
    start = Outer()
    config = override(start, ["training.epochs=3", "inner.sizes=1,2", "training.epochs=4"])
    assert config.training == TrainingConfig(epochs=4)
    assert config.inner == Inner(sizes=(1, 2), rate=0.25)
    assert start == Outer()
    assert override(Outer(), ["extra.name=x"]).extra == Inner(name="x")
    assert override(Outer(extra=Inner()), ["extra=none"]).extra is None


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("count", "An override must look like name=value, but got 'count'."),
        ("=3", "An override must look like name=value, but got '=3'."),
        ("count=ten", "count must be a whole number, but got 'ten'."),
        ("count=1.5", "count must be a whole number, but got '1.5'."),
        ("count=-1", "count must be at least 0, but got -1."),
        ("scale=inf", "scale must be a finite number, but got inf."),
        ("flag=maybe", "flag must be true or false, but got 'maybe'."),
        ("training.epoch=3", "training.epoch is not a setting; did you mean training.epochs?"),
        ("trainng.epochs=3", "trainng.epochs is not a setting; did you mean training.epochs?"),
        ("innr.rat=3", "innr.rat is not a setting; did you mean inner.rate?"),
        ("training.lr=3", "training.lr is not a setting; training has epochs, batch_size,"),
        ("epochs=3", "epochs is not a setting; did you mean training.epochs?"),
        ("training.epochs.x=3", "training.epochs.x is not a setting; did you mean training.epochs"),
        ("inner=3", "inner is a table; its settings are inner.name, inner.sizes, inner.rate."),
        ("pair=1,2,3", "pair must be a list of 2: a finite number, a finite number, but got"),
        ("pair=[1,", "pair must be a list of 2: a finite number, a finite number, but got '[1,'."),
        ("kind=neural", "kind must be one of 'neuralsort', 'softsort', but got 'neural'; did you"),
        ("training.epochs=-2", "training.epochs must be at least 0, but got -2."),
    ],
)
def test_a_wrong_override_is_refused(assignment: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(Outer(), [assignment])
    assert str(caught.value).startswith(complaint)


# The training settings.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", -1),
        ("batch_size", 0),
        ("optimizer", "rmsprop"),
        ("learning_rate", 0.0),
        ("weight_decay", -0.1),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("learning_rate_decay", 0.0),
        ("decay_every", 0),
        ("gradient_clip", 0.0),
        ("seed", -1),
        ("seed", 2**63),
        ("device", "gpu"),
        ("device", "cuda:x"),
        ("device", "mps"),
        ("devices", 0),
        ("precision", "16"),
        ("matmul", "medium"),
        ("step", "compiled"),
        ("checkpoint_every", 0),
        ("checkpoint_steps", 0),
        ("log_every", 0),
    ],
)
def test_training_settings_that_cannot_be(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be .*, but got "):
        build(TrainingConfig, {name: value})


def test_a_device_without_float64_is_refused_for_that() -> None:
    with pytest.raises(ConfigError, match=r"\(mps lacks float64, which laws need\), but got 'mps'"):
        TrainingConfig(device="mps")


def test_training_settings_that_can_be() -> None:
    config = build(TrainingConfig, {"epochs": 0, "device": "cuda:1", "gradient_clip": 1})
    assert loads(TrainingConfig, dumps(config)) == config
    assert loads(TrainingConfig, dumps(TrainingConfig())) == TrainingConfig()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 2}, "devices must be 1 .* got 2; .* for clustering .drpm cluster --devices N"),
        ({"precision": "bf16-mixed"}, "precision must be '32-true' or '64-true' for this kind"),
    ],
)
def test_one_device(changes: dict[str, Any], message: str) -> None:
    require_one_device(TrainingConfig(precision="64-true"))
    with pytest.raises(ConfigError, match=message):
        require_one_device(TrainingConfig(**changes))


# What is made in Python.


@dataclass(frozen=True)
class Checked:
    kind: Literal["one", "other"] = "one"
    rate: float = 0.5
    count: int = 3
    pair: tuple[float, float] = (0.9, 0.999)
    cap: int | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    inner: Inner | None = None

    def __post_init__(self) -> None:
        check_types(self)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"kind": "One"},
            "kind must be one of 'one', 'other', but got 'One'; did you mean 'one'?",
        ),
        ({"rate": math.nan}, "rate must be a finite number, but got nan."),
        ({"rate": "0.5"}, "rate must be a finite number, but got '0.5'."),
        ({"count": 3.0}, "count must be a whole number, but got 3.0."),
        ({"count": True}, "count must be a whole number, but got True."),
        (
            {"pair": (0.9,)},
            "pair must be a list of 2: a finite number, a finite number, but got (0.9,).",
        ),
        ({"pair": (0.9, math.inf)}, "pair[1] must be a finite number, but got inf."),
        ({"cap": "none"}, "cap must be a whole number or none, but got 'none'."),
        (
            {"training": {"epochs": 3}},
            "training must be of the class TrainingConfig, but got {'epochs': 3}.",
        ),
        ({"training": None}, "training must be of the class TrainingConfig, but got None."),
        ({"inner": 3}, "inner must be of the class Inner or none, but got 3."),
    ],
)
def test_what_python_gives_is_of_its_type(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Checked(**change)
    assert str(refused.value) == complaint


def test_what_is_given_is_what_would_be_read() -> None:
    config = Checked(rate=1, pair=[0, 0.5], inner=Inner(), cap=None)  # type: ignore[arg-type]
    assert exactly(config.rate) == "1.0"
    assert exactly(config.pair) == "(0.0, 0.5)"
    assert exactly(config) == exactly(loads(Checked, dumps(config)))


def test_numbers_of_numpy_become_python_s_own() -> None:
    assert TrainingConfig(drop_last=np.bool_(True)).drop_last is True  # type: ignore[arg-type]
    given = Checked(rate=np.float64(0.1), count=np.int64(7), pair=(np.float32(0.5), 1))  # type: ignore[arg-type]
    assert exactly(given) == exactly(Checked(rate=0.1, count=7, pair=(0.5, 1)))
    assert loads(Checked, dumps(given)) == given


@pytest.mark.parametrize(
    "cls",
    [
        TrainingConfig,
        FactorsConfig,
        SupervisedConfig,
        multitask.MultitaskConfig,
        multitask.NetworkConfig,
        clustering.ClusteringConfig,
        clustering.NetworkConfig,
        clustering.PretrainingConfig,
        clustering.MixtureConfig,
    ],
)
def test_every_configuration_checks_its_types(cls: Any) -> None:
    for setting in dataclasses.fields(cls):
        with pytest.raises(ConfigError, match=f"^{setting.name} must be "):
            cls(**{setting.name: object()})
