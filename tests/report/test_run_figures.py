"""The figures of a run: which there are and what they show."""

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from drpm.report import plots
from drpm.report.figure_data import figure_specs, pack_arrays, read_arrays
from drpm.report.plots import clip, colors, png
from drpm.report.run_figures import (
    RunFigure,
    draw_confusion,
    draw_figures,
    draw_latent,
    draw_partition,
    draw_samples,
    draw_sizes,
    draw_spec,
)
from drpm.report.series import curve_panels, training_curves
from drpm.training.errors import RunError
from drpm.training.runs import RunFolder

from .folders import every_array, finished_run

OF_CLUSTERS = ["samples", "partition", "latent", "confusion", "sizes"]


def every_spec() -> dict[str, NDArray[Any]]:
    """One figure of each kind, with all that belongs to it."""
    generator = np.random.default_rng(0)
    return {
        "title__counts": np.asarray("Counts"),
        "grid__swapped": generator.random((2, 3, 3, 8, 8), dtype=np.float32),
        "grid_rows__swapped": np.asarray(["first", "second"]),
        "grid_columns__swapped": np.asarray(["a", "b", "c"]),
        "about__swapped": np.asarray("Two images, and\n what their parts make."),
        "matrix__scores": generator.random((2, 2)),
        "bars__counts": generator.integers(9, size=(3, 2)),
        "bars_groups__counts": np.asarray(["1", "2", "3"]),
        "bars_names__counts": np.asarray(["true", "estimated"]),
        "lines__course": generator.random((2, 3)),
        "lines_epochs__course": np.asarray([1.0, 5.0, 6.0]),
    }


def drawn(folder: Path) -> list[RunFigure]:
    return draw_figures(RunFolder.open(folder))


def texts(figure: Figure) -> set[str]:
    """All texts anywhere in a figure."""
    return {text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))}


def canvas(figure: Figure) -> NDArray[Any]:
    return np.asarray(figure.axes[0].images[0].get_array())


# Which figures there are.


@pytest.mark.parametrize(
    ("shape", "num_clusters"),
    [((8, 8), 20), ((3, 8, 6), 1), ((1, 300, 6), 2), ((4,), 20), ((60,), 1)],
)
def test_all_figures_of_a_clustering(
    tmp_path: Path, shape: tuple[int, ...], num_clusters: int
) -> None:
    folder = finished_run(tmp_path / "run", every_array(num_clusters, shape))
    figures = drawn(folder)
    assert [figure.name for figure in figures] == [*OF_CLUSTERS, "curves"]
    for figure, again in zip(figures, drawn(folder), strict=True):
        assert figure.png.startswith(b"\x89PNG")
        assert figure == again


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["samples"], ["samples"]),
        (["partition_points", "partition_clusters"], ["partition"]),
        (["latent", "latent_clusters"], ["latent"]),
        (["confusion"], ["confusion"]),
        (["sizes"], ["sizes"]),
        (["label_names", "column_names"], []),
        ([], []),
    ],
)
def test_each_figure_by_itself(tmp_path: Path, keys: list[str], expected: list[str]) -> None:
    arrays = every_array(3, (4,))
    folder = finished_run(tmp_path / "run", {key: arrays[key] for key in keys}, records=[])
    assert [figure.name for figure in drawn(folder)] == expected


