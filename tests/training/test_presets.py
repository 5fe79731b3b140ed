"""Presets: listed, read, and refused with the nearest name."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

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
    assert presets.names(folder=folder / "nowhere") == []


def test_a_preset_is_laid_over_the_defaults(folder: Path) -> None:
    config = presets.load(Study, "fast-digits", folder=folder)
    assert config == Study(training=TrainingConfig(epochs=200, batch_size=64))
    assert presets.load(Study, "paper-mnist", folder=folder).data == "mnist"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("fast-digit", "'fast-digit' is not a preset; did you mean 'fast-digits'?"),
        ("zzz", "'zzz' is not a preset; there are 'fast-digits', 'paper-broken', 'paper-mnist'."),
        ("../fast-digits", "'../fast-digits' is not a preset; did you mean 'fast-digits'?"),
        ("", "'' is not a preset; there are"),
        (
            "paper-broken",
            "In the preset 'paper-broken': training.epoch is not a setting; "
            "did you mean training.epochs?",
        ),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(folder: Path, name: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        presets.load(Study, name, folder=folder)
    assert complaint in str(caught.value)


def test_presets_of_one_command(folder: Path) -> None:
    assert presets.load(Study, "paper-mnist", command="mnist", folder=folder).data == "mnist"
    with pytest.raises(ConfigError) as caught:
        presets.load(Study, "paper-mnist", command="digits", folder=folder)
    told = "'paper-mnist' is a preset of drpm mnist, not of drpm digits."
    assert str(caught.value) == told
    with pytest.raises(ConfigError) as caught:
        presets.load(Study, "zzz", command="digits", folder=folder)
    assert str(caught.value) == "'zzz' is not a preset; there are 'fast-digits'."
    with pytest.raises(ConfigError, match="did you mean 'fast-digits'"):
        presets.load(Study, "fast-mnist", command="digits", folder=folder)


@pytest.mark.parametrize("name", presets.names())
def test_every_shipped_preset_is_for_a_command(name: str) -> None:
    assert presets.command_of(name) in ("cluster", "factors", "multitask", "supervised")


def test_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'a' is not a preset; there are none"):
        presets.load(Study, "a", folder=tmp_path)


def test_the_shipped_folder_can_be_listed() -> None:
    assert presets.names() == sorted(presets.names())
