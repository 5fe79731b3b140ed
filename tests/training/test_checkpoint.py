"""Checkpoints: exact round trips, and old or new but never a mixture, whenever a crash comes."""

import builtins
import errno
import json
import math
import os
import pickle
import shutil
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drpm.training import checkpoint
from drpm.training.checkpoint import load_latest, load_model, save_model, save_state
from drpm.training.errors import RunError


def assert_same(actual: Any, expected: Any) -> None:
    """Equal in structure, type and every bit."""
    if isinstance(expected, Tensor):
        assert isinstance(actual, Tensor)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert bits(actual) == bits(expected)
    elif isinstance(expected, dict):
        assert type(actual) is dict
        assert [(type(key), key) for key in actual] == [(type(key), key) for key in expected]
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert type(actual) is float
        assert struct.pack(">d", actual) == struct.pack(">d", expected)
    else:
        assert type(actual) is type(expected)
        assert actual == expected


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def round_trip(folder: Path, state: Any) -> Any:
    save_state(folder, state, 7)
    loaded = load_latest(folder)
    assert loaded is not None
    assert loaded.step == 7
    return loaded.state


def is_whole(state: Any, values: tuple[int, ...]) -> bool:
    """Whether a state is one of those that `numbered` makes, with no part of another."""
    return any(
        state["value"] == value and bool((state["tensor"] == value).all()) for value in values
    )


def numbered(value: int) -> dict[str, Any]:
    return {"value": value, "tensor": torch.full((50,), float(value))}


# Round trips.


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4, dtype=torch.float64),
        torch.tensor(5.0),
        torch.tensor([0.1, -0.0, math.inf, math.nan], dtype=torch.bfloat16),
        torch.tensor([1.5, 65504.0], dtype=torch.float16),
        torch.tensor([True, False, True]),
        torch.Generator().manual_seed(3).get_state(),
        torch.tensor(2**62 + 1),
        torch.arange(5, dtype=torch.int32),
        torch.arange(5, dtype=torch.int16),
        torch.arange(5, dtype=torch.int8),
        torch.empty(0),
        torch.empty(0, 3, dtype=torch.int64),
        torch.empty(2, 0, dtype=torch.bfloat16),
        torch.arange(12).reshape(3, 4).t(),
        torch.arange(12)[::3],
        torch.ones(1).expand(4, 5),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        nn.Parameter(torch.randn(2)),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_a_tensor_comes_back_bit_for_bit(tmp_path: Path, tensor: Tensor) -> None:
    assert_same(round_trip(tmp_path, {"tensor": tensor}), {"tensor": tensor.detach()})
    assert_same(round_trip(tmp_path, tensor), tensor.detach())


def test_the_bits_of_a_nan_survive(tmp_path: Path) -> None:
    odd = struct.unpack(">d", bytes.fromhex("7ff8000000000abc"))[0]
    tensor = torch.tensor([0x7FC00ABC], dtype=torch.int32).view(torch.float32)
    assert_same(round_trip(tmp_path, [odd, tensor]), [odd, tensor])


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8"))
)
states = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(scalars.filter(lambda key: key == key), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(states)
def test_any_structure_comes_back(state: Any) -> None:
    encoded = checkpoint._encode(state)
    text = json.dumps(encoded.structure, allow_nan=False)
    assert_same(checkpoint._decode(json.loads(text), encoded.tensors), state)


def test_numbers_and_keys_keep_their_types(tmp_path: Path) -> None:
    state = {
        "whole": [0, -1, 2**63, -(2**200), 10**5000],
        "real": [0.1, 1e-320, -0.0, math.inf, -math.inf, math.nan, 1.0],
        "keys": {0: "zero", "0": "text", None: (), 1.5: [(), [], {}]},
        "tensor": {"tensor": "a name"},
        "text": ["", "\0", "\N{SNOWMAN}", '"\n\\'],
    }
    assert_same(round_trip(tmp_path, state), state)


def test_keys_with_dots_do_not_collide(tmp_path: Path) -> None:
    one, two, three = torch.tensor(1), torch.tensor(2), torch.tensor(3)
    state = {"a": {"b": one}, "a.b": two, "__metadata__": three, "": {"": one}, "a.b~2": two}
    assert_same(round_trip(tmp_path, state), state)


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    whole = torch.arange(1000)
    state = {"whole": whole, "again": whole, "view": whole[3:5], "row": whole.reshape(10, 100)[2]}
    assert_same(round_trip(tmp_path, state), state)
    save_state(tmp_path / "view", {"view": whole[3:5]}, 0)
    file = tmp_path / "view" / "step-000000" / "state.safetensors"
    assert file.stat().st_size < 200, "a view brought its storage along"


def test_a_loaded_tensor_owns_its_memory(tmp_path: Path) -> None:
    loaded = round_trip(tmp_path, {"a": torch.zeros(3), "b": torch.zeros(3)})
    loaded["a"].add_(1)
    assert loaded["b"].sum() == 0


def test_a_module_state_comes_back_as_a_plain_dictionary(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert isinstance(model.state_dict(), OrderedDict)
    loaded = round_trip(tmp_path, model.state_dict())
    assert_same(loaded, dict(model.state_dict()))
    model.load_state_dict(loaded)


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam,
        lambda parameters: torch.optim.Adam(parameters, amsgrad=True, betas=(0.95, 0.999)),
        lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(1e-3), foreach=False),
        torch.optim.AdamW,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    ],
)
def test_an_optimizer_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    def start() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        first, second = model[0].parameters(), model[2].parameters()
        return model, make([{"params": list(first)}, {"params": list(second), "lr": 0.01}])

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 3, generator=generator)).square().mean().backward()
            optimizer.step()

    model, optimizer = start()
    train(model, optimizer, 0)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    loaded = round_trip(tmp_path, state)
    assert_same(loaded["optimizer"], state["optimizer"])

    other, its_optimizer = start()
    other.load_state_dict(loaded["model"])
    its_optimizer.load_state_dict(loaded["optimizer"])
    train(model, optimizer, 1)
    train(other, its_optimizer, 1)
    assert_same(dict(other.state_dict()), dict(model.state_dict()))


