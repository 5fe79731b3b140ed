"""Compiled and captured steps equal eager steps; without a compiler, steps are eager."""

import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor

from drpm.training import loop
from drpm.training.compiling import CapturedStep, compile_step
from drpm.training.devices import connect
from drpm.training.loop import train
from drpm.training.program import Program
from tests.processes import python
from tests.training import toys

# Traces the step and splits it into forward and backward as inductor has it done, but then calls
# torch's own operations: quick, the same to the last bit, and it needs no compiler.
TRACED = "aot_eager"

both = pytest.mark.parametrize("stacked", [False, True])


def scheduled(model: Any, batch: Any, schedule: Any, generator: Any) -> dict[str, Tensor]:
    terms = toys.squares(model, batch, schedule, generator)
    return {**terms, "loss": (1 + schedule["beta"]) * terms["loss"]}


def make(stacked: bool, objective: Any = scheduled, device: str = "cpu", **changes: Any) -> Program:
    config = toys.settings(device=device, **changes)
    options: dict[str, Any] = {
        "schedules": {"beta": lambda step: (step / 10).clamp(max=1)},
        "devices": connect(config),
    }
    models = [toys.make_model(seed) for seed in range(3 if stacked else 1)]
    return Program(models, objective, toys.points(), config, **options)


def make_runs(folder: Path, name: str, program: Program) -> list[Any]:
    count = range(program.width)
    return [toys.make_run(folder / f"{name}-{run}", program.config) for run in count]


def fuse(program: Program) -> dict[str, Any]:
    """Make the optimizer as it is on CUDA."""
    (group,) = program.optimizer.param_groups
    group.update(fused=True, foreach=None, lr=torch.tensor(group["lr"]))
    return group


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    ours = [record for record in caplog.records if record.name.startswith("drpm")]
    return [(record.levelno, record.getMessage()) for record in ours]


class Stop(Exception):
    pass


def stop_after(last: int) -> Any:
    """A progress display that stops a training, which logs every step, after one of them."""
    return Mock(update=Mock(side_effect=[None] * (last - 1) + [Stop]))


@both
@pytest.mark.parametrize("fused", [False, True])
def test_a_compiled_step_equals_an_eager_one(stacked: bool, fused: bool) -> None:
    eager, compiled = (make(stacked, weight_decay=0.01) for _ in range(2))
    before = toys.copied(compiled.tensors())
    # A fused optimizer is compiled as well, and then counts its steps in float32.
    group = fuse(compiled) if fused else {"fused": False}
    assert compile_step(compiled, TRACED)
    assert not group["fused"]
    assert toys.same(compiled.tensors(), before)
    assert int(compiled.step_count) == 0
    stats = torch._dynamo.utils.counters["stats"]
    calls = stats["calls_captured"]
    near = {"rtol": 1e-4, "atol": 1e-4} if fused else {}
    torch.testing.assert_close(toys.take_steps(compiled, 12), toys.take_steps(eager, 12), **near)
    torch.testing.assert_close(compiled.tensors(), eager.tensors(), **near)
    assert stats["calls_captured"] == calls > 0, "traced once"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "compile_step", lambda program: compile_step(program, TRACED))


@pytest.mark.usefixtures("traced")
@both
def test_training_and_resuming(tmp_path: Path, stacked: bool) -> None:
    """Bit for bit, noise included, as in eager runs."""

    def fresh() -> Program:
        return make(stacked, toys.noisy_squares, step="compile", log_every=1)

    whole, cut, resumed = fresh(), fresh(), fresh()
    train(whole, make_runs(tmp_path, "whole", whole))
    folders = make_runs(tmp_path, "cut", cut)
    with pytest.raises(Stop):
        train(cut, folders, progress=stop_after(7))
    torch.rand(3)
    train(resumed, folders)
    assert toys.same(toys.copied(resumed.tensors()), toys.copied(whole.tensors()))
    assert toys.steps_of(folders[0]) == list(range(1, 16))


def graph_break(model: Any, batch: Any, schedule: Any, generator: Any) -> dict[str, Tensor]:
    torch._dynamo.graph_break()
    return toys.squares(model, batch, schedule, generator)


