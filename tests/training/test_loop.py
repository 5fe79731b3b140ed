"""The loop: epochs, reports, checkpoints, and everything that can stop a run."""

import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from rich.console import Console
from torch import Tensor

from drpm.training import checkpoint
from drpm.training import config as configs
from drpm.training.errors import Interrupted, RunError
from drpm.training.loop import TrainingProgress, defer_signals, fit_model, train
from drpm.training.program import Batch, Program
from drpm.training.runs import RunFolder, open_run
from tests.training import toys


def killer(number: int, step: int) -> Callable[..., dict[str, Tensor]]:
    """An objective that sends a signal at a step."""
    return toys.at_step(step, lambda: os.kill(os.getpid(), number))


def test_a_run_from_start_to_finish(tmp_path: Path) -> None:
    (program, (run,)), progress = toys.begin(tmp_path, log_every=2), Mock()
    train(program, [run], progress=progress)
    # Five steps an epoch: every second one, and the last of each epoch.
    assert toys.steps_of(run) == [2, 4, 5, 6, 8, 10, 12, 14, 15]
    assert run.metrics()[2]["epoch"] == 1.0
    assert set(run.metrics()[0]) == {"step", "epoch", "loss", "error", "size", "wall_time"}
    assert run.result()["device"] == "cpu"
    assert toys.same(checkpoint.load_model(run.model_dir).tensors, program.model_state())
    started, updated, *_, stopped = progress.method_calls
    assert (started, stopped) == (call.start(15, 0), call.stop())
    assert (updated.args[0], sorted(updated.args[1])) == (2, ["error", "loss", "size"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [5, 10, 15]),
        ({"checkpoint_every": 2}, [10, 15]),
        ({"checkpoint_steps": 4}, [4, 5, 8, 10, 12, 15]),
    ],
)
def test_checkpoints_by_epochs_and_by_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, expected: list[int]
) -> None:
    saved: list[int] = []
    monkeypatch.setattr(
        "drpm.training.loop.save_state", lambda folder, state, step, runs: saved.append(step)
    )
    train(*toys.begin(tmp_path, **changes))
    assert saved == expected


def test_the_learning_rate_decays_and_survives_a_stop(tmp_path: Path) -> None:
    seen: list[float] = []

    def run_until(stop: int) -> None:
        inner = killer(signal.SIGTERM, stop)

        def objective(*arguments: Any) -> dict[str, Tensor]:
            seen.append(program.optimizer.param_groups[0]["lr"])
            return inner(*arguments)

        changes = {"learning_rate": 0.8, "learning_rate_decay": 0.5, "decay_every": 2}
        program, runs = toys.begin(tmp_path, objective, epochs=5, **changes)
        train(program, runs)

    with pytest.raises(Interrupted):
        run_until(13)
    run_until(1000)
    assert seen == [0.8] * 10 + [0.4] * 10 + [0.2] * 5


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    ("number", "stop", "left"),
    [
        (signal.SIGINT, 1, [1, 2]),
        (signal.SIGTERM, 5, [1, 2]),
        (signal.SIGINT, 10, [2]),
        (signal.SIGTERM, 15, []),
    ],
)
def test_a_signal_finishes_the_step_and_saves(
    tmp_path: Path, number: int, stop: int, left: list[int], width: int
) -> None:
    """And the same training resumes bit for bit, with the rest of the calls before epochs."""

    def run(name: str, objective: Any, **options: Any) -> tuple[Program, RunFolder, list[int]]:
        program, calls = toys.make_program(objective, width, log_every=1), []
        runs = [toys.make_run(tmp_path / f"{name}{i}", program.config) for i in range(width)]

        def shrink(program: Program, runs: Any, epoch: int) -> None:
            calls.append(epoch)
            with torch.no_grad():
                for tensor in program.tensors().values():
                    tensor.mul_(0.5).add_(0.1 * epoch)

        train(program, runs, before_epoch=shrink, **options)
        return program, runs[-1], calls

    whole, _, calls = run("whole", toys.noisy_squares)
    assert calls == [0, 1, 2]
    with pytest.raises(Interrupted, match=f"after step {stop} and saved") as stopped:
        run("run", killer(number, stop))
    assert stopped.value.exit_code == 128 + number
    first = RunFolder.open(tmp_path / "run0")
    assert first.status == "interrupted"
    saved = checkpoint.load_latest(first.checkpoint_dir)
    assert saved is not None
    assert saved.step == stop
    torch.rand(5)
    progress = Mock()
    program, last, resumed = run("run", toys.noisy_squares, progress=progress)
    assert progress.start.mock_calls == ([call(15, stop)] if stop < 15 else [])
    assert resumed == left
    for index in range(width):
        assert toys.same(program.model_state(index), whole.model_state(index))
    assert toys.steps_of(last) == list(range(1, 16))


def test_a_second_signal_has_its_default_effect() -> None:
    before = signal.getsignal(signal.SIGINT)
    with defer_signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("log_every", [1, 3, 50])
def test_a_term_that_is_not_finite(tmp_path: Path, log_every: int) -> None:
    divergence = torch.ones(())
    usual = toys.at_step(7, lambda: divergence.fill_(torch.nan))

    def objective(*arguments: Any) -> dict[str, Tensor]:
        terms = usual(*arguments)
        return {**terms, "loss": terms["loss"] + divergence, "divergence": divergence.clone()}

    program, runs = toys.begin(tmp_path, objective, log_every=log_every)
    # Step 7 is the second one of the second epoch; what follows it is NaN throughout.
    with pytest.raises(RunError, match=r"not finite at step 7: 'divergence'\."):
        train(program, runs)
    saved = checkpoint.load_latest(runs[0].checkpoint_dir)
    assert saved is not None
    assert all(x.isfinite().all() for x in saved.state.values())
    assert runs[0].status == "interrupted"


