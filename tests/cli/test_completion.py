"""The words that a shell completes are those that there are."""

import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from drpm.cli import completion
from drpm.data.registry import DATASETS
from drpm.studies.sweeps import SWEEPS
from drpm.training.config import TrainingConfig
from drpm.training.presets import names


def test_words_are_all_there_are() -> None:
    assert list(completion.DATA_SETS) == list(DATASETS)


def test_the_document_lists_all_sweeps() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text(encoding="utf-8")
    found = {
        name: int(count)
        for name, count in re.findall(r"^\| `([\w-]+)` \| .* \| (\d+) \|$", text, re.MULTILINE)
    }
    assert found == {name: len(list(make())) for name, make in SWEEPS.items()}


def test_completing() -> None:
    assert completion.among(completion.DATA_SETS)("m") == ["mnist", "mpi3d", "multimnist", "mosaic"]
    complete = completion.presets_like("paper-cluster-mnist")
    assert complete("paper-cluster-mn") == names("paper-cluster-mn") != []
    assert complete("nothing") == []
    # None of another command.
    assert complete("fast-") == ["fast-cluster"]
    assert completion.presets_like("paper-factors")("") == ["fast-factors", "paper-factors"]


@pytest.mark.parametrize("command", completion.CONFIGURATIONS)
def test_every_setting_is_completed_and_is_one(command: str) -> None:
    typed = cast(typer.Context, SimpleNamespace(info_name=command))
    found = completion.settings_like(typed, "")
    module, name = completion.CONFIGURATIONS[command]
    config = getattr(import_module(module), name)()
    for setting in found:
        value: Any = config
        for word in setting.removesuffix("=").split("."):
            value = getattr(value, word)
        assert not is_dataclass(value)
    assert {f"training.{field.name}=" for field in fields(config.training)} <= set(found)
    assert set(completion.settings_like(typed, "training.e")) == {
        setting for setting in found if setting.startswith("training.e")
    }


def test_devices_are_settings() -> None:
    for device in completion.DEVICES:
        assert TrainingConfig(device=device).device == device
