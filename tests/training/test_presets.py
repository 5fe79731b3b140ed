"""Presets: listed, read, and refused with the nearest name."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from drpm.experiments.base import JOBS
from drpm.training import presets
from drpm.training.config import TrainingConfig
from drpm.training.errors import ConfigError


@dataclass(frozen=True)
class Study:
    data: str = "digits"
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=200))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "fast-digits.toml": "[training]\nbatch_size = 64\n",
        "paper-mnist.toml": 'data = "mnist"\n',
        "paper-broken.toml": "[training]\nepoch = 3\n",
        "notes.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_presets_are_listed(folder: Path) -> None:
    assert presets.names(folder=folder) == ["fast-digits", "paper-broken", "paper-mnist"]
    assert presets.names("fast-", folder=folder) == ["fast-digits"]
    assert {presets.command_of(name) for name in presets.names()} == {*JOBS} - {"groups"}


def test_a_preset_replaces_defaults(folder: Path) -> None:
    config = presets.load(Study, "fast-digits", folder=folder)
    assert config == Study(training=TrainingConfig(epochs=200, batch_size=64))
    assert presets.load(Study, "paper-mnist", command="mnist", folder=folder).data == "mnist"


@pytest.mark.parametrize(
    ("name", "command", "complaint"),
    [
        ("fast-digit", None, "'fast-digit' is not a preset; did you mean 'fast-digits'?"),
        ("zzz", None, "not a preset; there are 'fast-digits', 'paper-broken', 'paper-mnist'."),
        ("../fast-digits", None, "'../fast-digits' is not a preset; did you mean 'fast-digits'?"),
        ("", None, "'' is not a preset; there are"),
        ("paper-broken", None, "In the preset 'paper-broken': training.epoch is not a setting; "),
        ("paper-mnist", "digits", "not a preset of drpm digits; there are 'fast-digits'."),
        ("fast-mnist", "digits", "not a preset of drpm digits; did you mean 'fast-digits'"),
        ("a", "other", "'a' is not a preset of drpm other; there are none"),
    ],
)
def test_a_wrong_name_is_refused(
    folder: Path, name: str, command: str | None, complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        presets.load(Study, name, command=command, folder=folder)
    assert complaint in str(caught.value)