def test_a_broken_gradient_is_not_saved(tmp_path: Path) -> None:
    """A finite loss with an infinite slope breaks the parameters without a word."""

    def objective(model: Any, batch: Any, schedule: Any, generator: Any) -> dict[str, Tensor]:
        return {"loss": (model(batch["x"]) * 0).abs().sqrt().sum()}

    program, runs = toys.begin(tmp_path, objective, epochs=1, batch_size=40)
    with pytest.raises(RunError, match=r"The parameter '0.weight' was not finite after step 1"):
        train(program, runs)
    assert checkpoint.load_latest(runs[0].checkpoint_dir) is None


@pytest.mark.parametrize(
    "what", ["drpm.training.checkpoint.write_atomic", "drpm.training.runs.open"]
)
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    changes = {"log_every": 1, "checkpoint_steps": 2}
    whole, runs = toys.begin(tmp_path / "whole", **changes)
    train(whole, runs)

    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    fill = toys.at_step(7, lambda: monkeypatch.setattr(what, full, raising=False))
    with pytest.raises(OSError, match="No space left"):
        train(*toys.begin(tmp_path / "run", fill, **changes))
    monkeypatch.undo()
    program, runs = toys.begin(tmp_path / "run", **changes)
    train(program, runs)
    assert toys.same(program.model_state(), whole.model_state())
    assert toys.steps_of(runs[0]) == list(range(1, 16))


def test_the_folder_is_locked_while_training(tmp_path: Path) -> None:
    def intrude() -> None:
        with pytest.raises(RunError, match=f"is in use by process {os.getpid()} on"):
            train(*toys.begin(tmp_path))

    train(*toys.begin(tmp_path, toys.at_step(2, intrude)))
    with RunFolder.open(tmp_path).lock():
        pass


def test_a_crash_after_the_last_step_costs_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("drpm.training.loop.save_model", Mock(side_effect=RuntimeError("crash")))
        first, runs = toys.begin(tmp_path)
        with pytest.raises(RuntimeError, match="crash"):
            train(first, runs)
    fail = toys.at_step(1, lambda: pytest.fail("no step is left to take"))
    second, runs = toys.begin(tmp_path, fail)
    train(second, runs)
    assert toys.same(second.model_state(), first.model_state())
    assert runs[0].status == "finished"


def test_tensorboard_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(Interrupted):
        train(*toys.begin(tmp_path, killer(signal.SIGTERM, 8), log_every=1))
    program, (run,) = toys.begin(tmp_path, log_every=1)
    train(program, [run])
    events = EventAccumulator(str(run.path / "events"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert [step for step, _ in found] == list(range(1, 16))
    expected = [record["loss"] for record in run.metrics()]
    assert [value for _, value in found] == pytest.approx(expected)


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    program, (run,) = toys.begin(tmp_path)
    train(program, [run])
    assert not (run.path / "events").exists()
    assert run.status == "finished"


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a log file, one in ten seconds, and a bar on a terminal."""
    lines, bar, now = io.StringIO(), io.StringIO(), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    consoles = Console(file=lines, width=20), Console(file=bar, force_terminal=True, width=100)
    displays = [TrainingProgress(console) for console in consoles]
    for display in displays:
        display.start(10_000, 5_000)
    for step in range(6_000, 10_001, 1000):
        now += 4.0
        for display in displays:
            display.update(step, {"loss": 1 / step, "other": 2.0})
    for display in displays:
        display.stop()
    assert lines.getvalue().splitlines() == [
        "resuming after step 5,000 of 10,000",
        "step 6,000 of 10,000: loss 0.0001667, 250 steps/s, 0:00:16 left",
        "step 9,000 of 10,000: loss 0.0001111, 250 steps/s, 0:00:04 left",
        "step 10,000 of 10,000: loss 0.0001, 250 steps/s",
    ]
    assert "loss 0.0001, 250 steps/s" in bar.getvalue()


@configs.settings
class Annealed:
    training: configs.TrainingConfig
    temperature: tuple[float, float] = (1.0, 0.25)


def test_a_model_with_the_settings_of_an_application(tmp_path: Path) -> None:
    seen = []

    def objective(model: Any, batch: Batch, schedule: Any, generator: Any) -> dict[str, Tensor]:
        seen.append(float(schedule["temperature"]))
        return toys.squares(model, batch, schedule, generator)

    def fit(fingerprint: str) -> RunFolder:
        config, data = Annealed(toys.settings(epochs=2)), toys.points()
        given = {"device": "cpu", "fingerprint": lambda: fingerprint}
        return fit_model(toys.make_model(), objective, config, tmp_path, data, **given)

    # The settings of a job tell its data.
    open_run(tmp_path, "data = 'mine'\n")
    assert fit("aa").path == tmp_path / "training"
    # By a constant factor over two epochs of five steps: after the tenth it would be a quarter.
    assert seen == pytest.approx([0.25 ** (step / 10) for step in range(10)])
    # A finished training is read and not repeated.
    assert "fingerprint" not in fit("bb").config_text()
    assert len(seen) == 10
