"""Checkpoints: exact round trips, and the old or the new one whenever a crash comes."""

import builtins
import os
import pickle
from collections.abc import Callable
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


def assert_same(actual: Any, expected: Any) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert torch.equal(actual[name], tensor)


def load(folder: Path) -> Checkpoint:
    loaded = load_latest(folder)
    assert loaded is not None
    return loaded


def value_of(state: Any) -> float:
    """The value of a state that is whole."""
    value = float(state["counters"][0])
    assert_same(state, make_state(value))
    return value


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.iterdir())


# Round trips.


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


# Which checkpoints there are.


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "nowhere") is None
    assert load_latest(tmp_path) is None
    for step in (10, 20, 1_000_000):
        save_state(tmp_path, make_state(), step)
    assert steps(tmp_path) == [20, 1_000_000]
    assert load(tmp_path).step == 1_000_000
    # A run that goes back drops the later steps.
    for step in (10, 20):
        save_state(tmp_path, make_state(step), step)
    save_state(tmp_path, make_state(21), 20)
    assert steps(tmp_path) == [10, 20]
    assert value_of(load(tmp_path).state) == 21
    save_state(tmp_path, make_state(15), 15)
    assert steps(tmp_path) == [10, 15]


# Crashes.


class Crash(BaseException):
    """Stands for a SIGKILL: after it no system call of the process has any effect."""


# What changes the disk, besides opening a file and writing it.
CHANGES = ("replace", "fsync", "mkdir", "open", "unlink")


class Calls:
    """Lets the first calls that change the disk pass, and none after them."""

    def __init__(self, allowed: int) -> None:
        self.allowed, self.made = allowed, 0

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in CHANGES:
            monkeypatch.setattr(os, name, self.guard(getattr(os, name)))
        monkeypatch.setattr(builtins, "open", self.guarded_open(builtins.open))

    def check(self) -> None:
        self.made += 1
        if self.made > self.allowed:
            raise Crash

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            self.check()
            return function(*arguments, **options)

        return guarded

    def guarded_open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Opening to write counts; so does each write, which stops half-way when it fails."""

        def guarded(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not set(mode) & set("wa+x"):
                return function(path, mode, *arguments, **options)
            self.check()
            return HalfWritten(function(path, mode, *arguments, **options), self)

        return guarded


class HalfWritten:
    """A file whose failing write leaves half of the data behind."""

    def __init__(self, file: Any, calls: Calls) -> None:
        self.file, self.calls = file, calls

    def write(self, data: bytes) -> int:
        try:
            self.calls.check()
        except BaseException:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            raise
        return int(self.file.write(data))

    def __enter__(self) -> "HalfWritten":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("saved", [0, 1, 3])
@pytest.mark.parametrize("again", [False, True], ids=["next step", "same step"])
def test_a_crash_at_any_call_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, saved: int, again: bool
) -> None:
    step = saved if again else saved + 1
    reached_end, outcomes, allowed = False, set(), 0
    while not reached_end:
        folder = tmp_path / str(allowed)
        folder.mkdir()
        for earlier in range(1, saved + 1):
            save_state(folder, make_state(earlier), earlier)
        with pytest.MonkeyPatch.context() as monkeypatch:
            Calls(allowed).watch(monkeypatch)
            try:
                save_state(folder, make_state(99), step)
                reached_end = True
            except Crash:
                pass
        loaded = load_latest(folder)
        found = None if loaded is None else value_of(loaded.state)
        assert found in (saved or None, 99)
        outcomes.add(found)
        # The next save works, and nothing is left of the one that was cut short.
        save_state(folder, make_state(100), 100)
        assert value_of(load(folder).state) == 100
        assert len(steps(folder)) <= 2
        allowed += 1
    assert outcomes == {saved or None, 99}
    assert allowed > 5


# Damage.


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3 * len(data) // 8] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    for step in (1, 2):
        save_state(tmp_path, make_state(step), step)
    first, second = sorted(tmp_path.iterdir())
    damage(second)
    assert value_of(load(tmp_path).state) == 1
    assert f"{second.name} does not match its checksum; resuming from step 1" in caplog.text
    damage(first)
    with pytest.raises(RunError, match=r"All checkpoints .*step-000002-.* step-000001-"):
        load_latest(tmp_path)


# Models.


def test_a_model_comes_back(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    description = {"kind": "linear", "sizes": (3, 2), "rate": 1e-4, "none": None, "flag": True}
    save_model(tmp_path / "model", model.state_dict(), description)
    tensors, described = load_model(tmp_path / "model")
    assert_same(tensors, dict(model.state_dict()))
    assert described == {**description, "sizes": [3, 2]}
    assert sum(1 for _ in (tmp_path / "model").iterdir()) == 2


def test_a_model_is_replaced_as_a_whole(tmp_path: Path) -> None:
    reached_end, allowed, seen = False, 0, set()
    while not reached_end:
        folder = tmp_path / str(allowed)
        save_model(folder, {"w": torch.tensor(1)}, {"value": 1})
        with pytest.MonkeyPatch.context() as monkeypatch:
            Calls(allowed).watch(monkeypatch)
            try:
                save_model(folder, {"w": torch.tensor(2)}, {"value": 2})
                reached_end = True
            except Crash:
                pass
        tensors, description = load_model(folder)
        assert tensors["w"] == description["value"]
        seen.add(description["value"])
        allowed += 1
    assert seen == {1, 2}


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
    flip(tensors)
    with pytest.raises(RunError, match=r"The model in .* is damaged: .* its checksum"):
        load_model(tmp_path)
