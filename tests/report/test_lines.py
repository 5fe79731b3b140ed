"""Lines over epochs: few by name, many in shades, and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drpm.report import write_figures
from drpm.report.exhibits import read_exhibits
from drpm.report.lines import draw_lines
from drpm.report.style import png
from drpm.training.errors import RunError

from .folders import finished_run
from .test_figures import names, texts

COURSE = {
    "lines__course": np.asarray([[0.1, 0.2, 0.4], [0.5, 0.3, 0.1]]),
    "lines_names__course": np.asarray(["left", "$right"]),
    "lines_epochs__course": np.asarray([5, 10, 12]),
    "title__course": np.asarray("Both over training"),
}


def test_lines_are_read_and_drawn(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", COURSE)
    assert names(write_figures(folder)) == ["course", "curves"]
    (exhibit,) = read_exhibits(folder)
    figure = exhibit.draw()
    (axes,) = figure.axes
    for line, values in zip(axes.lines, COURSE["lines__course"], strict=True):
        assert np.asarray(line.get_xdata()).tolist() == [5, 10, 12]
        assert np.asarray(line.get_ydata()).tolist() == values.tolist()
    assert {"Both over training", "left", r"\$right", "epoch"} <= texts(figure)
    # Parts of a whole, with all of it.
    assert axes.get_ylim() == (0, 1)


def test_many_lines_have_shades_in_their_order() -> None:
    values = 2.0 + np.arange(40)[:, None] * np.ones((40, 3))
    figure = draw_lines(values, [f"task {index}" for index in range(40)], [], "Many")
    axes, scale = figure.axes
    assert not figure.legends
    greens = [line.get_color()[1] for line in axes.lines]
    assert greens == sorted(greens)
    assert [tick.get_text() for tick in scale.get_yticklabels()][::4] == ["task 0", "task 39"]
    assert axes.get_ylim()[0] == 0
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [1, 2, 3]
    assert png(figure)


def test_lines_below_zero_are_seen() -> None:
    (axes,) = draw_lines(np.asarray([[-3.0, 1.0]]), [], [], "").axes
    assert axes.get_ylim()[0] < -3


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"lines__course": np.zeros(3)}, "lines__course must be numbers (L, P), none of the"),
        ({"lines__course": np.full((2, 3), np.nan)}, "lines__course must be finite"),
        ({"lines_names__course": np.asarray(["a"])}, "lines_names__course must be strings (2,)"),
        ({"lines_epochs__course": np.asarray([5, 5, 6])}, "must be growing numbers (3,), but is 3"),
        ({"lines_epochs__course": np.asarray([5, 6])}, "must be growing numbers (3,), but is 2"),
        ({"lines_epochs__course": np.asarray([1, 2, np.inf])}, "must be growing numbers (3,)"),
        ({"lines_epochs__course": np.asarray(["1", "2", "3"])}, "must be growing numbers (3,)"),
        ({"lines__course": np.zeros((201, 3))}, "must be at most 200x10000 numbers"),
    ],
)
def test_lines_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    folder = finished_run(tmp_path / "run", COURSE | changes)
    with pytest.raises(RunError, match=re.escape(complaint)):
        read_exhibits(folder)