def test_figures_that_a_run_describes_itself(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", {"sizes": np.asarray([2, 1]), **every_spec()})
    figures = {figure.name: figure for figure in drawn(folder)}
    assert [*figures] == ["sizes", "swapped", "scores", "counts", "course", "curves"]
    assert figures["swapped"].description == "Two images, and what their parts make."
    assert (figures["counts"].title, figures["scores"].title) == ("Counts", "scores")
    specs = {spec.name: spec for spec in figure_specs(read_arrays(folder))}
    assert (specs["swapped"].kind, specs["swapped"].columns) == ("grid", ("a", "b", "c"))
    assert specs["counts"].rows == ("1", "2", "3")
    line = draw_spec(specs["course"]).axes[0].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [1, 5, 6]


@pytest.mark.parametrize("key", ["title__x", "grid__x", "sizes"])
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
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("note", b"no array")
    assert figure_specs(read_arrays(tmp_path)) == []


@pytest.mark.parametrize(
    ("arrays", "name"),
    [
        ({"matrix__x": np.zeros(2)}, "x"),
        ({"grid__x": np.zeros((2, 2))}, "x"),
        ({"latent": np.zeros((3, 2))}, "latent"),
        ({"sizes": np.asarray(["a"])}, "sizes"),
    ],
)
def test_arrays_that_do_not_fit_are_one_sentence(
    tmp_path: Path, arrays: dict[str, NDArray[Any]], name: str
) -> None:
    folder = finished_run(tmp_path / "run", arrays)
    with pytest.raises(RunError, match=f"does not hold what the figure {name} needs"):
        drawn(folder)


# What they show.


def test_images_stand_in_their_rows_and_columns() -> None:
    # Image (r, c) has the grey value (3 r + c) / 6.
    images = np.ones((2, 3, 14, 14)) * np.arange(6).reshape(2, 3, 1, 1) / 6
    figure = plots.grid(list(images), ["up", "down"], ["a", "b", "c"], "Greys")
    axes = figure.axes[0]
    for row, y in enumerate(axes.get_yticks()):
        for column, x in enumerate(axes.get_xticks()):
            assert canvas(figure)[round(y), round(x), 0] == pytest.approx((3 * row + column) / 6)
    assert {"up", "down", "a", "b", "c", "Greys"} <= texts(figure)


def test_images_of_all_types_look_the_same() -> None:
    whole = np.asarray([0, 51, 255], np.uint8).reshape(1, 3, 1, 1) * np.ones((14, 14), np.uint8)
    expected = canvas(plots.grid(list(whole), [], [], ""))
    np.testing.assert_allclose(expected[7, [7, 22, 37], 0], [0, 0.2, 1], rtol=1e-6)
    for same in (whole / 255, whole[:, :, None], np.repeat(whole[:, :, None] / 255, 3, 2)):
        np.testing.assert_allclose(canvas(plots.grid(list(same), [], [], "")), expected, rtol=1e-6)
    # Values outside of [0, 1] are scaled.
    wide = canvas(plots.grid(list(whole / 127.5 - 1.0), [], [], ""))
    np.testing.assert_allclose(wide, expected, atol=1e-6)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (20, 32, 28, 28), (50, 1, 64, 64), (20, 2, 90, 3), (20, 32, 3, 90)]
)
def test_grids_of_all_sizes_fit_on_a_page(shape: tuple[int, ...]) -> None:
    rows = [f"a rather long name {index}" for index in range(shape[0])]
    columns = [f"value {index}" for index in range(shape[1])]
    figure = plots.grid(list(np.zeros(shape, np.uint8)), rows, columns, "x" * 300)
    width, height = figure.get_size_inches()
    assert width <= 10
    assert height <= 16
    assert png(figure)


def test_a_row_of_a_partition_is_as_long_as_its_cluster() -> None:
    clusters = np.asarray([0, 0, 0, 2])
    arrays = {"partition_points": np.zeros((4, 14, 14)), "partition_clusters": clusters}
    figure = draw_partition({**arrays, "sizes": np.ones(3)})
    assert {"cluster 0 (3)", "cluster 1 (0)", "cluster 2 (1)"} <= texts(figure)
    dark = canvas(figure)[..., 0] == 0
    assert dark.sum(1).max() == 3 * 14
    assert not dark[15:29].any()


def test_columns_of_a_table_have_panels_or_a_heat_map() -> None:
    samples = np.random.default_rng(0).normal(size=(3, 50, 30))
    names = np.asarray([f"c{index}" for index in range(30)])
    few = draw_samples({"samples": samples[..., :4], "column_names": names[:4]})
    assert [axes.get_title("left") for axes in few.axes] == ["c0", "c1", "c2", "c3"]
    many = draw_samples({"samples": samples, "num_columns": np.asarray(2048)})
    assert any("30 of 2,048 columns" in text for text in texts(many))
    assert canvas(many).shape == (3, 30)


def test_the_confusion_follows_the_best_matching() -> None:
    counts = np.asarray([[1, 0, 9], [8, 2, 0]])
    arrays = {"confusion": counts, "label_names": np.asarray(["zero", "one"])}
    figure = draw_confusion(arrays)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["2", "0", "1"]
    np.testing.assert_allclose(canvas(figure), [[0.9, 0.1, 0], [0, 0.8, 0.2]])
    assert any("85.0% on matching pairs" in text for text in texts(figure))