def test_a_generator_goes_on(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    state = round_trip(tmp_path, {"noise": generator.get_state()})
    other = torch.Generator()
    other.set_state(state["noise"])
    assert torch.equal(torch.rand(9, generator=other), torch.rand(9, generator=generator))


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"a": [np.zeros(3)]}, r"a\.0 must be a tensor, number.*got a numpy\.ndarray\."),
        ({"a": np.float64(1.0)}, r"a must be .* got a numpy\.float64\."),
        ({"a": {3}}, r"a must be .* got a builtins\.set\."),
        ({"a": {(1, 2): 3}}, r"a key of a must be .* got a builtins\.tuple\."),
        (torch.Size([1]), r"state must be .* got a torch\.Size\."),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "a must be a dense tensor .*complex128"),
        ({"a": torch.zeros(2, 2).to_sparse()}, "a must be a dense tensor .*sparse"),
        ({"a": torch.zeros(2, device="meta")}, "a must be a dense tensor .*meta"),
    ],
)
def test_what_cannot_come_back_is_refused(tmp_path: Path, state: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        save_state(tmp_path, state, 1)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert_same(round_trip(tmp_path, numbered(3)), numbered(3))
    save_model(tmp_path / "model", {"w": torch.ones(2)}, {})
    load_model(tmp_path / "model")


# Which checkpoints there are.


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "nowhere") is None
    assert load_latest(tmp_path) is None
    for step in (10, 20, 30):
        path = save_state(tmp_path, numbered(step), step)
        assert path == tmp_path / f"step-{step:06d}"
    assert folders(tmp_path) == ["latest", "step-000020", "step-000030"]
    loaded = load_latest(tmp_path)
    assert loaded is not None
    state, step = loaded
    assert step == 30
    assert_same(state, numbered(30))


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_state(tmp_path, numbered(1), 10)
    save_state(tmp_path, numbered(2), 20)
    save_state(tmp_path, numbered(3), 20)
    assert folders(tmp_path) == ["latest", "step-000010", "step-000020-2"]
    save_state(tmp_path, numbered(4), 20)
    assert folders(tmp_path) == ["latest", "step-000010", "step-000020"]
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.state["value"] == 4


def test_going_back_drops_the_later_steps(tmp_path: Path) -> None:
    for step in (10, 20):
        save_state(tmp_path, numbered(step), step)
    save_state(tmp_path, numbered(15), 15)
    assert folders(tmp_path) == ["latest", "step-000010", "step-000015"]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "step-best", "step-000001.bak"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    for step in (1, 2, 3):
        save_state(tmp_path, numbered(step), step)
    assert {"notes.txt", "step-best", "step-000001.bak"} <= set(folders(tmp_path))


# Crashes.


