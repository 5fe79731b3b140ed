"""The loop: epochs, reports, checkpoints, and everything that can stop a run."""

import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from drpm.training import checkpoint
from drpm.training.errors import Interrupted, RunError, StopRequest
from drpm.training.loop import TrainingProgress, train
from drpm.training.program import Batch, Program
from drpm.training.runs import RunFolder
from tests.training.toys import (
    copied,
    make_model,
    make_program,
    make_run,
    noisy_squares,
    points,
    same,
    settings,
    squares,
    steps_of,
)


class Recorder:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start(self, total_steps: int, done: int) -> None:
        self.calls.append(("start", total_steps, done))

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(("update", step, sorted(metrics)))

    def stop(self) -> None:
        self.calls.append(("stop",))


def at_step(number: int, act: Callable[[], Any]) -> Callable[..., dict[str, Tensor]]:
    """The usual objective, with something happening at the n-th step of this process."""
    calls = []

    def objective(*arguments: Any) -> dict[str, Tensor]:
        calls.append(1)
        if len(calls) == number:
            act()
        return noisy_squares(*arguments)

    return objective


def test_a_run_from_start_to_finish(tmp_path: Path) -> None:
    config = settings(epochs=3, log_every=2)
    run, progress = make_run(tmp_path / "run", config), Recorder()
    program = Program(make_model(), noisy_squares, points(), config)
    outcome = train(program, [run], evaluate=lambda index: {"index": index}, progress=progress)
    # Five steps an epoch: every second one, and the last of each epoch.
    assert steps_of(run) == [2, 4, 5, 6, 8, 10, 12, 14, 15]
    assert run.metrics()[2]["epoch"] == 1.0
    assert set(run.metrics()[0]) == {"step", "epoch", "loss", "error", "size", "wall_time"}
    assert outcome == [{"index": 0}]
    assert run.status == "finished"
    result = run.result()
    assert result["metrics"] == {"index": 0}
    assert result["device"] == "cpu"
    assert progress.calls[0] == ("start", 15, 0)
    assert progress.calls[1] == ("update", 2, ["error", "loss", "size"])
    assert progress.calls[-1] == ("stop",)


def test_no_epochs(tmp_path: Path) -> None:
    config, calls = settings(epochs=0), []
    run = make_run(tmp_path / "run", config)
    program = Program(make_model(), squares, points(), config)
    train(program, [run], before_epoch=calls.append, evaluate=lambda _: {"a": 1.0})
    assert same(program.model_state(), make_model().state_dict())
    assert run.result()["metrics"] == {"a": 1.0}
    assert calls == []


def test_checkpoints_by_epochs_and_by_steps(tmp_path: Path, monkeypatch: Any) -> None:
    def saved_steps(name: str, **changes: Any) -> list[int]:
        saved: list[int] = []
        monkeypatch.setattr(
            "drpm.training.loop.save_state", lambda folder, state, step, runs: saved.append(step)
        )
        config = settings(**changes)
        run = make_run(tmp_path / name, config)
        train(Program(make_model(), squares, points(), config), [run])
        return saved

    assert saved_steps("every", epochs=3) == [5, 10, 15]
    assert saved_steps("second", epochs=3, checkpoint_every=2) == [10, 15]
    assert saved_steps("steps", epochs=2, checkpoint_steps=4) == [4, 5, 8, 10]


def test_the_learning_rate_decays_and_survives_a_stop(tmp_path: Path) -> None:
    seen: list[float] = []

    def make(stop: int) -> Program:
        inner = at_step(stop, lambda: os.kill(os.getpid(), signal.SIGTERM))

        def objective(*arguments: Any) -> dict[str, Tensor]:
            seen.append(program.optimizer.param_groups[0]["lr"])
            return inner(*arguments)

        program = Program(make_model(), objective, points(), config)
        return program

    config = settings(epochs=5, learning_rate=0.8, learning_rate_decay=0.5, decay_every=2)
    run = make_run(tmp_path / "run", config)
    with pytest.raises(Interrupted):
        train(make(13), [run])
    train(make(1000), [run])
    assert seen == [0.8] * 10 + [0.4] * 10 + [0.2] * 5


