"""Stacked runs: the same as one run each, and apart from each other."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from drpm.training.config import dumps
from drpm.training.errors import RunError
from drpm.training.loop import train
from drpm.training.program import Batch, Program
from drpm.training.runs import RunFolder, open_run
from tests.training import toys


def scaled_squares(model: nn.Module, batch: Batch, *others: Any) -> dict[str, Tensor]:
    """A loss that depends on the run's own data."""
    terms = toys.noisy_squares(model, batch, *others)
    return {**terms, "loss": batch["scale"].mean() * terms["loss"]}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_each_run_of_a_stack_equals_that_run_alone(optimizer: Any) -> None:
    """Without noise, and each given the batches that it had in the stack.

    AdamW passed with streams 1 to 14, with AVX2 and with a CPU's default instructions, AVX-512.
    """
    stack = toys.make_program(toys.squares, 3, optimizer=optimizer, weight_decay=0.01)
    data = toys.points()
    alone = [Program(toys.make_model(s), toys.squares, data, stack.config) for s in range(3)]
    stack.shuffle()
    for run, program in enumerate(alone):
        program.order.copy_(stack.order[:, run])
    for _ in range(stack.steps_per_epoch):
        for program in (stack, *alone):
            program.step()
    found = stack.readings().values
    for run, program in enumerate(alone):
        expected = program.readings().values[:, :, 0]
        torch.testing.assert_close(found[:, :, run], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(stack.model_state(run), program.model_state())


def test_each_run_has_its_own_batches_and_noise() -> None:
    # Models that start alike, so that only batches and noise tell them apart.
    config = toys.settings(batch_size=40)
    stack = Program([toys.make_model()] * 2, toys.noisy_squares, toys.points(), config)
    stack.shuffle()
    index = stack.batch()["index"]
    assert index.shape == (2, 40)
    assert not torch.equal(index[0], index[1])
    assert all(sorted(row) == list(range(40)) for row in index.tolist())
    stack.step()
    # A batch of all the data is the same for both, in another order; the noise is not.
    first, second = stack.readings().values[0, 0].tolist()
    assert first != second


def test_runs_do_not_influence_each_other() -> None:
    data = toys.points()
    x = torch.stack([data.pop("x")] * 3)
    scale = torch.ones(3, toys.EXAMPLES)

    def end(x: Tensor, scale: Tensor) -> list[dict[str, Tensor]]:
        program = Program(
            [toys.make_model(seed) for seed in range(3)],
            scaled_squares,
            data,
            toys.settings(optimizer="sgd", learning_rate=1e-3),
            run_data={"x": x, "scale": scale},
        )
        toys.take_steps(program, 12)
        return [toys.copied(program.model_state(run)) for run in range(3)]

    before = end(x, scale)
    other_x, other_scale = x.clone(), scale.clone()
    other_x[1] *= 100
    other_scale[1] = 1e3
    for after in (end(other_x, scale), end(x, other_scale)):
        assert toys.same(before[0], after[0])
        assert toys.same(before[2], after[2])
        assert not toys.same(before[1], after[1])


def test_batch_norm_keeps_statistics_for_each_run() -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    # Not Adam, which makes full steps of the rounding errors in a bias that has no effect.
    config = toys.settings(optimizer="sgd")
    stack = Program([make(0), make(1)], toys.squares, toys.points(), config)
    alone = Program(make(1), toys.squares, toys.points(), config)
    stack.shuffle()
    alone.order.copy_(stack.order[:, 1])
    for _ in range(3):
        stack.step()
        alone.step()
    torch.testing.assert_close(stack.model_state(1), alone.model_state())
    assert int(stack.model_state(1)["1.num_batches_tracked"]) == 3


def test_augmentations_and_dropout_differ_between_runs() -> None:
    def jitter(batch: Batch, generator: torch.Generator) -> Batch:
        return {**batch, "x": batch["x"] + torch.randn(batch["x"].shape, generator=generator)}

    def make() -> nn.Module:
        return nn.Sequential(toys.make_model(), nn.Dropout(0.5))

    for augment, make_one in ((jitter, toys.make_model), (None, make)):
        models = [make_one() for _ in range(2)]
        config = toys.settings(batch_size=40)
        program = Program(models, toys.squares, toys.points(), config, augment=augment)
        first, second = toys.take_steps(program, 1)[0, 0].tolist()
        assert first != second


def test_a_group_of_runs_resumes_bit_for_bit(tmp_path: Path) -> None:
    config = toys.settings(epochs=4, checkpoint_steps=3, log_every=2)

    def run(name: str, stop: int = 0) -> tuple[Program, list[RunFolder]]:
        objective = toys.at_step(stop, Mock(side_effect=KeyboardInterrupt))
        program = toys.make_program(objective, 3, **vars(config))
        folders = [toys.make_run(tmp_path / f"{name}-{run}", config) for run in range(3)]
        train(program, folders)
        return program, folders

    whole, expected = run("whole")
    for stop in (2, 5, 7, 3):
        torch.rand(3)
        with pytest.raises(KeyboardInterrupt):
            run("cut", stop)
    program, cut = run("cut")
    for run_index in range(3):
        assert toys.same(program.model_state(run_index), whole.model_state(run_index))
        records = [[r["loss"] for r in x[run_index].metrics()] for x in (cut, expected)]
        assert records[0] == records[1]
        assert toys.steps_of(cut[run_index]) == toys.steps_of(expected[0])
    # One checkpoint for the group, in the first folder; metrics for each.
    assert cut[0].checkpoint_dir.exists()
    assert not cut[1].checkpoint_dir.exists()
    assert cut[0].metrics() != cut[1].metrics()


def test_a_stack_is_only_resumed_with_the_same_runs(tmp_path: Path) -> None:
    config = toys.settings(epochs=1)

    def folders(*names: str) -> list[RunFolder]:
        return [open_run(tmp_path / "new" / name / "training", dumps(config)) for name in names]

    runs = [toys.make_run(tmp_path / "old" / name / "training", config) for name in ("a", "b")]
    train(toys.make_program(width=2, epochs=1), runs)
    (tmp_path / "old").rename(tmp_path / "new")
    train(toys.make_program(width=2, epochs=1), folders("a", "b"))
    for names in (("a", "c"), ("a", "b", "c"), ("a",)):
        with pytest.raises(RunError, match=r"was started together with .* cannot be resumed with"):
            train(toys.make_program(width=len(names), epochs=1), folders(*names))