def test_a_label_has_the_color_of_its_cluster_and_an_unknown_one_is_grey() -> None:
    clusters = np.asarray([0, 0, 1, 1, 1])
    arrays = {
        "latent": np.random.default_rng(0).normal(size=(5, 2)),
        "latent_clusters": clusters,
        "latent_labels": np.asarray([1, 1, 0, 0, -1]),
    }
    by_cluster, by_label = draw_latent(arrays).axes

    def shades(axes: Any) -> dict[tuple[float, ...], tuple[float, ...]]:
        points = axes.collections[0]
        faces = [tuple(color[:3]) for color in points.get_facecolor()]
        return dict(zip(map(tuple, np.asarray(points.get_offsets())), faces, strict=True))

    *known, last = map(tuple, arrays["latent"])
    first, second = shades(by_cluster), shades(by_label)
    assert all(first[point] == second[point] for point in known)
    assert second[last] == pytest.approx((0.83,) * 3)


def test_sizes_are_written_on_the_bars_in_the_colors_of_the_clusters() -> None:
    figure = draw_sizes({"sizes": np.asarray([1200, 3])})
    assert {"1,200", "3", "Points in each cluster, 1,203 in all"} <= texts(figure)
    bars = figure.axes[0].patches
    assert [bar.get_facecolor()[:3] for bar in bars] == [tuple(color) for color in colors(2)]


def test_numbers_of_a_matrix_are_written_where_they_fit() -> None:
    small = plots.matrix(np.asarray([[0.25, -1.5]]), ["a"], ["x", "y"], "")
    assert {"0.25", "-1.50", "a", "x", "y"} <= texts(small)
    large = plots.matrix(np.zeros((2, 100)), [], [], "")
    assert len(large.axes) == 2  # with a color bar


def test_bars_of_accuracies_reach_up_to_one() -> None:
    figure = plots.bars(np.asarray([[0.5], [0.625]]), ["a", "b"], ["accuracy"], "")
    assert figure.axes[0].get_yticks()[-1] == 1
    assert {"0.500", "0.625"} <= texts(figure)


def test_colors_differ_and_names_are_not_formulas() -> None:
    for count in (1, 20, 21, 200):
        assert len(np.unique(colors(count), axis=0)) == count
    assert clip(" a\nb  c ") == "a b c"
    assert clip("$x$" * 20) == r"\$x\$" * 6 + r"\$…"


# Training curves.


def test_curves_by_stage() -> None:
    records = [
        {"step": 1, "loss": 1.0, "stage": "pretraining", "wall_time": 1.0},
        {"step": 1, "epoch": 0.5, "loss": None, "kl": 0.5},
        {"step": 2, "epoch": 1.0, "loss": 2.0, "name": "x"},
    ]
    curves = training_curves(records)
    found = [(curve.stage, curve.metric, curve.unit) for curve in curves]
    assert found == [("pretraining", "loss", "step"), ("", "loss", "epoch"), ("", "kl", "epoch")]
    np.testing.assert_array_equal(curves[1].points, [[0.5, np.nan], [1.0, 2.0]])
    assert {"pretraining: loss", ": kl"} <= texts(curve_panels(curves))


def test_means_over_few_steps_are_left_out() -> None:
    records = [{"step": step, "loss": float(step)} for step in (100, 103, 200, 300)]
    records.append({"step": 300, "accuracy": 0.5})
    curves = {curve.metric: curve.points for curve in training_curves(records)}
    assert [x for x, _ in curves["loss"]] == [100, 200, 300]
    assert curves["accuracy"] == [(300, 0.5)]


def test_curves_of_all_kinds_are_drawn() -> None:
    records = [{"a": 10.0**-i, "b": None, "c": 1.0, "d": -i} for i in range(30)]
    figure = curve_panels(training_curves(records))
    assert {"a (log scale)", "b (never finite)", "c", "d", "record"} <= texts(figure)
    assert png(figure)
    many = [{f"term {index}": 1.0 for index in range(100)}]
    assert len(curve_panels(training_curves(many)).axes) == 45