def shrink(program: Program, calls: list[int]) -> Callable[[int], None]:
    """Changes the tensors in place, differently in each epoch."""

    def change(epoch: int) -> None:
        calls.append(epoch)
        with torch.no_grad():
            for tensor in program.tensors().values():
                tensor.mul_(0.5).add_(0.1 * epoch)

    return change


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(("stop", "left"), [(3, [1, 2]), (5, [1, 2]), (10, [2]), (15, [])])
def test_an_interrupted_run_calls_the_rest(
    tmp_path: Path, stop: int, left: list[int], width: int
) -> None:
    config = settings(epochs=3, log_every=1)

    def make(objective: Any) -> Program:
        models = [make_model(seed) for seed in range(width)]
        return Program(models, objective, points(), config)

    def folders(name: str) -> list[RunFolder]:
        return [make_run(tmp_path / f"{name}{index}", config) for index in range(width)]

    whole, calls = make(noisy_squares), []
    train(whole, folders("whole"), before_epoch=shrink(whole, calls))
    assert calls == [0, 1, 2]
    runs, resumed = folders("run"), []
    program = make(at_step(stop, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(Interrupted):
        train(program, runs, before_epoch=shrink(program, []))
    program = make(noisy_squares)
    train(program, runs, before_epoch=shrink(program, resumed))
    assert resumed == left
    for index in range(width):
        assert same(program.model_state(index), whole.model_state(index))


def test_a_second_signal_has_its_default_effect() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("stop", [1, 5, 15])
def test_a_signal_finishes_the_step_and_saves(
    tmp_path: Path, number: int, code: int, stop: int
) -> None:
    config = settings(log_every=1)
    whole = Program(make_model(), noisy_squares, points(), config)
    train(whole, [make_run(tmp_path / "whole", config)])

    run = make_run(tmp_path / "run", config)
    objective = at_step(stop, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted, match=f"after step {stop} and saved") as stopped:
        train(Program(make_model(), objective, points(), config), [run])
    assert stopped.value.exit_code == code
    assert run.status == "interrupted"
    saved = checkpoint.load_latest(run.checkpoint_dir)
    assert saved is not None
    assert saved.step == stop

    program, progress = Program(make_model(), noisy_squares, points(), config), Recorder()
    torch.rand(5)
    train(program, [run], progress=progress)
    if stop < 15:
        assert progress.calls[0] == ("start", 15, stop)
    assert same(program.model_state(), whole.model_state())
    assert steps_of(run) == list(range(1, 16))
    assert run.status == "finished"


def nan_from(step: int) -> Callable[..., dict[str, Tensor]]:
    """A term of the loss that breaks at a step, counted from 1."""
    calls = []

    def objective(
        model: nn.Module, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        calls.append(1)
        terms = noisy_squares(model, batch, schedule, generator)
        divergence = torch.tensor(torch.nan if len(calls) == step else 1.0)
        return {**terms, "loss": terms["loss"] + divergence, "divergence": divergence}

    return objective


@pytest.mark.parametrize("log_every", [1, 3, 50])
def test_a_term_that_is_not_finite(tmp_path: Path, log_every: int) -> None:
    config = settings(log_every=log_every)
    run = make_run(tmp_path / "run", config)
    # Step 7 is the second one of the second epoch; what follows it is NaN throughout.
    with pytest.raises(RunError, match=r"not finite \('divergence'\) at step 7\."):
        train(Program(make_model(), nan_from(7), points(), config), [run])
    saved = checkpoint.load_latest(run.checkpoint_dir)
    assert saved is not None
    assert all(x.isfinite().all() for x in saved.state.values())
    assert run.status == "interrupted"


def test_a_broken_gradient_is_not_saved(tmp_path: Path) -> None:
    """A finite loss with an infinite slope breaks the parameters without a word."""

    def objective(
        model: nn.Module, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        return {"loss": (model(batch["x"]) * 0).abs().sqrt().sum()}

    config = settings(epochs=1, batch_size=40)
    run = make_run(tmp_path / "run", config)
    with pytest.raises(RunError, match=r"The parameter '0.weight' was not finite after step 1"):
        train(Program(make_model(), objective, points(), config), [run])
    assert checkpoint.load_latest(run.checkpoint_dir) is None


@pytest.mark.parametrize("what", ["checkpoint", "metrics"])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    config = settings(log_every=1, checkpoint_steps=2)
    whole = Program(make_model(), noisy_squares, points(), config)
    train(whole, [make_run(tmp_path / "whole", config)])
    run = make_run(tmp_path / "run", config)

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill() -> None:
        if what == "checkpoint":
            monkeypatch.setattr(checkpoint, "write_atomic", full)
        else:
            monkeypatch.setattr("drpm.training.runs.open", full, raising=False)

    with pytest.raises(OSError, match="No space left"):
        train(Program(make_model(), at_step(7, fill), points(), config), [run])
    monkeypatch.undo()
    program = Program(make_model(), noisy_squares, points(), config)
    train(program, [run])
    assert same(program.model_state(), whole.model_state())
    assert steps_of(run) == list(range(1, 16))


def test_the_folder_is_locked_while_training(tmp_path: Path) -> None:
    config = settings()
    run, complaints = make_run(tmp_path / "run", config), []

    def intrude() -> None:
        try:
            train(make_program(), [RunFolder.open(run.path)])
        except RunError as error:
            complaints.append(str(error))

    train(
        Program(make_model(), at_step(2, intrude), points(), config),
        [run],
        evaluate=lambda _: intrude() or {},
    )
    assert len(complaints) == 2
    assert all("is in use by process" in complaint for complaint in complaints)
    with run.lock():
        pass


def test_a_crash_in_the_evaluation_costs_no_training(tmp_path: Path) -> None:
    config = settings()
    run = make_run(tmp_path / "run", config)

    def crash(_: int) -> dict[str, float]:
        raise RuntimeError("crash")

    first = Program(make_model(), noisy_squares, points(), config)
    with pytest.raises(RuntimeError, match="crash"):
        train(first, [run], evaluate=crash)
    end = copied(first.model_state())

    def untouched(*arguments: Any) -> dict[str, Tensor]:
        raise AssertionError("no step is left to take")

    second = Program(make_model(), untouched, points(), config)
    train(second, [run], evaluate=lambda _: {"a": 1.0})
    assert same(second.model_state(), end)
    assert run.status == "finished"


def test_tensorboard_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = settings(log_every=1)
    run = make_run(tmp_path / "run", config)
    stop = at_step(8, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(Program(make_model(), stop, points(), config), [run])
    train(Program(make_model(), noisy_squares, points(), config), [run])
    events = EventAccumulator(str(run.path / "events"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    expected = [(record["step"], record["loss"]) for record in run.metrics()]
    assert [step for step, _ in found] == list(range(1, 16))
    assert [value for _, value in found] == pytest.approx([value for _, value in expected])


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    config = settings()
    run = make_run(tmp_path / "run", config)
    train(Program(make_model(), squares, points(), config), [run])
    assert not (run.path / "events").exists()
    assert run.status == "finished"


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (
            0,
            [
                "step 1,000 of 10,000: loss 0.001, 250 steps/s, 0:00:36 left",
                "step 4,000 of 10,000: loss 0.00025, 250 steps/s, 0:00:24 left",
                "step 7,000 of 10,000: loss 0.0001429, 250 steps/s, 0:00:12 left",
                "step 10,000 of 10,000: loss 0.0001, 250 steps/s",
            ],
        ),
        (
            8_000,
            [
                "resuming after step 8,000 of 10,000",
                "step 9,000 of 10,000: loss 0.0001111, 250 steps/s, 0:00:04 left",
                "step 10,000 of 10,000: loss 0.0001, 250 steps/s",
            ],
        ),
    ],
)
def test_progress(monkeypatch: pytest.MonkeyPatch, done: int, expected: list[str]) -> None:
    lines, bar, now = io.StringIO(), io.StringIO(), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    consoles = Console(file=lines, width=20), Console(file=bar, force_terminal=True, width=100)
    displays = [TrainingProgress(console) for console in consoles]
    for display in displays:
        display.start(10_000, done)
    for step in range(done + 1000, 10_001, 1000):
        now += 4.0
        for display in displays:
            display.update(step, {"loss": 1 / step, "other": 2.0})
    for display in displays:
        display.stop()
    assert lines.getvalue().splitlines() == expected
    assert "loss 0.0001, 250 steps/s" in bar.getvalue()
