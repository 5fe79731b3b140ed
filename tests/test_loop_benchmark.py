"""The loop's benchmark runs, and trains what it says; nothing here asserts a time."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import loop

# The empty model is at its minimum from the start, and two views of noise are too little alike for
# a few steps.
NOTHING_TO_LEARN = {"empty model", "contrastive pretraining"}


def shrink_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "ANGLES", 2)
    monkeypatch.setattr(loop, "IMAGE_SIZE", 16)


def test_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr(loop, "BATCH_SIZE", 2)
    monkeypatch.setattr(loop, "REPEATS", 1)
    shrink_pairs(monkeypatch)
    file = tmp_path / "figures" / "loop.json"
    loop.main(["--device", "cpu", "--steps", "1", "--out", str(file)])
    figures = json.loads(file.read_text())["steps"]
    assert [entry["model"] for entry in figures] == list(loop.SUBJECTS)
    assert all(entry["alone"] > 0 for entry in figures)
    assert [entry["ratio"] is None for entry in figures] == [
        name == "empty model" for name in loop.SUBJECTS
    ]
    shown = capsys.readouterr().out
    assert "multitask LeNet" in shown
    assert '"clustering VAE"' in shown


@pytest.mark.parametrize("name", list(loop.SUBJECTS))
def test_its_models_learn(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(loop, "BATCH_SIZE", 4)
    shrink_pairs(monkeypatch)
    for runs in (None, 2):
        program = loop.make_program(loop.SUBJECTS[name], runs, "cpu", 1)
        program.set_learning_rate(1e-3)
        values = []
        for _ in range(8):
            program.shuffle()
            program.step()
            values.append(program.readings().values[0, 0])
        assert all(value.isfinite().all() for value in values)
        assert (values[-1] < values[0]).all() or name in NOTHING_TO_LEARN