def no_compiler(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("Failed to find C compiler.\nPlease specify one via CC.")


@pytest.mark.parametrize(
    ("stacked", "objective", "backend", "message"),
    [
        (False, scheduled, no_compiler, "RuntimeError: Failed to find C compiler."),
        # Stacked runs are compiled whole or not at all.
        (True, graph_break, TRACED, ""),
    ],
)
def test_where_compiling_fails_a_warning_says_why(
    stacked: bool, objective: Any, backend: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    eager, program = (make(stacked, objective) for _ in range(2))
    group = fuse(program)
    assert not compile_step(program, backend)
    ((level, line),) = messages(caplog)
    assert level == logging.WARNING
    assert line.startswith(f"The training step runs uncompiled. {message}")
    assert "\n" not in line
    assert group["fused"]
    assert not group["capturable"]
    found, expected = toys.take_steps(program, 6), toys.take_steps(eager, 6)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@both
def test_a_lack_of_memory_is_an_error(stacked: bool, caplog: pytest.LogCaptureFixture) -> None:
    def full(graph: Any, inputs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 2 GiB"):
        compile_step(make(stacked), full)
    assert not messages(caplog)


@pytest.mark.usefixtures("traced")
def test_an_error_of_the_objective_is_raised(tmp_path: Path) -> None:
    def objective(*arguments: Any) -> dict[str, Tensor]:
        raise ValueError("images must be squares")

    program = make(False, objective, step="compile")
    with pytest.raises(ValueError, match="images must be squares"):
        train(program, [toys.make_run(tmp_path, program.config)])


@both
@torch._dynamo.config.patch(recompile_limit=2)
def test_many_programs_in_one_process(stacked: bool) -> None:
    """Torch compiles one function a few times and then no more, which would go unnoticed."""
    compilations = []

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    double = torch.compile(lambda x: 2 * x, backend=backend)
    double(torch.ones(3))
    found = []
    for _ in range(3):
        program = make(stacked)
        fuse(program)
        before = dict(torch._dynamo.utils.counters["stats"])
        assert compile_step(program, TRACED)
        after = dict(torch._dynamo.utils.counters["stats"])
        found.append({name: count - before.get(name, 0) for name, count in after.items()})
    # The schedule, the terms with their gradients, and the optimizer.
    assert found[0]["unique_graphs"] == 3
    assert found[0] == found[1] == found[2]
    # What the caller has compiled stays compiled, and the caller can compile more.
    double(torch.ones(3))
    assert len(compilations) == 1
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.compile(torch.optim.Adam([parameter]).step, backend=backend)()
    assert len(compilations) > 1


@pytest.mark.cuda
@both
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_step_equals_an_eager_one(stacked: bool, optimizer: Any, compiled: bool) -> None:
    changes = {"optimizer": optimizer, "weight_decay": 0.01}
    eager, captured = (make(stacked, device="cuda", **changes) for _ in range(2))
    before = toys.copied(captured.tensors())
    if compiled:
        assert compile_step(captured)
    step = CapturedStep(captured)
    torch.testing.assert_close(captured.tensors(), before, rtol=0, atol=0)
    assert int(captured.step_count) == 0
    # Twelve steps cross two ends of epochs.
    found, expected = toys.take_steps(captured, 12, step), toys.take_steps(eager, 12)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(captured.tensors(), eager.tensors(), rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
@both
@pytest.mark.parametrize("compiled", [False, True])
def test_learning_rate_batches_and_noise_change_between_replays(
    stacked: bool, compiled: bool
) -> None:
    def objective(model: Any, batch: Any, schedule: Any, generator: Any) -> dict[str, Tensor]:
        terms = toys.noisy_squares(model, batch, schedule, generator)
        return {"loss": terms["loss"], "bits": (2.0 ** batch["index"].double()).sum()}

    program = make(stacked, objective, device="cuda")
    if compiled:
        assert compile_step(program)
    step = CapturedStep(program)
    program.set_learning_rate(0.0)
    before = toys.copied(program.tensors())
    values = toys.take_steps(program, 2 * program.steps_per_epoch, step)
    torch.testing.assert_close(program.tensors(), before, rtol=0, atol=0)
    names = program.readings().names
    noise = values[:, names.index("loss")].flatten()
    assert len(set(noise.tolist())) == len(noise)
    # Every epoch shows all examples, in another order.
    first, second = values[:, names.index("bits")].split(program.steps_per_epoch)
    assert (first.sum(0) == 2.0**toys.EXAMPLES - 1).all()
    assert (second.sum(0) == 2.0**toys.EXAMPLES - 1).all()
    assert not torch.equal(first, second)
    program.set_learning_rate(0.1)
    toys.take_steps(program, 1, step)
    assert any(not torch.equal(x, before[name]) for name, x in program.tensors().items())


@pytest.mark.cuda
@both
def test_training_and_resuming_on_a_gpu(tmp_path: Path, stacked: bool) -> None:
    changes: dict[str, Any] = {"epochs": 4, "learning_rate_decay": 0.5, "decay_every": 1}
    ends = []
    for way in ("eager", "graph", "compile"):
        program = make(stacked, device="cuda", step=way, **changes)
        train(program, make_runs(tmp_path, way, program))
        ends.append(toys.copied(program.tensors()))
    program = make(stacked, device="cuda", log_every=1, **changes)
    folders = make_runs(tmp_path, "cut", program)
    with pytest.raises(Stop):
        train(program, folders, progress=stop_after(12))
    program = make(stacked, device="cuda", log_every=1, **changes)
    train(program, folders)
    ends.append(toys.copied(program.tensors()))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-4, atol=1e-5)
    assert toys.steps_of(folders[0]) == list(range(1, 21))


# In a process of its own: a capture that fails leaves the random generators unusable.
UNCAPTURABLE = """
from tests.training.test_compiling import CapturedStep, make, toys

def reads_back(*arguments):
    terms = toys.noisy_squares(*arguments)
    assert terms["loss"].item() < 1e9
    return terms

CapturedStep(make(False, reads_back, device="cuda"))
"""


@pytest.mark.cuda
def test_a_step_that_cannot_be_captured_says_what_to_do() -> None:
    done = python("-c", UNCAPTURABLE)
    assert done.returncode == 1
    assert "RunError: The training step cannot be captured in a CUDA graph" in done.stderr
    assert "run it with training.step=eager." in done.stderr
