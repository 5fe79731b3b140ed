"""What is done before an epoch: when it is called, what it may change, and exact resumption."""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drpm.training.loop import Interrupted, train
from drpm.training.program import BaseProgram, Batch, Program
from drpm.training.stacking import StackedProgram
from tests.training.toys import (
    copied,
    make_model,
    make_run,
    noisy_squares,
    points,
    same,
    settings,
)


def shrink(program: BaseProgram, calls: list[int]) -> Callable[[int], None]:
    """Changes the tensors in place, each epoch otherwise."""

    def change(epoch: int) -> None:
        calls.append(epoch)
        with torch.no_grad():
            for tensor in program.tensors().values():
                tensor.mul_(0.5).add_(0.1 * epoch)

    return change


def test_every_epoch_begins_with_a_call(tmp_path: Path) -> None:
    config, order = settings(epochs=3, log_every=1), []

    def objective(*arguments: Any) -> dict[str, Tensor]:
        order.append("step")
        return noisy_squares(*arguments)

    program = Program(make_model(), objective, points(), config)
    train(program, [make_run(tmp_path / "run", config)], before_epoch=order.append)
    assert order == [entry for epoch in range(3) for entry in (epoch, *["step"] * 5)]


def test_no_epochs_no_calls(tmp_path: Path) -> None:
    config, calls = settings(epochs=0), []
    program = Program(make_model(), noisy_squares, points(), config)
    train(program, [make_run(tmp_path / "run", config)], before_epoch=calls.append)
    assert calls == []


def test_the_first_step_sees_what_was_changed(tmp_path: Path) -> None:
    config, seen = settings(epochs=1, batch_size=40), []

    def objective(
        model: nn.Module, batch: Batch, schedule: Mapping[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        seen.append(copied(dict(model.named_parameters())))
        return noisy_squares(model, batch, schedule, generator)

    program = Program(make_model(), objective, points(), config)
    before = copied(program.tensors())
    train(program, [make_run(tmp_path / "run", config)], before_epoch=shrink(program, []))
    assert same(seen[0], {name: 0.5 * tensor for name, tensor in before.items()})


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    ("stop", "left"), [(3, [1, 2]), (5, [1, 2]), (7, [2]), (10, [2]), (15, [])]
)
def test_a_run_that_was_cut_off_goes_on_exactly(
    tmp_path: Path, stop: int, left: list[int], width: int
) -> None:
    config = settings(epochs=3, log_every=1)

    def make(objective: Any) -> BaseProgram:
        models = [make_model(seed) for seed in range(width)]
        if width == 1:
            return Program(models[0], objective, points(), config)
        return StackedProgram(models, objective, points(), config)

    def folders(name: str) -> list[Any]:
        return [make_run(tmp_path / f"{name}{index}", config) for index in range(width)]

    whole, calls = make(noisy_squares), []
    train(whole, folders("whole"), before_epoch=shrink(whole, calls))
    assert calls == [0, 1, 2]

    steps = []

    def deadly(*arguments: Any) -> dict[str, Tensor]:
        steps.append(1)
        if len(steps) == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return noisy_squares(*arguments)

    runs, program, resumed = folders("run"), make(deadly), []
    with pytest.raises(Interrupted):
        train(program, runs, before_epoch=shrink(program, []))
    program = make(noisy_squares)
    train(program, runs, before_epoch=shrink(program, resumed))
    assert resumed == left
    for index in range(width):
        assert same(program.model_state(index), whole.model_state(index))
