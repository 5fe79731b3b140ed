"""Pictures that a run describes itself: what they show, where they stand and what is refused."""

import re
import shutil
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from drpm.report import write_figures
from drpm.report.bars import draw_bars, tell_apart
from drpm.report.exhibits import find_exhibit, read_exhibits
from drpm.report.figures import NAMES
from drpm.report.images import draw_grid
from drpm.report.matrices import draw_matrix
from drpm.report.numbers import short
from drpm.report.result_exhibits import exhibit_figures
from drpm.report.style import bears_name, colours, new_figure, png
from drpm.report.trends import Trend, draw_panel, draw_trends
from drpm.training.errors import RunError

from .folders import every_array, finished_run
from .test_figures import names, texts
from .test_page import HOSTILE, page_of


def every_exhibit() -> dict[str, NDArray[Any]]:
    """One picture of each kind, with all that belongs to it."""
    generator = np.random.default_rng(0)
    return {
        "grid__swapped": generator.random((2, 3, 3, 8, 8), dtype=np.float32),
        "grid_rows__swapped": np.asarray(["first", "second"]),
        "grid_columns__swapped": np.asarray(["a", "b", "c"]),
        "title__swapped": np.asarray("Exchanged parts"),
        "about__swapped": np.asarray("Two images, and what their parts make."),
        "matrix__scores": generator.random((2, 2)),
        "matrix_rows__scores": np.asarray(["hue", "size"]),
        "matrix_columns__scores": np.asarray(["shared", "independent"]),
        "title__scores": np.asarray("Scores"),
        "about__scores": np.asarray("What each part tells."),
        "bars__counts": generator.integers(9, size=(3, 2)),
        "bars_groups__counts": np.asarray(["1", "2", "3"]),
        "bars_names__counts": np.asarray(["true", "estimated"]),
        "title__counts": np.asarray("Counts"),
        "about__counts": np.asarray("True and estimated counts."),
    }


EXHIBITS = ["swapped", "scores", "counts"]


def save(folder: Path, arrays: dict[str, Any]) -> None:
    np.savez(folder / "arrays.npz", allow_pickle=False, **arrays)


# Which pictures there are.


def test_exhibits_stand_before_the_curves_in_the_order_of_the_file(tmp_path: Path) -> None:
    arrays = every_exhibit()
    folder = finished_run(tmp_path / "run", every_array(3, (8, 8)) | arrays)
    paths = write_figures(folder)
    own = ["samples", "partition", "latent", "confusion", "sizes"]
    assert names(paths) == [*own, *EXHIBITS, "curves"]
    for path in paths:
        assert path.parent == (folder / "figures").resolve()
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 2000
    # The values make the order, wherever the texts stand.
    title = {"title__counts": arrays.pop("title__counts")}
    save(folder, title | dict(reversed(arrays.items())))
    assert names(write_figures(folder)) == [*reversed(EXHIBITS), "curves"]


def test_an_exhibit_is_read_as_it_was_written(tmp_path: Path) -> None:
    arrays = every_exhibit()
    save(tmp_path, arrays)
    grid, matrix, bars = read_exhibits(tmp_path, NAMES)
    assert (grid.kind, grid.name, grid.title) == ("grid", "swapped", "Exchanged parts")
    assert grid.about == "Two images, and what their parts make."
    assert (grid.rows, grid.columns) == (("first", "second"), ("a", "b", "c"))
    np.testing.assert_array_equal(grid.values, arrays["grid__swapped"])
    assert (matrix.kind, matrix.rows, matrix.columns) == (
        "matrix",
        ("hue", "size"),
        ("shared", "independent"),
    )
    assert (bars.kind, bars.rows, bars.columns) == (
        "bars",
        ("1", "2", "3"),
        ("true", "estimated"),
    )