class Crash(BaseException):
    """Stands for a SIGKILL: after it no system call of the process has any effect."""


# What changes the disk, besides opening a file to write and writing it; and the part of it that
# a full disk can refuse.
CHANGES = ("replace", "fsync", "mkdir", "open", "unlink", "rmdir")
NEEDS_ROOM = ("replace", "fsync", "mkdir")


class Calls:
    """Lets the first calls that change the disk pass, and none after them."""

    def __init__(self, allowed: int, error: BaseException) -> None:
        self.allowed, self.error, self.made = allowed, error, 0

    def watch(self, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
        for name in names:
            monkeypatch.setattr(os, name, self.guard(getattr(os, name)))
        monkeypatch.setattr(builtins, "open", self.guarded_open(builtins.open))

    def check(self) -> None:
        self.made += 1
        if self.made > self.allowed:
            raise self.error

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
            file = function(path, mode, *arguments, **options)
            return HalfWritten(file, self)

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


def prepare(folder: Path, saved: int) -> tuple[int, ...]:
    """A folder with some checkpoints; the last of them is the old state."""
    for step in range(1, saved + 1):
        save_state(folder, numbered(step), step)
    return tuple(range(1, saved + 1))[-1:]


@pytest.mark.parametrize("saved", [0, 1, 2, 3])
@pytest.mark.parametrize("again", [False, True], ids=["next step", "same step"])
def test_a_crash_at_any_call_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, saved: int, again: bool
) -> None:
    step = saved if again else saved + 1
    reached_end, outcomes, allowed = False, set(), 0
    while not reached_end:
        folder = tmp_path / str(allowed)
        folder.mkdir()
        old = prepare(folder, saved)
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = Calls(allowed, Crash())
            calls.watch(monkeypatch, CHANGES)
            try:
                save_state(folder, numbered(99), step)
                reached_end = True
            except Crash:
                assert calls.made > allowed
        loaded = load_latest(folder)
        if loaded is None:
            assert not old
        else:
            assert is_whole(loaded.state, (*old, 99))
            outcomes.add(loaded.state["value"])
        # Whatever the crash left, the next process goes on from it and cleans up.
        save_state(folder, numbered(100), step + 1)
        after = load_latest(folder)
        assert after is not None
        assert is_whole(after.state, (100,))
        assert not [name for name in folders(folder) if name.endswith(".tmp")]
        assert len(folders(folder)) <= 3
        shutil.rmtree(folder)
        allowed += 1
    assert allowed > 10, "fewer calls were tried than a save makes"
    assert outcomes == {*old, 99}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_call_names_the_last_good_checkpoint(tmp_path: Path, code: int) -> None:
    """Every call that a full disk can refuse, one after the other."""
    reached_end, allowed = False, 0
    while not reached_end:
        folder = tmp_path / str(allowed)
        prepare(folder, 2)
        with pytest.MonkeyPatch.context() as monkeypatch:
            Calls(allowed, OSError(code, os.strerror(code))).watch(monkeypatch, NEEDS_ROOM)
            try:
                save_state(folder, numbered(3), 3)
                reached_end = True
            except RunError as error:
                message = str(error)
        loaded = load_latest(folder)
        assert loaded is not None
        assert is_whole(loaded.state, (2, 3))
        if not reached_end:
            assert f"; the last good checkpoint is step {loaded.step} in {folder}" in message
            assert ("because the disk is full" in message) == (code == errno.ENOSPC)
        assert not [name for name in folders(folder) if name.endswith(".tmp")]
        allowed += 1
    assert allowed > 10, "fewer calls were tried than a save makes"


def test_a_full_disk_without_any_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch)
    with pytest.raises(RunError, match="the disk is full; there is no earlier checkpoint in"):
        save_state(tmp_path, numbered(1), 1)
    assert list(tmp_path.iterdir()) == []


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    Calls(0, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))).watch(monkeypatch, NEEDS_ROOM)


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("a file", encoding="utf-8")
    with pytest.raises(RunError, match="step 1 was not written, because a file is in the place of"):
        save_state(tmp_path / "checkpoint", numbered(1), 1)


# Damage.


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(b"{\xff\x00 not JSON")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3 * len(data) // 8] ^= 1
    path.write_bytes(bytes(data))


