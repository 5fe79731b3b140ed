"""The loop's benchmark runs, and trains what it says; nothing here asserts a time."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import kernels, loop
from benchmarks.turns import measure_in_turn

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
        program.set_learning_rate(2e-3)
        values = []
        for _ in range(16):
            program.shuffle()
            program.step()
            values.append(program.readings().values[0, 0])
        assert all(value.isfinite().all() for value in values)
        # At four seeds or more of each model the last was 0.97 of the first or less.
        assert (values[-1] < values[0]).all() or name in NOTHING_TO_LEARN


def test_prepared_beside_each_other_and_measured_one_at_a_time() -> None:
    spans = list(measure_in_turn(prepare_a_span, range(3), workers=2))
    assert [n for n, *_ in spans] == [0, 1, 2]
    # Of the first two neither was measured before both were ready, nor during the other.
    (_, ready, start, end), (_, other_ready, other_start, other_end), _ = spans
    assert min(start, other_start) >= max(ready, other_ready)
    assert end <= other_start or other_end <= start
    with pytest.raises(ValueError, match="0 or more"):
        list(measure_in_turn(prepare_a_span, [0, -1], workers=2))


def prepare_a_span(number: int) -> Callable[[], tuple[int, float, float, float]]:
    """When it was ready, when it began and when it ended, on the clock of the machine."""
    if number < 0:
        raise ValueError("number must be 0 or more.")
    time.sleep(0.1 * number)
    ready = time.monotonic()

    def measure() -> tuple[int, float, float, float]:
        start = time.monotonic()
        time.sleep(0.2)
        return number, ready, start, time.monotonic()

    return measure


def test_kernels_want_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        kernels.main(["DRPM-VAE"])
    assert "kernels are those of a GPU" in capsys.readouterr().err


@pytest.mark.cuda
def test_kernels(capsys: Any) -> None:
    kernels.main(["empty model"])
    assert "a step" in capsys.readouterr().out