def test_texts_may_be_missing(tmp_path: Path) -> None:
    assert read_exhibits(tmp_path) == []
    kept = {key: array for key, array in every_exhibit().items() if re.match("grid__|ma.*x__", key)}
    save(tmp_path, kept | {"title__scores": np.asarray(" two\n lines ")})
    grid, matrix = read_exhibits(tmp_path)
    assert (grid.title, grid.about, grid.rows, grid.columns) == (
        *("swapped", "Images, 2 x 3."),
        *((), ()),
    )
    assert (matrix.title, matrix.about) == ("two lines", "Numbers, 2 x 2.")
    assert png(grid.draw())
    assert png(matrix.draw())


def test_names_may_have_underscores_and_other_keys_are_left_alone(tmp_path: Path) -> None:
    values = np.zeros((1, 1))
    save(tmp_path, {"bars__a__b-0_": values, "other__x": values, "grid": values, "about": values})
    assert [exhibit.name for exhibit in read_exhibits(tmp_path)] == ["a__b-0_"]


def test_the_second_call_writes_the_same(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", every_exhibit())
    first = {path: path.read_bytes() for path in write_figures(folder)}
    assert {path: path.read_bytes() for path in write_figures(folder)} == first


def test_exhibits_with_nothing_behind_them_go_and_others_stay(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", every_exhibit())
    write_figures(folder)
    figures = folder / "figures"
    # A copy under another name, even one that starts alike, is somebody else's file.
    for name in ("copy.png", "score.png", "scores2.png", "scores.txt"):
        shutil.copy(figures / "scores.png", figures / name)
    (figures / "mine.png").write_bytes(b"mine")
    (figures / "folder.png").mkdir()
    mine = ["copy.png", "folder.png", "mine.png", "score.png", "scores.txt", "scores2.png"]
    save(folder, {"bars__counts": np.ones((1, 1))})
    assert names(write_figures(folder)) == ["counts", "curves"]
    left = sorted(path.name for path in figures.iterdir())
    assert left == sorted(["counts.png", "curves.png", *mine])
    # What took the place of a picture is no longer the report's.
    (figures / "counts.png").write_bytes(b"\x89PNG mine")
    save(folder, {})
    write_figures(folder)
    left = sorted(path.name for path in figures.iterdir())
    assert left == sorted(["counts.png", "curves.png", *mine])


def test_a_picture_bears_its_name(tmp_path: Path) -> None:
    path = tmp_path / "any.png"
    path.write_bytes(png(Figure(), "scores"))
    assert bears_name(path, "scores")
    assert not any(bears_name(path, name) for name in ("score", "cores", "scores2", "\udcff"))
    path.write_bytes(png(Figure()))
    assert not bears_name(path, "scores")
    assert not bears_name(tmp_path, "scores")


# Refusals.


BAD: list[tuple[dict[str, Any], str]] = [
    ({"grid__swapped": np.zeros((2, 3, 8))}, "grid__swapped must be images (R, C, H, W) or (R, C"),
    (
        {"grid__swapped": np.zeros((2, 3, 8, 8), int)},
        "uint8 or floats, none of the sizes zero, but",
    ),
    ({"grid__swapped": np.zeros((2, 3, 0, 8))}, "none of the sizes zero, but is 2x3x0x8 of type"),
    ({"grid__swapped": np.zeros((2, 3, 2, 8, 8))}, "must be images of one or three channels"),
    ({"grid__swapped": np.full((2, 3, 8, 8), np.nan)}, "grid__swapped must be finite"),
    ({"grid__swapped": np.full((2, 3, 8, 8), 1.5)}, "must be from 0 to 1, but reaches from 1.5"),
    ({"grid__swapped": np.zeros((51, 3, 8, 8))}, "must be at most 50x32 images, but is 51x3x8x8"),
    ({"grid__swapped": np.zeros((2, 33, 8, 8))}, "must be at most 50x32 images, but is 2x33x8x8"),
    ({"grid_rows__swapped": np.asarray(["a"])}, "grid_rows__swapped must be strings (2,), but is"),
    ({"grid_columns__swapped": np.arange(3)}, "grid_columns__swapped must be strings (3,), but is"),
    ({"grid__swapped": None}, "grid_rows__swapped comes without a picture of this name"),
    ({"title__other": np.asarray("x")}, "title__other comes without a picture of this name"),
    ({"grid_rows__scores": np.asarray("x")}, "grid_rows__scores comes without grid__scores"),
    ({"title__scores": np.asarray(["x"])}, "title__scores must be one string, but is 1 of type"),
    ({"about__scores": np.asarray(3)}, "about__scores must be one string, but is a single entry"),
    ({"matrix__scores": np.zeros(2)}, "matrix__scores must be numbers (R, C), none of the sizes"),
    ({"matrix__scores": np.zeros((2, 2), complex)}, "matrix__scores must be numbers (R, C)"),
    ({"matrix__scores": np.asarray([["a"]])}, "matrix__scores must be numbers (R, C)"),
    ({"matrix__scores": np.full((2, 2), np.inf)}, "matrix__scores must be finite"),
    ({"matrix__scores": np.full((2, 2), -1e200)}, "must be at most 1e+100 in size, but reaches"),
    ({"matrix__scores": np.zeros((101, 2))}, "matrix__scores must be at most 100x100 numbers"),
    ({"bars__counts": np.zeros((3, 2, 1))}, "bars__counts must be numbers (G, B)"),
    ({"bars__counts": np.zeros((41, 2))}, "bars__counts must be at most 40x10 numbers"),
    ({"bars_names__counts": np.asarray(["a"] * 3)}, "bars_names__counts must be strings (2,)"),
    ({"bars__scores": np.zeros((2, 2))}, "matrix__scores and bars__scores must have different"),
    ({"bars__curves": np.zeros((2, 2))}, "must have another name: curves.png is another picture's"),
    ({"bars__": np.zeros((2, 2))}, "the name of 'bars__' must be 1 to 64 characters of a-z, 0-9,"),
    ({"bars__A": np.zeros((2, 2))}, "the name of 'bars__A' must be 1 to 64 characters"),
    ({"bars__x\n": np.zeros((2, 2))}, r"the name of 'bars__x\n' must be 1 to 64 characters"),
    ({"title__../x": np.asarray("x")}, "the name of 'title__../x' must be 1 to 64 characters"),
    ({f"bars__{'x' * 65}": np.zeros((2, 2))}, "must be 1 to 64 characters"),
]


@pytest.mark.parametrize(("changes", "complaint"), BAD)
def test_exhibits_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    folder = finished_run(tmp_path / "run")
    arrays = every_exhibit() | changes
    path = folder / "arrays.npz"
    save(folder, {key: array for key, array in arrays.items() if array is not None})
    with pytest.raises(RunError, match=re.escape(complaint)) as refusal:
        write_figures(folder)
    assert str(refusal.value).startswith(f"In the file {path}, ")
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)
    assert not (folder / "figures").exists()


@pytest.mark.parametrize("key", ["title__x", "grid__x", "sizes"])
def test_nothing_is_unpickled_and_all_are_arrays(tmp_path: Path, key: str) -> None:
    folder = finished_run(tmp_path / "run")
    path = folder / "arrays.npz"
    message = re.escape(f"The file {path} cannot be read as an archive of plain arrays; write it")
    np.savez(path, **{key: np.asarray({}, dtype=object)})
    with pytest.raises(RunError, match=f"^{message}[^\n]*\\.$"):
        write_figures(folder)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(key, b"no array")
    with pytest.raises(RunError, match=f"^{message}[^\n]*\\.$"):
        write_figures(folder)


# What the pictures show.


def canvas(figure: Figure) -> NDArray[Any]:
    return np.asarray(figure.axes[0].images[0].get_array())


def test_images_stand_in_their_rows_and_columns() -> None:
    # Image (r, c) is all of grey (3 r + c) / 6.
    images = np.ones((2, 3, 14, 14)) * np.arange(6).reshape(2, 3, 1, 1) / 6
    figure = draw_grid(images, ["up", "down"], ["a", "b", "c"], "Greys")
    axes = figure.axes[0]
    assert canvas(figure).shape == (2 * 15 - 1, 3 * 15 - 1, 3)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["up", "down"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b", "c"]
    for row, y in enumerate(axes.get_yticks()):
        for column, x in enumerate(axes.get_xticks()):
            assert canvas(figure)[round(y), round(x), 0] == pytest.approx((3 * row + column) / 6)
    assert "Greys" in texts(figure)
    assert not axes.patches  # the colours of clusters mean nothing here


def test_images_of_both_types_and_all_channels_are_the_same() -> None:
    whole = np.asarray([0, 51, 255], np.uint8).reshape(1, 3, 1, 1) * np.ones((14, 14), np.uint8)
    expected = canvas(draw_grid(whole, [], [], ""))
    np.testing.assert_allclose(expected[7, [7, 22, 37], 0], [0, 0.2, 1], rtol=1e-6)
    for same in (whole / 255, whole[:, :, None], np.repeat(whole[:, :, None] / 255, 3, 2)):
        np.testing.assert_allclose(canvas(draw_grid(same, [], [], "")), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (20, 32, 28, 28), (50, 1, 64, 64), (20, 2, 90, 3), (20, 32, 3, 90)]
)
def test_grids_of_all_sizes_fit_on_a_page(shape: tuple[int, ...]) -> None:
    rows = [f"a rather long name {index}" for index in range(shape[0])]
    columns = [f"value {index}" for index in range(shape[1])]
    figure = draw_grid(np.zeros(shape, np.uint8), rows, columns, "x" * 300)
    width, height = figure.get_size_inches()
    assert width < 9.1
    assert height < 14
    assert png(figure)


def test_a_matrix_shows_its_numbers() -> None:
    values = np.asarray([[0.5, -1.25, 0.0], [3.0, 2.0, 1.0]])
    figure = draw_matrix(values, ["up", "down"], ["a", "b", "c"], "Numbers")
    assert canvas(figure).tolist() == values.tolist()
    assert {"0.50", "-1.25", "0.00", "3.00", "up", "down", "a", "b", "c"} <= texts(figure)
    assert "Numbers" in texts(figure)
    # Signs differ, so that zero is in the middle of the colours.
    assert figure.axes[0].images[0].get_clim() == (-3.0, 3.0)
    written = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
    assert written["3.00"] == "white"
    assert sum(to_rgb(written["1.00"])) < sum(to_rgb(written["0.00"])) < 3
    assert len(figure.axes) == 1


def test_a_matrix_of_one_sign_has_colours_from_end_to_end() -> None:
    for values, ends in (([[2, 5]], (2, 5)), ([[-9, -7]], (-9, -7)), ([[4, 4]], (3, 5))):
        figure = draw_matrix(np.asarray(values), [], [], "")
        assert figure.axes[0].images[0].get_clim() == ends


def test_a_large_matrix_has_a_scale_in_place_of_numbers() -> None:
    for shape in ((20, 32), (100, 100), (100, 1), (1, 100), (40, 100)):
        values = np.random.default_rng(0).random(shape)
        figure = draw_matrix(
            values,
            [f"row {index}" for index in range(shape[0])],
            [f"column {index}" for index in range(shape[1])],
            "Large",
        )
        assert len(figure.axes) == 2
        assert not figure.axes[0].texts
        assert max(figure.get_size_inches()) < 11
        assert png(figure)


@pytest.mark.parametrize(
    "values", [[[True]], [[10**12, -(10**12)]], [[1e-300, 2e-300]], [[1e100, -1e100]], [[-0.0]]]
)
def test_numbers_of_all_sizes_are_drawn(values: list[list[float]]) -> None:
    assert png(draw_matrix(np.asarray(values), [], [], ""))
    assert png(draw_bars(np.asarray(values), [], [], ""))


def test_bars_stand_in_groups() -> None:
    values = np.asarray([[3, 2.5], [4, 3.5], [0, -1.0]])
    figure = draw_bars(values, ["x", "y", "z"], ["true", "estimated"], "Counts")
    axes = figure.axes[0]
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == values.T.tolist()
    for index, bars in enumerate(axes.containers):
        for place, bar in enumerate(bars):
            middle = bar.get_x() + bar.get_width() / 2
            assert middle == pytest.approx(place - 0.2 + 0.4 * index)
            assert bar.get_facecolor()[:3] == pytest.approx(colours(2)[index])
    assert {"x", "y", "z", "true", "estimated", "Counts", "3.0", "-1.0"} <= texts(figure)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["true", "estimated"]
    low, high = axes.get_ylim()
    assert low < -1
    assert high > 4


def test_many_bars_have_an_axis_in_place_of_numbers() -> None:
    few, many = draw_bars(np.ones((5, 2)), [], [], ""), draw_bars(np.ones((40, 10)), [], [], "")
    assert not few.axes[0].get_yticks().size
    assert many.axes[0].get_yticks().size
    assert few.axes[0].get_legend() is None
    groups, bars = [f"a rather long name {index}" for index in range(40)], ["method " * 3] * 10
    figure = draw_bars(np.zeros((40, 10)), groups, bars, "x" * 300)
    assert figure.get_figwidth() < 9.1
    assert png(figure)


def test_bars_that_differ_read_differently() -> None:
    figure = draw_bars(np.asarray([[4.9981], [5.0023], [4.9979]]), [], ["neurons"], "")
    assert {"4.9981", "5.0023", "4.9979"} <= texts(figure)
    assert tell_apart([4.9, 5.1]) == ["4.9", "5.1"]
    assert tell_apart([float("nan"), 1.5]) == ["nan", "1.50"]
    assert tell_apart([]) == []
    assert tell_apart([0.12345, 0.5]) == ["0.123", "0.500"]
    assert tell_apart([1000001, 1000002]) == ["1,000,001", "1,000,002"]
    # What is equal but for rounding stays short.
    assert tell_apart([5.0, 5.0 + 1e-9]) == short([5.0, 5.0 + 1e-9])
    assert tell_apart([0.0, 0.0]) == ["0", "0"]


@pytest.mark.parametrize("count", [3, 40])
def test_accuracies_are_drawn_up_to_one(count: int) -> None:
    values = np.full((count, 1), 0.137)
    (axes,) = draw_bars(values, [], ["accuracy"], "").axes
    # Where numbers are written there is room for them, but the axis ends.
    top = axes.get_ylim()[1]
    assert 1 < top < 1.2 if count == 3 else top == 1
    assert axes.spines["left"].get_bounds() == (0, 1)
    assert axes.get_yticks().max() == 1
    _, high = draw_bars(values, [], ["neurons"], "").axes[0].get_ylim()
    assert high < 0.2


def test_numbers_of_pictures_are_short() -> None:
    assert short([1.0, 1234.0, -0.0]) == ["1", "1,234", "0"]
    assert short([0.12345, 0.5]) == ["0.123", "0.500"]
    assert short([2.5, 3]) == ["2.5", "3.0"]
    assert short([1e-9, 1.0]) == ["0.0", "1.0"]


# Names from outside.


def test_names_are_drawn_as_they_are() -> None:
    hostile = ["$\\frac{1$", "$x$", "a\nb\tc", "数据", "<b>", "%s {0} \\", "_hidden", ""]
    for title in hostile:
        assert png(draw_matrix(np.eye(8), hostile, hostile, title))
    assert png(draw_bars(np.eye(8), hostile, hostile, hostile[0]))
    assert png(draw_grid(np.zeros((8, 8, 2, 2)), hostile, hostile, hostile[0]))
    figure = draw_bars(np.eye(2), [], ["_hidden", "seen"], "")
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["_hidden", "seen"]


def test_exhibits_on_the_page_are_no_markup(tmp_path: Path) -> None:
    arrays = every_exhibit()
    for key, array in arrays.items():
        if array.dtype.kind == "U":
            arrays[key] = np.full(array.shape, f'{HOSTILE}"onload="x')
    # A name that an element of the page itself has.
    arrays["bars__results"] = np.ones((1, 1))
    page = page_of(finished_run(tmp_path / "run", arrays, records=[]))
    assert "<script" not in page.source
    assert not page.all("script")
    assert page.text.count(HOSTILE) == 6  # each title, and each description as a caption
    assert all(set(image) == {"width", "src", "alt"} for image in page.all("img"))
    assert [HOSTILE in (image["alt"] or "") for image in page.all("img")] == [True] * 3 + [False]
    marks = [each["id"] for _, each in page.elements if "id" in each]
    assert len(marks) == len(set(marks))
    assert [mark for mark in marks if mark and mark.startswith("picture-")] == [
        f"picture-{name}" for name in [*EXHIBITS, "results"]
    ]


def test_one_series_of_bars_needs_no_legend() -> None:
    assert draw_bars(np.ones((3, 1)), [], ["neurons"], "").axes[0].get_legend() is None
    assert draw_bars(np.ones((3, 2)), [], ["a", "b"], "").axes[0].get_legend() is not None


def test_a_few_rows_of_many_columns_are_higher_than_wide() -> None:
    values = np.linspace(0, 1, 160).reshape(2, 80)
    assert draw_matrix(values, [], [], "").axes[0].get_aspect() > 1
    square = draw_matrix(np.linspace(0, 1, 6400).reshape(80, 80), [], [], "")
    assert square.axes[0].get_aspect() == 1


def test_the_band_around_a_trend() -> None:
    trend = Trend("a", np.array([0.0, 1.0]), np.array([1.0, 1.0]), np.array([0.5, np.nan]))
    figure = new_figure(2, 2)
    axes = figure.subplots()
    draw_panel(axes, "score", [(trend, np.zeros(4))])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.5, 1.5)


