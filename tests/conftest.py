"""What every test shares: threads, seeds, and the skipping of tests that need a GPU."""

import os
import signal
from collections.abc import Sequence

import pytest
import torch
from hypothesis import settings

from tests.streams import shift_seeds

if "PYTEST_XDIST_WORKER" in os.environ:
    # A shell that starts this in the background has it ignore Ctrl-C, which some tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test opens a window.
os.environ.setdefault("MPLBACKEND", "Agg")

# The same examples on every run and every machine, however slow it is.
settings.register_profile("drpm", deadline=None, derandomize=True, database=None)
settings.load_profile("drpm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stream", type=int, default=0, help="shift all random seeds")
    parser.addoption("--threads", type=int, help="torch's threads in every worker")


def pytest_configure(config: pytest.Config) -> None:
    threads = config.getoption("threads")
    if threads is None and "PYTEST_XDIST_WORKER" in os.environ:
        threads = 1  # the workers share the cores: more threads only wait for each other
    if threads is not None:
        torch.set_num_threads(threads)
    shift_seeds(config.getoption("stream"))


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    if config.getoption("stream"):
        skip = pytest.mark.skip(reason="compares with numbers of unshifted seeds")
        for item in items:
            if "unshifted" in item.keywords or isinstance(item, pytest.DoctestItem):
                item.add_marker(skip)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a GPU, and torch finds none")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Start each test from the same state, whichever ran before it in the same worker."""
    torch.manual_seed(0)


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a run's pictures without what is in them, which takes longer than a small run.

    They are still drawn, but not laid out and painted.
    """
    from matplotlib.figure import Figure

    from drpm.report import plots

    figure = Figure(figsize=(0.1, 0.1))
    figure.add_axes((0, 0, 1, 1))
    blank = plots.png(figure)
    monkeypatch.setattr(plots, "png", lambda figure: blank)
