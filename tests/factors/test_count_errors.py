"""The figure of errors: small ones and large ones, and how far they stray."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drpm.factors.count_errors import draw_errors
from drpm.report.style import png
from drpm.training.summaries import Summary

GROUPS = ["n_s = 0", "n_s = 5"]
ERRORS = {
    "Label-VAE": [Summary(81.0, 0.0), Summary(16.0, 0.0)],
    "Ada-VAE": [Summary(72.0, 3.0), Summary(13.0, 1.5)],
    "HG-VAE": [Summary(21.0, 4.0), Summary(0.4, 0.3)],
    "DRPM-VAE": [Summary(9.0, 3.0), Summary(0.2, 0.3)],
    "exact DRPM-VAE": [Summary(6.0, 2.0), Summary(0.0, 0.0)],
}


def drawn(errors: dict[str, list[Summary]], groups: list[str]) -> tuple[Figure, Axes]:
    figure = draw_errors(errors, groups, "Errors")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    return figure, axes


def height(axes: Axes, error: float) -> float:
    """Where an error is drawn, in parts of the whole height."""
    point = axes.transData.transform((0.0, error))
    return float(axes.transAxes.inverted().transform(point)[1])


def test_small_and_large_errors_can_be_read() -> None:
    _, axes = drawn(ERRORS, GROUPS)
    heights = [height(axes, error) for error in (0.0, 0.2, 0.4, 6.0, 9.0, 21.0, 72.0, 84.0)]
    assert heights[0] == pytest.approx(0)
    assert heights[-1] < 1
    # Those of methods that are compared lie apart by more than a point is high.
    assert np.diff(heights)[:-1].min() > 0.03
    texts = [text.get_text() for text in axes.get_yticklabels()]
    assert texts == ["0", "0.5", "1", "2", "5", "10", "20", "50", "100"]
    assert axes.get_ylabel() == "logarithmic from 1 on"
    assert [text.get_text() for text in axes.get_xticklabels()] == GROUPS


def test_whiskers_are_one_deviation() -> None:
    _, axes = drawn(ERRORS, GROUPS)
    ends = [
        segment[:, 1].tolist()
        for lines in axes.collections
        for segment in lines.get_segments()  # type: ignore[attr-defined]
    ]
    # None where nothing strays, and none below zero.
    expected = [[69, 75], [11.5, 14.5], [17, 25], [0.1, 0.7], [6, 12], [0, 0.5], [4, 8]]
    np.testing.assert_allclose(ends, expected)


def test_methods_lie_side_by_side_in_colours_of_their_own() -> None:
    _, axes = drawn(ERRORS, GROUPS)
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert len({tuple(line.get_color()) for line in points}) == len(ERRORS)
    places = np.array([line.get_xdata() for line in points])
    assert (np.diff(places, axis=0) > 0.1).all()
    assert (np.abs(places - [0, 1]) < 0.5).all()
    means = [line.get_ydata().tolist() for line in points]
    assert means == [[summary.mean for summary in found] for found in ERRORS.values()]


def test_the_legend_is_one_line_below() -> None:
    figure, axes = drawn(ERRORS, GROUPS)
    (legend,) = figure.legends
    texts = legend.get_texts()
    assert [text.get_text() for text in texts] == [*ERRORS, "one deviation over seeds"]
    assert len({round(text.get_window_extent().y0) // 5 for text in texts}) == 1
    assert legend.get_window_extent().y1 < axes.get_window_extent().y0
    assert legend.get_window_extent().x1 < figure.bbox.x1


def test_one_seed_has_no_whiskers() -> None:
    figure, axes = drawn({"HG-VAE": [Summary(0.5, None)]}, ["n_s = 0"])
    assert not any(lines.get_segments() for lines in axes.collections)  # type: ignore[attr-defined]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["HG-VAE"]
    # All of the scale is linear.
    assert axes.get_ylabel() == ""


@pytest.mark.parametrize("error", [0.0, 1e-6, 1.0, 12_345.0])
def test_any_error_can_be_drawn(error: float) -> None:
    figure, axes = drawn({"a": [Summary(error, error)]}, ["x"])
    assert 0 <= height(axes, error) < 1
    assert png(figure).startswith(b"\x89PNG")
