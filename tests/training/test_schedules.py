"""Schedules against their formulas."""

import math

import pytest
import torch

from drpm.training.errors import ConfigError
from drpm.training.schedules import ExponentialSchedule

STEPS = 100_000
FALLING, RISING = ExponentialSchedule(1.0, 0.5, STEPS), ExponentialSchedule(0.73, 7.3, STEPS)


def test_the_formulas_of_the_paper() -> None:
    steps = [0, 1, 17, 50_000, 99_999, 100_000, 100_001, 2**25 + 1]
    for schedule, expected in (
        (FALLING, [max(0.5, 0.5 ** (step / STEPS)) for step in steps]),
        (RISING, [min(7.3, 0.73 * 10 ** min(1, step / STEPS)) for step in steps]),
    ):
        found = schedule(torch.tensor(steps, dtype=torch.float64))
        assert found.tolist() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("schedule", [FALLING, RISING])
def test_both_ends_are_exact_and_it_is_monotone(schedule: ExponentialSchedule) -> None:
    values = schedule(torch.arange(0, 2 * STEPS, 10, dtype=torch.float64))
    differences = values.diff() * (schedule.end - schedule.start)
    assert bool((differences >= 0).all())
    assert values[0] == schedule.start
    assert values[-1] == schedule.end


@pytest.mark.cuda
def test_a_graph_can_capture_it() -> None:
    step = torch.zeros((), dtype=torch.float64, device="cuda")
    FALLING(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = FALLING(step)
    for number in (0, 10, 200_000):
        step.fill_(number)
        graph.replay()
        assert float(value) == pytest.approx(float(FALLING(step.cpu())))


@pytest.mark.parametrize(
    ("name", "value"), [("steps", 0), ("start", math.nan), ("end", math.inf), ("end", 0.0)]
)
def test_bad_arguments_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be positive and finite, but got {value}"):
        ExponentialSchedule(**{"start": 1.0, "end": 0.5, "steps": 10, name: value})  # type: ignore[arg-type]
