"""One run's step: batches, optimizers, schedules, clipping and state."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drpm.training.checkpoint import load_latest, save_state
from drpm.training.errors import RunError
from drpm.training.program import ExponentialSchedule, Program
from tests.training import toys


def epoch_of_batches(program: Program) -> list[list[int]]:
    program.shuffle()
    found = []
    for _ in range(program.steps_per_epoch):
        found.append(program.batch()["index"].tolist())
        program.step()
    return found


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [
        (8, True, [8] * 5),
        (12, True, [12] * 3),
        # All batches have one shape, which a captured graph needs.
        (12, False, [12] * 4),
        (1000, True, [toys.EXAMPLES]),
        (1000, False, [toys.EXAMPLES]),
    ],
)
def test_an_epoch_shows_every_example_once(
    batch_size: int, drop_last: bool, sizes: list[int]
) -> None:
    program = toys.make_program(batch_size=batch_size, drop_last=drop_last)
    first, second = epoch_of_batches(program), epoch_of_batches(program)
    assert first != second
    for batches in (first, second):
        assert [len(batch) for batch in batches] == sizes
        shown = list(chain(*batches))
        # The last batch is dropped, or filled up from the start.
        assert len(set(shown)) == min(sum(sizes), toys.EXAMPLES)
        assert shown[toys.EXAMPLES :] == shown[: len(shown[toys.EXAMPLES :])]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "equal, nonzero length"),
        ({"x": torch.zeros(0, 3)}, "nonzero"),
        ({"x": torch.zeros(4, 3), "y": torch.zeros(5)}, r"\{'x': 4, 'y': 5\}"),
    ],
)
def test_unusable_data_is_refused(data: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Program(toys.make_model(), toys.squares, data, toys.settings())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_steps_equal_a_loop_written_by_hand(optimizer: Any) -> None:
    config = toys.settings(optimizer=optimizer, weight_decay=0.1, betas=(0.8, 0.9))
    program = Program(toys.make_model(), toys.squares, toys.points(), config)
    model = toys.make_model()
    by_hand = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, weight_decay=0.1),
        "adam": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.9), weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.8, 0.9), weight_decay=0.1),
    }[optimizer](model.parameters())
    program.shuffle()
    for _ in range(5):
        batch = program.batch()
        program.step()
        by_hand.zero_grad()
        (model(batch["x"]) - batch["y"]).square().mean().backward()
        by_hand.step()
    for found, expected in zip(program.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_frozen_parameters_and_buffers_stay() -> None:
    model = toys.make_model()
    model[0].requires_grad_(False)
    model.register_buffer("constant", torch.ones(2))
    before = toys.copied(model.state_dict())
    config = toys.settings(weight_decay=0.5, optimizer="adamw")
    program = Program(model, toys.squares, toys.points(), config)
    toys.take_steps(program, 5)
    after = program.model_state()
    assert all(torch.equal(before[name], after[name]) for name in ("0.weight", "0.bias"))
    assert torch.equal(after["constant"], torch.ones(2))
    assert not torch.equal(before["2.weight"], after["2.weight"])


def test_schedules_reach_the_objective() -> None:
    seen: list[tuple[float, float]] = []

    def objective(model: Any, batch: Any, schedule: Any, generator: Any) -> dict[str, Tensor]:
        seen.append((schedule["temperature"].item(), schedule["beta"].item()))
        return toys.squares(model, batch, schedule, generator)

    schedules = {"temperature": lambda x: (1 - x / 4).clamp(min=0), "beta": lambda x: 2 + 0 * x}
    models, config = [toys.make_model()], toys.settings()
    program = Program(models, objective, toys.points(), config, schedules=schedules)
    toys.take_steps(program, 6)
    assert [t for t, _ in seen] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert {beta for _, beta in seen} == {2.0}


def test_readings_are_each_steps_terms_since_the_last() -> None:
    program = toys.make_program()
    expected = toys.take_steps(toys.make_program(), 4)
    program.shuffle()
    assert program.readings().values.shape == (0, 0, 1)
    for _ in range(3):
        program.step()
    readings = program.readings()
    assert readings.names == ["loss", "error", "size"]
    torch.testing.assert_close(readings.values, expected[:3])
    program.step()
    torch.testing.assert_close(program.readings().values, expected[3:])
    assert len(program.readings().values) == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_saved_program_goes_on_bit_for_bit(optimizer: Any, tmp_path: Path) -> None:
    """In the middle of an epoch, noise and dropout included, through the files."""

    def make() -> Program:
        model = nn.Sequential(toys.make_model(), nn.Dropout(0.5))
        return Program(model, toys.noisy_squares, toys.points(), toys.settings(optimizer=optimizer))

    first = make()
    torch.manual_seed(0)
    toys.take_steps(first, 8)
    save_state(tmp_path, first.state(), 8)
    torch.rand(7)
    second = make()
    toys.take_steps(second, 2)
    saved = load_latest(tmp_path)
    assert saved is not None
    ends = []
    for program in (first, second):
        # Both programs share the device's own noise, so each starts from the saved one.
        program.load_state(saved.state)
        for step in range(9, 18):
            program.step()
            if step % program.steps_per_epoch == 4:
                program.shuffle()
        ends.append(toys.copied(program.tensors()))
    assert toys.same(*ends)


def test_loading_keeps_tensors_in_place() -> None:
    program = toys.make_program()
    state = program.state()
    toys.take_steps(program, 2)
    moments = program.optimizer.state_dict()["state"][0]
    addresses = [x.data_ptr() for x in (*program.tensors().values(), *moments.values())]
    program.load_state(state)
    moments = program.optimizer.state_dict()["state"][0]
    now = [x.data_ptr() for x in (*program.tensors().values(), *moments.values())]
    assert now == addresses
    assert all(not value.any() for value in moments.values())


def test_a_run_is_only_resumed_with_the_same_batches() -> None:
    state = toys.make_program().state()
    other = toys.make_program(batch_size=4)
    before = toys.copied(other.tensors())
    with pytest.raises(RunError, match=r"shape \(5, 8\) on 1 devices .* \(10, 4\) on 1"):
        other.load_state(state)
    assert toys.same(before, other.tensors())


def test_the_formulas_of_the_paper() -> None:
    steps, last = [0, 1, 17, 50_000, 99_999, 100_000, 100_001, 2**25 + 1], 100_000
    for start, end in ((1.0, 0.5), (0.73, 7.3)):
        expected = [start * (end / start) ** min(1, step / last) for step in steps]
        found = ExponentialSchedule(start, end, last)(torch.tensor(steps, dtype=torch.float64))
        assert found.tolist() == pytest.approx(expected, rel=1e-13)
