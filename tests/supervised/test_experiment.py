"""``drpm supervised``: data, warnings and labels."""

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from PIL import Image

from drpm.data.types import Dataset, Split
from drpm.supervised.config import SupervisedConfig, SupervisedJob
from drpm.supervised.experiment import LabeledData, Supervised, find_classes
from drpm.supervised.models import load_partitioner
from drpm.training.errors import ConfigError
from tests.cli.commands import drpm

NAMES = ("a", "b", "c")

supervised = partial(drpm, "supervised")


def options(settings: list[str]) -> list[str]:
    return ["--device=cpu", *(f"--set={setting}" for setting in settings)]


def test_the_target_is_the_first_or_the_chosen() -> None:
    targets = {"left": torch.arange(10) % 2, "right": torch.arange(10) % 3}
    part = Split(torch.rand(10, 3), {"height": torch.rand(10), **targets})
    data = Dataset("some", part, part, {"left": ("x", "y"), "right": NAMES})
    first, chosen = find_classes(data), find_classes(data, "right")
    assert (first.target, first.names) == ("left", ("x", "y"))
    assert (chosen.target, chosen.names) == ("right", NAMES)
    with pytest.raises(ConfigError, match=r"target must be one .*\(left, right\), but got 'up'"):
        find_classes(data, "up")
    with pytest.raises(ConfigError, match=r"target must be one .*\(it has none\)"):
        find_classes(replace(data, classes=MappingProxyType({"label": NAMES})))


def test_classes_without_elements_to_train_on_or_without_a_name() -> None:
    def check(labels: list[int]) -> list[str]:
        part = Split(torch.zeros(3, 2), {"label": torch.tensor(labels)})
        data = LabeledData(Dataset("some", part, part, {"label": NAMES}), "label")
        return Supervised().check(
            SupervisedJob(supervised=SupervisedConfig(size_weights=(0.01,))), data
        )

    assert check([0, 1, 2]) == []
    assert "1 of the 3 classes" in check([0, 0, 1])[0]
    with pytest.raises(ConfigError, match=r"^labels must be from 0 to 2, but got values from 0 to"):
        check([0, 1, 3])


def test_digits(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shown = supervised("digits", *options(["training.epochs=1"]), "--out", folder)
    header, _, *files = shown.stdout.splitlines()
    assert header == "Seed\tF1\tACC\tSize error"
    names = {"Labels": "labels.csv", "Report": "index.html"}
    assert files == [f"{kind}: {folder / name}" for kind, name in names.items()]
    assert "warning" not in shown.stderr
    result = json.loads((folder / "result.json").read_text())
    assert result["data"]["batch size"] == 64
    assert result["selection"] == {"size_weight": 0.01, "held_out": 0, "scores": []}
    with np.load(folder / "arrays.npz") as arrays:
        assert arrays["grid__subsets"].shape[0] == 10
        assert arrays["grid__subsets"].shape[2:] == (8, 8)
        # Both sizes are those of whole batches.
        assert np.abs(arrays["matrix__sizes-error"].sum(1)).max() == 0
    figures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert figures == {"subsets", "classes", "sizes-error", "curves"}
    assert load_partitioner(folder / "model").shape == (1, 8, 8)


@pytest.mark.usefixtures("blank_pictures")
def test_own_table(tmp_path: Path) -> None:
    """The saved model takes rows as the file has them, and agrees with labels.csv."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200)
    rows = 4 * np.eye(3)[labels] + 0.3 * generator.standard_normal((200, 3))
    rows = 20 * rows + [1e3, -70, 1e6]
    pairs = zip(rows, labels, strict=True)
    lines = ["a,b,c,label", *(f"{a},{b},{c},k{y}" for (a, b, c), y in pairs)]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    settings = ["hidden=16", "scale=0.1", "training.epochs=3", "training.batch_size=32"]
    settings.append("size_weights=0.01,0.1")
    arguments = [tmp_path / "own.csv", *options(settings), "--out", tmp_path / "run", "--json"]
    result = json.loads(supervised(*arguments).stdout)
    assert (result["data"]["examples"], result["data"]["test examples"]) == (160, 40)
    table = list(csv.DictReader((tmp_path / "run" / "labels.csv").read_text().splitlines()))
    assert [line["index"] for line in table] == [str(row) for row in range(200)]
    assert [line["class"] for line in table] == [f"k{label}" for label in labels]
    tested = [line for line in table if line["split"] == "test"]
    right = np.mean([line["class"] == line["subset"] for line in tested])
    assert right == pytest.approx(result["metrics"]["accuracy"])
    model = load_partitioner(tmp_path / "run" / "model")
    for batch in {(line["split"], line["batch"]) for line in table}:
        members = [line for line in table if (line["split"], line["batch"]) == batch]
        some = rows[[int(line["index"]) for line in members]]
        found = [f"k{subset}" for subset in model.partition(some).subsets]
        assert found == [line["subset"] for line in members]


@pytest.mark.usefixtures("blank_pictures")
def test_own_images(tmp_path: Path) -> None:
    for kind, brightness in (("dark", 0), ("light", 150)):
        (tmp_path / "own" / kind).mkdir(parents=True)
        for number in range(8):
            pixels = np.full((4, 4), brightness + 10 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "own" / kind / f"{number}.png")
    supervised(tmp_path / "own", *options(["training.epochs=1"]), "--out", tmp_path / "run")
    table = list(csv.DictReader((tmp_path / "run" / "labels.csv").read_text().splitlines()))
    files = [f"{kind}/{number}.png" for kind in ("dark", "light") for number in range(8)]
    assert [line["file"] for line in table] == files
    assert all(line["file"].startswith(line["class"]) for line in table)
