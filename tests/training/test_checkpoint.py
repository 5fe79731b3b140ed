"""Checkpoints: exact round trips, and the old or the new one whenever a crash comes."""

import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drpm.training.checkpoint import (
    Checkpoint,
    State,
    load_latest,
    load_model,
    save_model,
    save_state,
)
from drpm.training.errors import RunError


def make_state(value: float = 0.0) -> State:
    """A state all of whose tensors hold one value."""

    def full(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full(shape, value, dtype=dtype)

    return {
        "model.weight": full(3, 4),
        "model.steps": full(dtype=torch.int64),
        "optimizer.0.exp_avg": full(3, 4),
        "counters": full(2, dtype=torch.int64),
        "ranks.0.generator": full(9, dtype=torch.uint8),
    }


assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)


def load(folder: Path) -> Checkpoint:
    loaded = load_latest(folder)
    assert loaded is not None
    return loaded


def value_of(state: Any) -> float:
    """The value of a state that is whole."""
    value = float(state["counters"][0])
    assert_same(state, make_state(value))
    return value


def test_a_state_comes_back(tmp_path: Path) -> None:
    state = make_state(3)
    state |= {
        "tied": state["model.weight"],
        "view": torch.arange(1000)[3:9:2],
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
        "flag": torch.tensor([True, False]),
        "double": torch.tensor([0.1, -0.0, torch.inf], dtype=torch.float64),
        "parameter": nn.Parameter(torch.randn(2)),
    }
    save_state(tmp_path, state, 7, [".", "../other"])
    loaded, step, runs = load(tmp_path)
    assert (step, runs) == (7, [".", "../other"])
    assert_same(loaded, state)
    loaded["tied"].add_(1)
    assert torch.equal(loaded["model.weight"], state["model.weight"])


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    save_state(tmp_path, make_state(3), 3)
    assert value_of(load(tmp_path).state) == 3
    save_model(tmp_path / "model", {"w": torch.ones(2)}, {})
    load_model(tmp_path / "model")


class Crash(BaseException):
    """Stands for a SIGKILL: after it no system call of the process has any effect."""


ALLOWED: list[int] = []


def watch(event: str, arguments: Any) -> None:
    """Lets the first calls that change the disk pass, and none after them."""
    if ALLOWED and event in ("open", "os.mkdir", "os.rename", "os.remove"):
        ALLOWED[0] -= 1
        if ALLOWED[0] < 0:
            raise Crash


sys.addaudithook(watch)


def crash_at_every_call(
    tmp_path: Path, prepare: Callable[[Path], None], act: Callable[[Path], None]
) -> Iterator[Path]:
    """What is left after a crash at the first call, the second and so on, and after none."""
    reached_end = False
    for allowed in count():
        if reached_end:
            assert allowed > 4
            return
        folder = tmp_path / str(allowed)
        prepare(folder)
        ALLOWED[:] = [allowed]
        try:
            act(folder)
            reached_end = True
        except Crash:
            pass
        finally:
            ALLOWED.clear()
        yield folder


@pytest.mark.parametrize("saved", [None, 3])
@pytest.mark.parametrize("step", [3, 4])
def test_a_crash_at_any_call_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, saved: int | None, step: int
) -> None:
    def prepare(folder: Path) -> None:
        folder.mkdir()
        if saved is not None:
            save_state(folder, make_state(saved), saved)

    outcomes = set()
    for folder in crash_at_every_call(
        tmp_path, prepare, lambda folder: save_state(folder, make_state(99), step)
    ):
        loaded = load_latest(folder)
        outcomes.add(None if loaded is None else value_of(loaded.state))
        # The next save works, and nothing is left of the one that was cut short.
        save_state(folder, make_state(100), 1_000_000)
        assert value_of(load(folder).state) == 100
        assert len(list(folder.iterdir())) == 1
    assert outcomes == {saved, 99}


def test_a_model_is_replaced_as_a_whole(tmp_path: Path) -> None:
    def save(folder: Path, value: int) -> None:
        save_model(folder, {"w": torch.tensor(value)}, {"value": value})

    seen = set()
    for folder in crash_at_every_call(tmp_path, lambda x: save(x, 1), lambda x: save(x, 2)):
        tensors, description = load_model(folder)
        assert tensors["w"] == description["value"]
        seen.add(description["value"])
    assert seen == {1, 2}


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    save_state(tmp_path, make_state(), 1)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RunError, match=r"is damaged: step-000001-.* its checksum; choose another"):
        load_latest(tmp_path)


def test_a_model_comes_back(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    description = {"kind": "linear", "sizes": (3, 2), "rate": 1e-4, "none": None, "flag": True}
    save_model(tmp_path / "model", model.state_dict(), description)
    tensors, described = load_model(tmp_path / "model")
    assert_same(tensors, dict(model.state_dict()))
    assert described == {**description, "sizes": [3, 2]}
    assert sum(1 for _ in (tmp_path / "model").iterdir()) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"tensors": 3}', '{"tensors": "../x", "description": {}}']
)
def test_a_damaged_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(RunError, match=r"The model in .* is damaged: "):
        load_model(tmp_path)


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"contains no model: model\.json is missing\."):
        load_model(tmp_path)
    save_model(tmp_path, {"w": torch.ones(100)}, {})
    (tensors,) = tmp_path.glob("*.safetensors")
    data = bytearray(tensors.read_bytes())
    data[-3 * len(data) // 8] ^= 1
    tensors.write_bytes(bytes(data))
    with pytest.raises(RunError, match=r"The model in .* is damaged: .* its checksum"):
        load_model(tmp_path)
