"""Configuration: exact round trips through TOML, overrides, and refusals in one sentence."""

import dataclasses
import math
import re
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drpm.training.config import (
    TrainingConfig,
    build,
    dumps,
    load_preset,
    loads,
    override,
    preset_names,
    read_mapping,
    settings,
)
from drpm.training.errors import ConfigError


@settings
class Inner:
    name: str = "inner"
    sizes: tuple[int, ...] = (500, 500, 2000)
    rate: float = 1e-4


@settings
class Outer:
    data: str = "digits"
    flag: bool = False
    count: int = 3
    scale: float = 0.5
    pair: tuple[float, float] = (0.9, 0.999)
    words: tuple[str, ...] = ()
    limit: float | None = None
    cap: int | None = None
    kind: Literal["neuralsort", "softsort"] = "neuralsort"
    inner: Inner = field(default_factory=lambda: Inner(rate=0.25))
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must be at least 0, but got {self.count}.")


@dataclasses.dataclass(frozen=True)
class Job:
    """Those of applications are plain dataclasses."""

    data: str = "digits"
    outer: Outer = field(default_factory=Outer)


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
    limit=st.none() | floats,
    cap=st.none() | st.integers(),
    kind=st.sampled_from(["neuralsort", "softsort"]),
    inner=inners,
)


@given(outers)
def test_toml_gives_the_same_configuration_back(config: Outer) -> None:
    job = Job("a", config)
    # By their texts, which tell -0.0 from 0.0 and 1 from 1.0.
    assert repr(loads(Job, dumps(job))) == repr(job)


def test_what_the_text_looks_like() -> None:
    """A hash of this text identifies finished studies."""
    assert dumps(Outer(data='a "b"\n', scale=1e-05)).startswith(
        'data = "a \\"b\\"\\n"\nflag = false\ncount = 3\nscale = 1e-05\npair = [0.9, 0.999]\n'
        'words = []\nkind = "neuralsort"\n\n[inner]\nname = "inner"\n'
        "sizes = [500, 500, 2000]\nrate = 0.25\n\n[training]\nepochs = 10\n"
    )


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


def test_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drpm.training.config.PRESETS", tmp_path)
    files = {
        "fast-digits.toml": "[training]\nbatch_size = 64\n",
        "paper-mnist.toml": 'data = "mnist"\n',
        "paper-broken.toml": "[training]\nepoch = 3\n",
        "notes.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert preset_names() == ["fast-digits", "paper-broken", "paper-mnist"]
    assert preset_names("mnist") == ["paper-mnist"]
    config = load_preset(Outer, "fast-digits", command="digits")
    assert config == Outer(training=TrainingConfig(batch_size=64))
    for name, command, complaint in (
        ("fast-digit", None, "'fast-digit' is not a preset; did you mean 'fast-digits'?"),
        ("zzz", None, "not a preset; there are 'fast-digits', 'paper-broken', 'paper-mnist'."),
        ("../fast-digits", None, "'../fast-digits' is not a preset; did you mean 'fast-digits'?"),
        ("paper-broken", None, "In the preset 'paper-broken': training.epoch is not a setting; "),
        ("paper-mnist", "digits", "not a preset of drpm digits; there are 'fast-digits'."),
        ("a", "other", "'a' is not a preset of drpm other; there are none"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_preset(Outer, name, command=command)
        assert complaint in str(caught.value)


def test_settings_are_converted_and_others_come_from_the_base_or_the_defaults() -> None:
    base = Outer(count=7, cap=7, inner=Inner(name="own"))
    given = {"scale": 2, "pair": [0, 1], "cap": "none", "inner": {"rate": 0.5}}
    inner = replace(base.inner, rate=0.5)
    expected = replace(base, scale=2.0, pair=(0.0, 1.0), cap=None, inner=inner)
    assert repr(build(Outer, given, base)) == repr(expected)
    assert build(Outer, {"inner": {"name": "x"}}).inner == Inner(name="x", rate=0.25)


@pytest.mark.parametrize(
    ("mapping", "complaint"),
    [
        ({"cuont": 3}, "cuont is not a setting; did you mean count?"),
        ({"training": {"epoch": 3}}, "training.epoch is not a setting; did you mean training.ep"),
        ({"epoch": 3}, "epoch is not a setting; did you mean training.epochs?"),
        ({"trainin": {}}, "trainin is not a setting; did you mean training?"),
        ({"zzzzzz": 3}, "zzzzzz is not a setting; there are data, flag, count,"),
        ({"count": "ten"}, "count must be a valid integer, but got 'ten'."),
        ({"count": True}, "count must be a valid integer, but got True."),
        ({"scale": True}, "scale must be a valid number, but got True."),
        ({"scale": math.inf}, "scale must be a finite number, but got inf."),
        ({"flag": 1}, "flag must be a valid boolean, but got 1."),
        ({"data": 3}, "data must be a valid string, but got 3."),
        ({"kind": "softort"}, "kind must be 'neuralsort' or 'softsort', but got 'softort'."),
        ({"pair": [1.0]}, "pair[1] must be given, but got [1.0]."),
        ({"pair": [1.0, 2.0, 3.0]}, "pair must have at most 2 items"),
        ({"pair": 1.0}, "pair must be a valid array, but got 1.0."),
        ({"pair": [1.0, "a"]}, "pair[1] must be a valid number, but got 'a'."),
        ({"inner": 3}, "inner must be a table of settings, but got 3."),
        ({"count": -1}, "count must be at least 0, but got -1."),
        ({"training": {"seed": -1}}, "training.seed must be at least 0, but got -1."),
        ({"training": {"betas": [0.9, 1.0]}}, "training.betas must be two numbers in [0, 1), but"),
        ([], "The configuration must be a table of settings, but got []."),
    ],
)
def test_what_does_not_fit_is_refused(mapping: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, mapping)
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)
    if "not a setting" not in complaint and mapping != []:
        with pytest.raises(ConfigError, match=f"^outer.{re.escape(complaint)}"):
            build(Job, {"outer": mapping})


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("count=5", "count", 5),
        ("scale=1e-4", "scale", 1e-4),
        ("flag=true", "flag", True),
        ("data=a=b", "data", "a=b"),
        ("data=", "data", ""),
        ("pair=0.5, 0.6", "pair", (0.5, 0.6)),
        ("pair=[0.5, 0.6]", "pair", (0.5, 0.6)),
        ("words=a, b,c", "words", ("a", "b", "c")),
        ("words=", "words", ()),
        ("limit=none", "limit", None),
        ("cap=None", "cap", None),
    ],
)
def test_a_setting_is_overridden_by_its_type(assignment: str, name: str, value: Any) -> None:
    config = override(Outer(limit=1.0, cap=7), [assignment])
    assert repr(getattr(config, name)) == repr(value)
    assert config == replace(Outer(limit=1.0, cap=7), **{name: value})


