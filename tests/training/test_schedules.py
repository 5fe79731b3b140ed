"""Schedules against their formulas, as numbers and as tensors."""

import math

import pytest
import torch

from drpm.training.errors import ConfigError
from drpm.training.schedules import (
    ConstantSchedule,
    ExponentialSchedule,
    LinearSchedule,
    Schedule,
    WarmUp,
)

STEPS = 100_000
SCHEDULES = [
    ConstantSchedule(0.5),
    LinearSchedule(start=1.0, end=0.1, steps=STEPS),
    LinearSchedule(start=-1.0, end=3.0, steps=7),
    ExponentialSchedule(start=1.0, end=0.5, steps=STEPS),
    ExponentialSchedule(start=0.1, end=1.0, steps=STEPS),
    WarmUp(end=0.3, steps=STEPS),
]


@pytest.mark.parametrize("step", [0, 1, 17, 50_000, 99_999, 100_000, 100_001, 10**9])
def test_the_temperature_of_the_paper(step: int) -> None:
    first, last = 1.0, 0.5
    rate = -(math.log(last) - math.log(first)) / STEPS
    expected = max(last, first * math.exp(-rate * step))
    actual = ExponentialSchedule(start=first, end=last, steps=STEPS).value(step)
    assert actual == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("step", [0, 1, 17, 50_000, 99_999, 100_000, 100_001])
@pytest.mark.parametrize("beta", [1.0, 0.1, 7.3])
def test_the_warm_up_of_beta(step: int, beta: float) -> None:
    expected = min(beta, 0.1 * beta * 10 ** (step / STEPS))
    schedule = ExponentialSchedule(start=0.1 * beta, end=beta, steps=STEPS)
    assert schedule.value(step) == pytest.approx(expected, rel=1e-13)
    assert WarmUp(end=beta, steps=STEPS).value(step) == schedule.value(step)


@pytest.mark.parametrize("step", [0, 1, 3, 4, 5, 100])
def test_the_line(step: int) -> None:
    expected = 2.0 + (0.5 - 2.0) * min(step / 4, 1.0)
    assert LinearSchedule(start=2.0, end=0.5, steps=4).value(step) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_both_ends_are_exact_and_it_never_turns(schedule: Schedule) -> None:
    values = schedule.value(torch.arange(0, 2 * STEPS, 10, dtype=torch.float64))
    differences = values.diff()
    assert bool((differences <= 0).all()) or bool((differences >= 0).all())
    if isinstance(schedule, LinearSchedule | ExponentialSchedule):
        assert schedule.value(0) == schedule.start
        assert schedule.value(schedule.steps) == pytest.approx(schedule.end, rel=1e-15)
        assert schedule.value(schedule.steps + 1) == schedule.end


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_tensor_gives_what_a_number_gives(schedule: Schedule) -> None:
    steps = [0, 1, 2, 5, 999, 40_000, 2**25 + 1]
    numbers = [schedule.value(step) for step in steps]
    assert all(type(number) is float for number in numbers)
    whole = torch.tensor(steps).reshape(7, 1)
    wide = schedule.value(whole.double())
    assert wide.dtype == torch.float64
    assert wide.flatten().tolist() == pytest.approx(numbers, rel=1e-15)
    narrow = schedule.value(whole)
    assert narrow.dtype == torch.float32
    assert narrow.shape == (7, 1)
    assert torch.equal(narrow, wide.float())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_no_value_is_read_back(schedule: Schedule) -> None:
    # A tensor on the meta device has no values: reading one would be an error.
    step = torch.zeros((), dtype=torch.int64, device="meta")
    value = schedule.value(step)
    assert value.device.type == "meta"
    assert value.shape == ()


@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_graph_can_capture_it(schedule: Schedule) -> None:
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    schedule.value(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = schedule.value(step)
    for number in (0, 10, 200_000):
        step.fill_(number)
        graph.replay()
        assert float(value) == pytest.approx(schedule.value(number), rel=1e-6)


@pytest.mark.parametrize("kind", [ExponentialSchedule, LinearSchedule])
@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("steps", 0, "steps must be at least 1, but got 0."),
        ("start", math.nan, "start must be .*finite.*, but got nan."),
        ("end", math.inf, "end must be .*finite.*, but got inf."),
    ],
)
def test_bad_arguments_are_refused(
    kind: type[LinearSchedule], name: str, value: float, complaint: str
) -> None:
    arguments = {"start": 1.0, "end": 0.5, "steps": 10, name: value}
    with pytest.raises(ConfigError, match=complaint):
        kind(**arguments)  # type: ignore[arg-type]


def test_an_exponential_needs_positive_numbers() -> None:
    with pytest.raises(ConfigError, match=r"end must be positive and finite, but got 0\.0\."):
        ExponentialSchedule(start=1.0, end=0.0, steps=10)
    with pytest.raises(ConfigError, match="fraction must be at most 1"):
        WarmUp(end=1.0, steps=10, fraction=2.0)
    with pytest.raises(ConfigError, match="constant must be a finite number"):
        ConstantSchedule(math.inf)
