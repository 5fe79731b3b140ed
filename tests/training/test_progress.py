"""What people see of a training."""

import io

from rich.console import Console

from drpm.training.progress import TrainingProgress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = TrainingProgress(Console(file=stream, width=20), clock)
    lines.start(10_000, 0)
    for step in range(1000, 10_001, 1000):
        clock.now += 4.0
        lines.update(step, {"loss": 1 / step, "other": 2.0})
    lines.stop()
    assert stream.getvalue().splitlines() == [
        "step 1,000 of 10,000: loss 0.001, 250 steps/s, 0:00:36 left",
        "step 4,000 of 10,000: loss 0.00025, 250 steps/s, 0:00:24 left",
        "step 7,000 of 10,000: loss 0.0001429, 250 steps/s, 0:00:12 left",
        "step 10,000 of 10,000: loss 0.0001, 250 steps/s",
    ]


def test_lines_of_a_resumed_run() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = TrainingProgress(Console(file=stream, width=200), clock)
    lines.start(100, 90)
    clock.now = 20.0
    lines.update(95, {"loss": float("nan")})
    first, second = stream.getvalue().splitlines()
    assert first == "resuming after step 90 of 100"
    assert second == "step 95 of 100: loss nan, 0.25 steps/s, 0:00:20 left"


def test_the_bar() -> None:
    stream, clock = io.StringIO(), Clock()
    bar = TrainingProgress(Console(file=stream, force_terminal=True, width=100), clock)
    bar.start(200, 50)
    clock.now = 2.0
    bar.update(150, {"loss": 0.125})
    bar.update(200, {"loss": 0.0625})
    bar.stop()
    assert "200/200" in stream.getvalue()
    assert "loss 0.0625, 75 steps/s" in stream.getvalue()