def test_nested_settings_are_overridden_and_the_last_one_wins() -> None:
    start = Outer()
    config = override(start, ["training.epochs=3", "inner.sizes=1,2", "training.epochs=4"])
    assert config.training == TrainingConfig(epochs=4)
    assert config.inner == Inner(sizes=(1, 2), rate=0.25)
    assert start == Outer()


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("count", "A setting must have the form name=value, but got 'count'."),
        ("=3", "A setting must have the form name=value, but got '=3'."),
        ("count=none", "count must be a valid integer, but got None."),
        ("trainng.epochs=3", "trainng is not a setting; did you mean training?"),
        ("training.lr=3", "training.lr is not a setting; there are training.epochs, training.ba"),
        ("training.epochs.x=3", "training.epochs must be a valid integer, but got {'x': '3'}."),
    ],
)
def test_a_wrong_override_is_refused(assignment: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(Outer(), [assignment])
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", -1),
        ("batch_size", 0),
        ("optimizer", "rmsprop"),
        ("learning_rate", 0.0),
        ("weight_decay", -0.1),
        ("betas", (0.9, 1.0)),
        ("seed", 2**63),
        ("device", "mps"),
        ("devices", 0),
        ("precision", "bf16-mixed"),
        ("step", "compiled"),
        ("checkpoint_steps", 0),
    ],
)
def test_training_settings_that_cannot_be(name: str, value: Any) -> None:
    for make in (lambda given: build(TrainingConfig, given), lambda x: TrainingConfig(**x)):
        with pytest.raises(ConfigError, match=f"^{name} must be .*, but got "):
            make({name: value})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "softsrt"}, "kind must be 'neuralsort' or 'softsort', but got 'softsrt'."),
        ({"scale": "0.5"}, "scale must be a valid number, but got '0.5'."),
        ({"cap": "none"}, "cap must be a valid integer, but got 'none'."),
        ({"training": {"epochs": 3}}, "training must be an instance of TrainingConfig, but got"),
        ({"training": None}, "training must be an instance of TrainingConfig, but got None."),
        ({"zzz": 3}, "zzz is not a setting."),
    ],
)
def test_what_python_gives_is_of_its_type(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Outer(**change)
    assert str(refused.value).startswith(complaint)
    if "zzz" not in change:
        with pytest.raises(ConfigError):
            replace(Outer(), **change)


def test_numbers_of_numpy_become_python_s_own() -> None:
    given = Outer(scale=np.float64(0.1), count=np.int64(7), flag=np.bool_(True), pair=[0, 1])  # type: ignore[arg-type]
    assert repr(given) == repr(Outer(scale=0.1, count=7, flag=True, pair=(0.0, 1.0)))