def test_a_legend_names_what_is_drawn() -> None:
    nothing, places = np.empty(0), np.array([6.0, 8.0])
    trends = [
        Trend("not run", nothing, nothing, nothing),
        Trend("run", places, np.array([0.5, 0.6]), np.array([0.1, 0.1])),
    ]
    (legend,) = draw_trends({"score": trends, "other": trends}, "clusters", "scores").legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "run",
        "band: one deviation over seeds",
    ]
    # In the colour that it has where both are drawn.
    assert np.allclose(legend.get_lines()[0].get_color(), colours(2)[1])


# On the page of results.


def test_one_picture_of_a_run(tmp_path: Path) -> None:
    assert find_exhibit(tmp_path, "scores") is None
    save(tmp_path, every_exhibit())
    found = find_exhibit(tmp_path, "scores")
    assert found is not None
    assert found.title == "Scores"
    assert find_exhibit(tmp_path, "other") is None


def test_a_picture_of_the_first_seed_that_has_it(tmp_path: Path) -> None:
    for seed in (0, 2, 10):
        (tmp_path / f"seed-{seed}").mkdir()
    assert not list(exhibit_figures(tmp_path, "swapped", "page.png", "DRPM"))
    for seed in (2, 10):
        save(tmp_path / f"seed-{seed}", every_exhibit())
    (figure,) = exhibit_figures(tmp_path, "swapped", "page.png", "DRPM")
    assert figure.markdown == (
        "Exchanged parts: DRPM, seed 2. Two images, and what their parts make.\n\n"
        "![DRPM, seed 2](figures/page.png)"
    )
    assert figure.draw().startswith(b"\x89PNG")


@pytest.mark.parametrize("channels", [0, 1, 3])
def test_only_grey_images_have_few_colours(tmp_path: Path, channels: int) -> None:
    run = tmp_path / "seed-0"
    run.mkdir()
    shape = (2, 2, channels, 8, 8) if channels else (2, 2, 8, 8)
    images = np.random.default_rng(0).random(shape, dtype=np.float32)
    save(run, {"grid__images": images})
    (figure,) = exhibit_figures(tmp_path, "images", "page.png", "DRPM")
    with Image.open(BytesIO(figure.draw())) as picture:
        assert (picture.mode == "P") == (channels != 3)