def change_a_number(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"value": 2', '"value": 7'), encoding="utf-8")


def newer_format(path: Path) -> None:
    content = json.loads(path.read_bytes())["content"]
    path.write_bytes(checkpoint._document({**content, "format": 999}))


DAMAGES = [
    ("state.safetensors", truncate, "instead of"),
    ("state.safetensors", empty, "has 0 bytes"),
    ("state.safetensors", flip, "does not match its checksum"),
    ("state.safetensors", os.remove, "cannot be read"),
    ("state.json", truncate, "is garbled"),
    ("state.json", empty, "is garbled"),
    ("state.json", garble, "is garbled"),
    ("state.json", change_a_number, "does not match its checksum"),
    ("state.json", newer_format, "has a format that this version does not know"),
    ("state.json", os.remove, "cannot be read"),
]


@pytest.mark.parametrize(("file", "damage", "complaint"), DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    file: str,
    damage: Callable[[Path], None],
    complaint: str,
) -> None:
    prepare(tmp_path, 2)
    damage(tmp_path / "step-000002" / file)
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 1
    assert is_whole(loaded.state, (1,))
    assert "step-000002 is damaged" in caplog.text
    assert complaint in caplog.text
    assert "step 1 is taken instead" in caplog.text

    damage(tmp_path / "step-000001" / file)
    if damage is change_a_number:
        garble(tmp_path / "step-000001" / file)
    with pytest.raises(RunError, match=r"no checkpoint .* step-000002 .* step-000001") as refused:
        load_latest(tmp_path)
    assert "overwrite it (on the command line --overwrite)." in str(refused.value)


@pytest.mark.parametrize("damage", [empty, garble, os.remove])
def test_a_damaged_pointer_does_no_harm(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    prepare(tmp_path, 3)
    damage(tmp_path / "latest")
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 3
    save_state(tmp_path, numbered(4), 4)
    assert folders(tmp_path) == ["latest", "step-000003", "step-000004"]


def test_a_damaged_checkpoint_is_not_what_is_kept(tmp_path: Path) -> None:
    prepare(tmp_path, 2)
    truncate(tmp_path / "step-000002" / "state.safetensors")
    save_state(tmp_path, numbered(3), 3)
    assert folders(tmp_path) == ["latest", "step-000001", "step-000003"]


# Models.


def test_a_model_comes_back(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    description = {"kind": "linear", "sizes": (3, 2), "rate": 1e-4, "none": None, "flag": True}
    save_model(tmp_path / "model", model.state_dict(), description)
    tensors, described = load_model(tmp_path / "model")
    assert_same({name: tensors[name] for name in model.state_dict()}, dict(model.state_dict()))
    assert described == {**description, "sizes": [3, 2]}
    assert sum(1 for _ in (tmp_path / "model").iterdir()) == 2


def test_a_model_is_replaced_as_a_whole(tmp_path: Path) -> None:
    reached_end, allowed, seen = False, 0, set()
    while not reached_end:
        folder = tmp_path / str(allowed)
        save_model(folder, {"w": torch.tensor(1)}, {"value": 1})
        with pytest.MonkeyPatch.context() as monkeypatch:
            Calls(allowed, Crash()).watch(monkeypatch, CHANGES)
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


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no model: model\.json is missing\."):
        load_model(tmp_path)
    save_model(tmp_path, {"w": torch.ones(100)}, {})
    (tensors,) = tmp_path.glob("*.safetensors")
    flip(tensors)
    with pytest.raises(
        RunError, match=r"The model in .* is damaged: .* does not match its checksum"
    ):
        load_model(tmp_path)
    content = json.loads((tmp_path / "model.json").read_bytes())["content"]
    content["tensors"]["file"] = "../elsewhere"
    (tmp_path / "model.json").write_bytes(checkpoint._document(content))
    with pytest.raises(RunError, match="names a file elsewhere"):
        load_model(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {3}, torch.zeros(1)])
def test_a_description_that_json_would_bend_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match=r"description\.a\.0 must be a finite number"):
        save_model(tmp_path, {}, {"a": [value]})
    with pytest.raises(ValueError, match="tensors must map names to tensors"):
        save_model(tmp_path, {"w": [1.0]}, {})  # type: ignore[dict-item]


def test_a_full_disk_keeps_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, {"w": torch.tensor(1)}, {})
    fill_disk(monkeypatch)
    with pytest.raises(
        RunError, match=r"The model was not written to .*, because the disk is full"
    ):
        save_model(tmp_path, {"w": torch.tensor(2)}, {})
    assert load_model(tmp_path).tensors["w"] == 1
    assert sum(1 for _ in tmp_path.iterdir()) == 2
