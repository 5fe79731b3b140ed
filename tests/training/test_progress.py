"""What people see of a run."""

import io

from rich.console import Console

from drpm.training.progress import Bar, Lines, make_progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_gets_a_bar_and_a_file_gets_lines() -> None:
    assert isinstance(make_progress(Console(force_terminal=True)), Bar)
    assert isinstance(make_progress(Console(file=io.StringIO())), Lines)


def test_lines() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = Lines(Console(file=stream, width=20), clock)
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
    lines = Lines(Console(file=stream), clock)
    lines.start(100, 90)
    clock.now = 20.0
    lines.update(95, {"loss": float("nan")})
    assert stream.getvalue().splitlines() == [
        "resuming after step 90 of 100",
        "step 95 of 100: loss nan, 0.25 steps/s, 0:00:20 left",
    ]


def test_the_bar() -> None:
    stream, clock = io.StringIO(), Clock()
    bar = Bar(Console(file=stream, force_terminal=True, width=100), clock)
    bar.start(200, 50)
    clock.now = 2.0
    bar.update(150, {"loss": 0.125})
    bar.update(200, {"loss": 0.0625})
    bar.stop()
    shown = stream.getvalue()
    assert "200/200" in shown
    assert "loss 0.0625, 75 steps/s" in shown
    assert "left" in shown


def test_what_would_take_longer_than_anybody_lives() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = Lines(Console(file=stream, width=200), clock)
    lines.start(10**25, 0)
    clock.now = 10.0
    lines.update(1, {"loss": 1.0})
    assert "36500 days, 0:00:00 left" in stream.getvalue()
