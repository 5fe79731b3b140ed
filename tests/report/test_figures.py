"""The figures of a run: which there are and what they show."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

from drpm.cli.results_page import FIGURES
from drpm.report.page import training_curves, write_page
from drpm.report.plots import (
    COLORS,
    FigureSpec,
    Series,
    draw,
    figure_specs,
    pack_arrays,
    png,
    read_arrays,
    series_panels,
)
from drpm.training.errors import RunError

from .folders import every_array, finished_run

EVERY_SPEC: dict[str, NDArray[Any]] = {
    "title__counts": np.asarray("Counts"),
    "grid__swapped": np.zeros((2, 3, 3, 8, 8), np.float32),
    "grid_rows__swapped": np.asarray(["first", "second"]),
    "grid_columns__swapped": np.asarray(["a", "b", "c"]),
    "about__swapped": np.asarray("Two images, and what their parts make."),
    "matrix__scores": np.asarray([[0.5, -0.25], [0.0, 1.5]]),
    "bars__counts": np.asarray([[10], [3], [5]]),
    "bars_groups__counts": np.asarray(["1", "2", "3"]),
    "lines__course": np.asarray([[0.1, 0.2, 0.4], [0.3, 0.2, 0.1]]),
    "lines_names__course": np.asarray(["left", "right"]),
    "lines_epochs__course": np.asarray([1.0, 5.0, 6.0]),
}


def texts(figure: Figure) -> set[str]:
    """All texts anywhere in a figure."""
    return {text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))}


def canvas(figure: Figure) -> NDArray[Any]:
    return np.asarray(figure.axes[0].images[0].get_array())


def figure(kind: str, values: Any, rows: Any = (), columns: Any = ()) -> Figure:
    return draw(FigureSpec(kind, "", values, rows, columns, "Title"))


def drawn(arrays: dict[str, NDArray[Any]], name: str) -> Figure:
    (spec,) = (spec for spec in figure_specs(arrays) if spec.name == name)
    return draw(spec)


@pytest.mark.parametrize(("shape", "num_clusters"), [((8, 8), 3), ((3, 8, 6), 1), ((60,), 21)])
def test_all_figures_of_a_clustering(
    tmp_path: Path, shape: tuple[int, ...], num_clusters: int
) -> None:
    folder = finished_run(tmp_path / "run", every_array(num_clusters, shape))
    page = write_page(folder).read_text("utf-8")
    partition = ["partition"] if len(shape) > 1 else []
    expected = ["samples", *partition, "confusion", "sizes", "curves"]
    assert re.findall(r'<h2 id="figure-(\w+)"', page) == expected
    for name in expected:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_figures_that_a_run_describes() -> None:
    specs = {spec.name: spec for spec in figure_specs(EVERY_SPEC)}
    assert [*specs] == ["swapped", "scores", "counts", "course"]
    assert specs["swapped"].about == "Two images, and what their parts make."
    assert (specs["counts"].title, specs["scores"].title) == ("Counts", "")
    assert (specs["swapped"].kind, specs["swapped"].columns) == ("grid", ("a", "b", "c"))
    assert specs["counts"].rows == ("1", "2", "3")
    assert all(png(draw(spec)) == png(draw(spec)) for spec in specs.values())
    line = draw(specs["course"]).axes[0].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [1, 5, 6]
    assert {"1", "10", "Counts"} <= texts(draw(specs["counts"]))


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_results_are_readable_on_phones(name: str) -> None:
    """A phone shows a figure with a width of 343 pixels."""
    figure = FIGURES[name](Path(__file__).parents[2] / "results")
    inches = int.from_bytes(png(figure)[16:20], "big") / 150
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    smallest = min(text.get_fontsize() for text in shown) / 72 * 343 / inches
    assert smallest >= 8


@pytest.mark.parametrize("key", ["title__x", "sizes"])
def test_nothing_is_unpickled_and_a_damaged_file_is_one_sentence(tmp_path: Path, key: str) -> None:
    path = tmp_path / "arrays.npz"
    message = f"^The file {re.escape(str(path))} cannot be read as an archive of plain arrays\\.$"
    np.savez(path, **{key: np.asarray({}, dtype=object)})
    with pytest.raises(RunError, match=message):
        read_arrays(tmp_path)
    path.write_bytes(pack_arrays(every_array(3, (4,)))[:-100])
    with pytest.raises(RunError, match=message):
        read_arrays(tmp_path)
    path.unlink()
    assert read_arrays(tmp_path) == {}


def test_images_stand_in_their_rows_and_columns() -> None:
    # Image (r, c) has the gray value (3 r + c) / 6.
    images = np.ones((2, 3, 14, 14)) * np.arange(6).reshape(2, 3, 1, 1) / 6
    grid = figure("grid", images, ["up", "down"], ["a", "b", "c"])
    axes = grid.axes[0]
    for row, y in enumerate(axes.get_yticks()):
        for column, x in enumerate(axes.get_xticks()):
            assert canvas(grid)[round(y), round(x), 0] == pytest.approx((3 * row + column) / 6)
    assert {"up", "down", "a", "b", "c", "Title"} <= texts(grid)


def test_images_of_all_types_look_the_same() -> None:
    whole = np.asarray([0, 51, 255], np.uint8).reshape(1, 3, 1, 1) * np.ones((14, 14), np.uint8)
    expected = canvas(figure("grid", whole))
    np.testing.assert_allclose(expected[7, [7, 22, 37], 0], [0, 0.2, 1], rtol=1e-6)
    for same in (whole / 255, whole[:, :, None], np.repeat(whole[:, :, None] / 255, 3, 2)):
        np.testing.assert_allclose(canvas(figure("grid", same)), expected, rtol=1e-6)
    # Values outside of [0, 1] are scaled.
    wide = canvas(figure("grid", whole / 127.5 - 1.0))
    np.testing.assert_allclose(wide, expected, atol=1e-6)


def test_a_row_of_a_partition_is_as_long_as_its_cluster() -> None:
    arrays = {
        "samples": np.zeros((3, 1, 14, 14)),
        "partition_points": np.zeros((4, 14, 14)),
        "partition_clusters": np.asarray([0, 0, 0, 2]),
    }
    figure = drawn(arrays, "partition")
    assert {"cluster 0 (3)", "cluster 1 (0)", "cluster 2 (1)"} <= texts(figure)
    dark = canvas(figure)[..., 0] == 0
    assert dark.sum(1).max() == 3 * 14
    assert not dark[15:29].any()


def test_few_rows_of_images_are_in_strips() -> None:
    points, clusters = np.zeros((41, 8, 8)), np.repeat([0, 1], [35, 6])
    arrays = {"partition_points": points, "partition_clusters": clusters}
    for count, lengths in ((2, [16] * 4), (7, [32] * 7)):
        samples, partition = figure_specs({**arrays, "samples": np.zeros((count, 32, 8, 8))})
        assert [*map(len, samples.values)] == lengths
        assert ("one row" in samples.title) == (count == 7)
        assert [*map(len, partition.values)][:3] == ([16, 16, 6] if count == 2 else [32, 6, 0])
        assert partition.rows[1] == ("" if count == 2 else "cluster 1 (6)")


def test_means_of_columns_are_in_their_units() -> None:
    samples = np.asarray([[[1.0, 1000], [3, 1000]], [[5, 3000], [7, 3000]]])
    names = np.asarray(["a", "b"])
    figure = drawn({"samples": samples, "column_names": names, "num_columns": 2048}, "samples")
    assert {"2", "6", "1,000", "3,000", "a", "cluster 1"} <= texts(figure)
    assert any("2 of 2,048 columns" in text for text in texts(figure))
    np.testing.assert_allclose(canvas(figure), [[-1, -1], [1, 1]])


def test_clusters_follow_their_labels() -> None:
    arrays = {
        "confusion": np.asarray([[1, 0, 9], [8, 2, 0]]),
        "label_names": np.asarray(["zero", "one"]),
        "sizes": np.asarray([9, 2, 1200]),
    }
    figure = drawn(arrays, "confusion")
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["2", "0", "1"]
    np.testing.assert_allclose(canvas(figure), [[0.9, 0.1, 0], [0, 0.8, 0.2]])
    assert {"1,200", "9", "Cluster sizes, 1,211 points in total"} <= texts(drawn(arrays, "sizes"))


def test_numbers_of_a_matrix_are_written_where_they_fit() -> None:
    small = figure("matrix", np.asarray([[0.25, -1.5]]), ["a"], ["x", "y"])
    assert {"0.250", "-1.50", "a", "x", "y"} <= texts(small)
    large = figure("matrix", np.zeros((2, 100)))
    assert len(large.axes[0].texts) == 0


def test_panels_of_series() -> None:
    x = np.asarray([1.0, 3.0, 2.0])
    series = [Series(name, x, x + index, x / 10) for index, name in enumerate("ab")]
    for is_line in (True, False):
        panels = {"first": series, "second": series[1:]}
        figure = series_panels(panels, "size", "Scores", is_line=is_line)
        assert {"Scores", "first", "second", "size", "a", "b"} <= texts(figure)
        places = [np.asarray(line.get_xdata()) for line in figure.axes[0].lines[:2]]
        assert np.array_equal(*places) == is_line  # points stand side by side
        colors = [[line.get_color() for line in axes.lines] for axes in figure.axes]
        assert colors == [[*COLORS[:2]], [COLORS[1]]]


def test_curves_by_stage() -> None:
    records = [
        {"step": 1, "loss": 1.0, "stage": "pretraining", "wall_time": 1.0},
        {"step": 1, "epoch": 0.5, "loss": None, "kl": 0.5},
        {"step": 2, "epoch": 1.0, "loss": 2.0, "name": "x", "each": [1.0, 2.0]},
    ]
    curves = training_curves(records)
    assert [*curves] == ["pretraining: loss (steps)", "loss (epochs)", "kl (epochs)"]
    (loss,) = curves["loss (epochs)"]
    assert (loss.x.tolist(), loss.mean.tolist()) == ([1.0], [2.0])  # the other is not finite
    assert training_curves([]) == {}


def test_means_over_few_steps_are_left_out() -> None:
    records = [{"step": step, "loss": float(step)} for step in (100, 103, 200, 300)]
    curves = training_curves([*records, {"step": 300, "accuracy": 0.5}])
    assert curves["loss (steps)"][0].x.tolist() == [100, 200, 300]
    assert curves["accuracy (steps)"][0].x.tolist() == [300]
