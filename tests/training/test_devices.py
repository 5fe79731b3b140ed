"""Devices, precision, and several processes."""

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from drpm.training.config import TrainingConfig
from drpm.training.devices import connect, matmul_precision, seeded
from drpm.training.errors import ConfigError, RunError
from drpm.training.loop import train
from drpm.training.program import Program
from drpm.training.runs import RunFolder
from tests.processes import python
from tests.training.toys import begin, make_model, points, settings, squares, steps_of, take_steps


def no_cards(monkeypatch: pytest.MonkeyPatch, count: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_initial_values_are_drawn_without_the_default_generator() -> None:
    """They are those that torch's own seed gives, in a thread's own stream."""

    def build() -> list[torch.Tensor]:
        layers = nn.Linear(3, 4), nn.Conv2d(2, 3, 3), nn.Embedding(3, 4), nn.LSTM(3, 4)
        values = [x.detach() for layer in layers for x in layer.parameters()]
        drawn = [torch.randn(3), torch.rand(2), torch.randperm(5), torch.empty(3).exponential_()]
        filled = [nn.init.xavier_normal_(torch.empty(3, 4)), nn.init.orthogonal_(torch.empty(3, 3))]
        return values + drawn + filled

    with torch.random.fork_rng([]):
        torch.manual_seed(7)
        expected = build()
    before = torch.get_rng_state()
    with seeded(7):
        found = build()
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    no_cards(monkeypatch)
    assert connect(TrainingConfig()).device == torch.device("cpu")
    no_cards(monkeypatch, 2)
    assert connect(TrainingConfig()).device == torch.device("cuda:0")
    assert connect(TrainingConfig(device="cuda:1")).device == torch.device("cuda:1")
    assert connect(TrainingConfig(device="cpu")).device == torch.device("cpu")


@pytest.mark.parametrize(
    ("cards", "wanted", "complaint"),
    [
        (0, {"device": "cuda"}, r"available on this machine \(cpu\), but got 'cuda'"),
        (2, {"device": "cuda:2"}, "one of 2 GPUs.*, but got 'cuda:2'"),
        (2, {"device": "cuda:1", "devices": 2}, "must be 'cuda' if devices is 2, but got 'cuda:1'"),
        (2, {"device": "cuda", "devices": 3}, "devices must be at most 2, the GPUs here"),
        (2, {"device": "cpu", "step": "graph"}, "step must .* on 1 x cpu, but got 'graph'"),
        (2, {"devices": 2, "step": "graph"}, "step must .* on 2 x cuda.*, but got 'graph'"),
        (2, {"devices": 2, "step": "compile"}, "step must .* on 2 x cuda.*, but got 'compile'"),
    ],
)
def test_what_a_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, cards: int, wanted: dict[str, Any], complaint: str
) -> None:
    no_cards(monkeypatch, cards)
    with pytest.raises(ConfigError, match=complaint):
        connect(TrainingConfig(**wanted))


def test_one_device_needs_no_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.fabric", None)
    for precision in ("32-true", "64-true"):
        assert connect(TrainingConfig(device="cpu", precision=precision)).count == 1
    with pytest.raises(RunError, match=r"package lightning.*pip install 'drpm\[distributed\]'"):
        connect(TrainingConfig(device="cpu", devices=2))


@pytest.mark.parametrize(
    ("local", "devices", "asked"),
    [
        (None, 2, {"devices": 2, "num_nodes": 1}),
        ("2", 1, {"devices": 2, "num_nodes": 2}),
        ("4", 4, {"devices": 4, "num_nodes": 1}),
    ],
)
def test_what_is_asked_of_fabric(
    monkeypatch: pytest.MonkeyPatch, local: str | None, devices: int, asked: dict[str, int]
) -> None:
    """Processes that torchrun has started are counted, not started again."""
    fabric = pytest.importorskip("lightning.fabric")
    made = Mock(global_rank=3, world_size=4, device=torch.device("cpu"))
    monkeypatch.setattr(fabric, "Fabric", Mock(return_value=made))
    if local is not None:
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    connected = connect(TrainingConfig(device="cpu", devices=devices))
    assert (connected.rank, connected.count, connected.is_first) == (3, 4, False)
    made.launch.assert_called_once()
    assert fabric.Fabric.call_args.kwargs == {"accelerator": "cpu", "strategy": "ddp"} | asked


@pytest.mark.parametrize("stacked", [False, True])
def test_double_precision(stacked: bool) -> None:
    # Adam would take full steps along gradients that are nothing but rounding errors.
    options: dict[str, Any] = {"device": "cpu", "optimizer": "sgd"}
    types = set()

    def objective(model: Any, batch: Any, *others: Any) -> dict[str, torch.Tensor]:
        types.add(model(batch["x"]).dtype)
        return squares(model, batch, *others)

    def make(objective: Any, config: TrainingConfig) -> Program:
        models = [make_model(0), make_model(1)] if stacked else make_model()
        return Program(models, objective, points(), config, devices=connect(config))

    program = make(objective, settings(precision="64-true", **options))
    values = take_steps(program, 15)
    assert types == {torch.float64}
    assert {x.dtype for x in program.tensors().values()} == {torch.float64}
    reference = take_steps(make(squares, settings(**options)), 15)
    torch.testing.assert_close(values, reference, rtol=1e-4, atol=1e-4)


def test_two_processes(tmp_path: Path) -> None:
    """Gradients are averaged, an epoch is split, either can be stopped, and all resumes."""
    done = python("-m", "tests.training.two_ranks", tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank-{n}.json").read_text()) for n in (0, 1))
    assert [(found["rank"], found["count"]) for found in (first, second)] == [(0, 2), (1, 2)]
    # The connection is closed: its threads may crash a process that ends while they run.
    assert not [name for found in (first, second) for name in found["threads"] if "gloo" in name]
    # Lightning would greet here.
    assert "distributed" not in done.stderr
    assert first["gradient"]
    assert second["gradient"]
    assert first["noise"] != second["noise"]
    # Forty examples in batches of four for each of two: five steps, and every example once.
    assert len(first["batches"]) == 5
    assert sorted(chain(*first["batches"], *second["batches"])) == list(range(40))
    # In batches of twelve the last step lacks eight, which are those that came first.
    steps = zip(first["filled"], second["filled"], strict=True)
    filled = [index for step in steps for index in chain(*step)]
    assert sorted(filled[:40]) == list(range(40))
    assert filled[40:] == filled[:8]
    # A batch that is larger than the data is the data, for each of them.
    for found in (first, second):
        assert [sorted(batch) for batch in found["large"]] == [list(range(40))]
    assert first["parameters"] == second["parameters"]
    for found in (first, second):
        assert (found["exit_code"], found["stopped_after"]) == (143, 7)
        assert found["resumed"]
        assert "at step 1: " in found["complaint"]
        assert "on 2 devices and can only be resumed with those" in found["other_count"]
        assert found["precisions"] == [["tf32", "ieee"]] * 2
    for name in ("whole", "cut"):
        assert steps_of(RunFolder.open(tmp_path / name)) == list(range(1, 21))


def state() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_run_sets_it_and_restores_it(tmp_path: Path, precision: Any) -> None:
    before, seen = state(), []

    def objective(*arguments: Any) -> dict[str, torch.Tensor]:
        seen.append(state())
        with matmul_precision("highest"):
            seen.append(state())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(*begin(tmp_path, objective, matmul=precision))
    assert seen == [(precision, precision == "high"), ("highest", False)]
    assert state() == before
