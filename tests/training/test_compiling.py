"""Compiled steps do what eager steps do, and where there is no compiler, eager steps do."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drpm.training import loop
from drpm.training.compiling import CapturedStep, compile_step
from drpm.training.devices import connect
from drpm.training.loop import train
from drpm.training.program import BaseProgram, Program
from drpm.training.schedules import LinearSchedule
from drpm.training.stacking import StackedProgram
from tests.training.toys import (
    copied,
    make_model,
    make_run,
    noisy_squares,
    points,
    same,
    settings,
    squares,
    steps_of,
    take_steps,
)

# Traces the step and splits it into forward and backward as inductor has it done, but then calls
# torch's own operations: quick, the same to the last bit, and it needs no compiler.
TRACED = "aot_eager"


def scheduled(model: Any, batch: Any, schedule: Any, generator: Any) -> dict[str, Tensor]:
    terms = squares(model, batch, schedule, generator)
    return {**terms, "loss": (1 + schedule["beta"]) * terms["loss"]}


def make(
    stacked: bool, objective: Any = scheduled, device: str = "cpu", **changes: Any
) -> BaseProgram:
    config = settings(device=device, **changes)
    options: dict[str, Any] = {
        "schedules": {"beta": LinearSchedule(0.0, 1.0, 10)},
        "devices": connect(config),
    }
    if stacked:
        models = [make_model(seed) for seed in range(3)]
        return StackedProgram(models, objective, points(), config, **options)
    return Program(make_model(), objective, points(), config, **options)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_compiled_step_equals_an_eager_one(stacked: bool) -> None:
    changes: dict[str, Any] = {"gradient_clip": 0.1, "weight_decay": 0.01}
    eager, compiled = (make(stacked, **changes) for _ in range(2))
    before = copied(compiled.tensors())
    assert compile_step(compiled, TRACED)
    assert same(compiled.tensors(), before)
    assert int(compiled.step_count) == 0
    calls = graphs_called()
    torch.testing.assert_close(take_steps(compiled, 12), take_steps(eager, 12))
    torch.testing.assert_close(compiled.tensors(), eager.tensors())
    # Traced once, and not again at any of these steps.
    assert graphs_called() == calls > 0


@pytest.mark.parametrize("stacked", [False, True])
def test_a_fused_optimiser_is_compiled_as_well(stacked: bool) -> None:
    """On CUDA all are; the CPU can have one. It counts its steps in float32."""
    near = {"rtol": 1e-4, "atol": 1e-4}
    eager, compiled = (make(stacked, weight_decay=0.01) for _ in range(2))
    (group,) = compiled.optimizer.param_groups
    group.update(fused=True, lr=torch.tensor(group["lr"]))
    assert compile_step(compiled, TRACED)
    assert not group["fused"]
    torch.testing.assert_close(take_steps(compiled, 12), take_steps(eager, 12), **near)
    torch.testing.assert_close(compiled.tensors(), eager.tensors(), **near)
    # Where there is no compiler, it stays what it was.
    (group,) = eager.optimizer.param_groups
    group.update(fused=True, foreach=None, lr=torch.tensor(group["lr"]))
    assert not compile_step(eager, no_compiler)
    assert group["fused"]
    assert not group["capturable"]


def graphs_called() -> int:
    """How many operations the compiler has seen."""
    import torch._dynamo.utils

    return int(torch._dynamo.utils.counters["stats"]["calls_captured"])


@pytest.mark.parametrize("stacked", [False, True])
def test_noise_is_the_devices_own(stacked: bool) -> None:
    ends = []
    for seed in (5, 5, 6):
        program = make(stacked, noisy_squares, learning_rate=1e-9, batch_size=40)
        assert compile_step(program, TRACED)
        torch.manual_seed(seed)
        ends.append(take_steps(program, 3)[:, 0].flatten())
    # Other noise for each step and run, and the same again for the same seed.
    assert len(set(ends[0].tolist())) == len(ends[0])
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("stacked", [False, True])
def test_training_and_resuming(
    tmp_path: Path, stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, noise included, as eager runs do."""
    monkeypatch.setattr(loop, "compile_step", lambda program: compile_step(program, TRACED))

    def runs(name: str, program: BaseProgram) -> list[Any]:
        count = range(program.width)
        return [make_run(tmp_path / f"{name}-{run}", program.config) for run in count]

    def fresh() -> BaseProgram:
        return make(stacked, noisy_squares, step="compile", log_every=1)

    whole = fresh()
    train(whole, runs("whole", whole))

    class Stop(Exception):
        pass

    class Stopper:
        def start(self, total_steps: int, done: int) -> None:
            pass

        def update(self, step: int, metrics: Any) -> None:
            if step == 7:
                raise Stop

        def stop(self) -> None:
            pass

    cut = fresh()
    folders = runs("cut", cut)
    with pytest.raises(Stop):
        train(cut, folders, progress=Stopper())
    torch.rand(3)
    resumed = fresh()
    train(resumed, folders)
    assert same(copied(resumed.tensors()), copied(whole.tensors()))
    assert steps_of(folders[0]) == list(range(1, 16))


def test_stacked_runs_are_compiled_whole_or_not_at_all(caplog: pytest.LogCaptureFixture) -> None:
    def objective(model: Any, batch: Any, schedule: Any, generator: Any) -> dict[str, Tensor]:
        torch._dynamo.graph_break()
        return squares(model, batch, schedule, generator)

    eager, program = (make(True, objective) for _ in range(2))
    assert not compile_step(program, TRACED)
    ((level, line),) = told(caplog)
    assert level == logging.WARNING
    assert line.startswith("The training step runs uncompiled. ")
    assert "\n" not in line
    assert torch.equal(take_steps(program, 6), take_steps(eager, 6))


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """What we say; torch keeps a diary of its own."""
    ours = [record for record in caplog.records if record.name.startswith("drpm")]
    return [(record.levelno, record.getMessage()) for record in ours]


def no_compiler(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("Failed to find C compiler.\nPlease specify one via CC.")


@pytest.mark.parametrize("stacked", [False, True])
def test_without_a_compiler_there_is_one_line(
    stacked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    eager, program = (make(stacked) for _ in range(2))
    assert not compile_step(program, no_compiler)
    assert told(caplog) == [
        (
            logging.WARNING,
            "The training step runs uncompiled. RuntimeError: Failed to find C compiler.",
        )
    ]
    assert torch.equal(take_steps(program, 6), take_steps(eager, 6))


@pytest.mark.parametrize("stacked", [False, True])
def test_a_compiler_that_finds_no_memory_is_no_missing_compiler(
    stacked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def full(graph: Any, inputs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 2 GiB"):
        compile_step(make(stacked), full)
    assert not told(caplog)


def test_a_fault_of_the_objective_is_still_told(tmp_path: Path) -> None:
    def objective(*arguments: Any) -> dict[str, Tensor]:
        raise ValueError("images must be squares")

    program = make(False, objective, step="compile")
    with pytest.raises(ValueError, match="images must be squares"):
        train(program, [make_run(tmp_path, program.config)])


@pytest.mark.parametrize("stacked", [False, True])
def test_many_programs_in_one_process(stacked: bool) -> None:
    """Torch compiles one function eight times and then no more, which would go unnoticed."""

    def counted() -> dict[str, int]:
        import torch._dynamo.utils

        return dict(torch._dynamo.utils.counters["stats"])

    found = []
    for _ in range(10):
        program = make(stacked)
        (group,) = program.optimizer.param_groups
        group.update(fused=True, lr=torch.tensor(group["lr"]))
        before = counted()
        assert compile_step(program, TRACED)
        found.append({name: count - before.get(name, 0) for name, count in counted().items()})
    # The schedule, the terms with their gradients, and the optimiser.
    assert found[0]["unique_graphs"] == 3
    assert all(each == found[0] for each in found)
    # Nor is what the caller compiles used up.
    (parameter,) = parameters = [torch.nn.Parameter(torch.ones(2))]
    parameter.grad = torch.ones(2)
    compilations = []

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    torch.compile(torch.optim.Adam(parameters).step, backend=backend)()
    assert compilations


def test_what_the_caller_has_compiled_stays_compiled() -> None:
    compilations = []

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    double = torch.compile(lambda x: 2 * x, backend=backend)
    double(torch.ones(3))
    assert compile_step(make(False), TRACED)
    double(torch.ones(3))
    assert len(compilations) == 1


class Wide(torch.nn.Module):
    """From two numbers to one, by a matrix of any size."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        sides = (2, *widths, 1)
        layers = [torch.nn.Linear(*sides[index : index + 2]) for index in range(len(sides) - 1)]
        self.layers = torch.nn.Sequential(*layers)


def wide_squares(model: Wide, batch: Any, schedule: Any, generator: Any) -> dict[str, Tensor]:
    return {"loss": (model.layers(batch["x"]) - 1).square().mean()}


def make_wide(*widths: int, device: str = "cpu", **changes: Any) -> StackedProgram:
    torch.manual_seed(0)
    config = settings(device=device, **changes)
    models = [Wide(*widths) for _ in range(3)]
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    return StackedProgram(models, wide_squares, {"x": x}, config, devices=connect(config))


# With inductor, on a GPU.


@pytest.mark.cuda
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_padded_products(optimizer: Any) -> None:
    changes = {"optimizer": optimizer, "learning_rate": 0.001}
    eager, program = (make_wide(200, 90, device="cuda", **changes) for _ in range(2))
    assert compile_step(program)
    step = CapturedStep(program)
    for each, take in ((eager, eager.step), (program, step)):
        each.shuffle()
        each.order.copy_(eager.order)
        take()
    torch.testing.assert_close(program.tensors(), eager.tensors(), rtol=1e-5, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_compiled_and_captured_equals_eager(stacked: bool, optimizer: Any) -> None:
    changes = {"optimizer": optimizer, "gradient_clip": 0.5, "learning_rate": 0.01}
    eager, program = (make(stacked, device="cuda", **changes) for _ in range(2))
    assert compile_step(program)
    step = CapturedStep(program)
    for number in range(20):
        for each, take in ((eager, eager.step), (program, step)):
            if number % each.steps_per_epoch == 0:
                each.shuffle()
            take()
    torch.testing.assert_close(program.tensors(), eager.tensors(), rtol=1e-5, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize("stacked", [False, True])
def test_noise_differs_between_replays_of_a_compiled_step(stacked: bool) -> None:
    program = make(stacked, noisy_squares, device="cuda", batch_size=40, learning_rate=1e-9)
    assert compile_step(program)
    step = CapturedStep(program)
    values = []
    for _ in range(3):
        program.shuffle()
        step()
        values.append(program.readings().values[:, 0])
    found = torch.cat(values).flatten().tolist()
    assert len(set(found)) == len(found)


@pytest.mark.cuda
@pytest.mark.parametrize("stacked", [False, True])
def test_a_compiled_run_on_a_gpu(tmp_path: Path, stacked: bool) -> None:
    ends = []
    for way in ("eager", "compile"):
        program = make(stacked, device="cuda", step=way)
        count = range(program.width)
        train(program, [make_run(tmp_path / f"{way}-{run}", program.config) for run in count])
        ends.append(copied(program.tensors()))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
