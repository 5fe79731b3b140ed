"""The pictures: which are drawn, of what, and what is refused."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from drpm.report import write_figures
from drpm.report.arrays import Arrays, read_arrays
from drpm.report.bars import draw_sizes
from drpm.report.curves import draw_curves, read_stages
from drpm.report.images import displayable, draw_image_partition, draw_image_samples
from drpm.report.matrices import draw_confusion, matching_order
from drpm.report.points import draw_latent
from drpm.report.style import colours, label, png, reduced
from drpm.report.tables import draw_row_partition, draw_row_samples
from drpm.training.errors import RunError
from drpm.training.runs import RunFolder

from .folders import every_array, finished_run

ALL = ["samples", "partition", "latent", "confusion", "sizes", "curves"]


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


def texts(figure: Figure) -> set[str]:
    """All that is written anywhere in a figure."""
    return {text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))}


# Which pictures there are.


@pytest.mark.parametrize(
    ("shape", "num_clusters"),
    [((8, 8), 20), ((3, 8, 6), 1), ((1, 8, 6), 2), ((4,), 20), ((60,), 1)],
)
def test_all_pictures(tmp_path: Path, shape: tuple[int, ...], num_clusters: int) -> None:
    folder = finished_run(tmp_path / "run", every_array(num_clusters, shape))
    paths = write_figures(folder)
    assert names(paths) == ALL
    for path in paths:
        assert path.parent == (folder / "figures").resolve()
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_second_call_writes_the_same(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", {"sizes": np.asarray([2, 1])})
    first = {path: path.read_bytes() for path in write_figures(folder)}
    assert {path: path.read_bytes() for path in write_figures(str(folder))} == first
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "arrays.npz",
        "config.toml",
        "figures",
        "metrics.jsonl",
        "result.json",
    ]


def test_without_arrays_there_are_curves(tmp_path: Path) -> None:
    assert names(write_figures(finished_run(tmp_path / "a"))) == ["curves"]
    assert names(write_figures(finished_run(tmp_path / "b", {}))) == ["curves"]
    assert names(write_figures(finished_run(tmp_path / "c", {}, records=[]))) == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["samples"], ["samples"]),
        (["partition_points", "partition_clusters"], ["partition"]),
        (["latent", "latent_clusters"], ["latent"]),
        (["latent", "latent_clusters", "latent_labels"], ["latent"]),
        (["confusion"], ["confusion"]),
        (["sizes"], ["sizes"]),
        (["label_names", "column_names"], []),
    ],
)
def test_each_picture_by_itself(tmp_path: Path, keys: list[str], expected: list[str]) -> None:
    arrays = every_array(3, (4,))
    folder = finished_run(tmp_path / "run", {key: arrays[key] for key in keys}, records=[])
    assert names(write_figures(folder)) == expected


def test_real_images_beside_rows(tmp_path: Path) -> None:
    arrays = {
        "samples": np.zeros((3, 5, 40)),
        "examples": np.zeros((3, 2, 3, 8, 8), np.uint8),
        "num_columns": np.asarray(2048),
    }
    folder = finished_run(tmp_path / "run", arrays, records=[])
    assert names(write_figures(folder)) == ["samples", "examples"]


def test_no_points_are_no_picture(tmp_path: Path) -> None:
    arrays = every_array(3, (4,))
    for key in arrays:
        if key.startswith(("partition", "latent")):
            arrays[key] = arrays[key][:0]
    folder = finished_run(tmp_path / "run", arrays, records=[])
    assert names(write_figures(folder)) == ["samples", "confusion", "sizes"]


def test_pictures_with_nothing_behind_them_go_and_others_stay(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", {"sizes": np.asarray([2, 1])})
    write_figures(folder)
    (folder / "figures" / "mine.png").write_bytes(b"mine")
    (folder / "arrays.npz").unlink()
    write_figures(folder)
    assert sorted(path.name for path in (folder / "figures").iterdir()) == [
        "curves.png",
        "mine.png",
    ]


def test_other_arrays_are_left_alone(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", {"weights": np.zeros(3), "sizes": np.asarray([2, 1])})
    assert names(write_figures(folder)) == ["sizes", "curves"]


# Refusals.


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", "")
    for content in (None, "{"):
        if content is not None:
            run.result_path.write_text(content, encoding="utf-8")
        with pytest.raises(RunError, match=r"is not finished: its result\.json is missing or dam"):
            write_figures(run.path)
    with pytest.raises(RunError, match="holds no run"):
        write_figures(tmp_path)


def test_a_run_in_use_is_refused(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run")
    with RunFolder.open(folder).lock(), pytest.raises(RunError, match="is in use by process"):
        write_figures(folder)


def damaged_archives(whole: bytes) -> dict[str, bytes]:
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    return {
        "empty": b"",
        "text": b"not an archive",
        "cut": whole[: len(whole) // 2],
        "flipped": bytes(flipped),
    }


@pytest.mark.parametrize("way", ["empty", "text", "cut", "flipped", "npy", "objects", "folder"])
def test_a_damaged_archive_is_one_sentence(tmp_path: Path, way: str) -> None:
    folder = finished_run(tmp_path / "run", every_array(3, (4,)))
    path = folder / "arrays.npz"
    if way == "npy":
        with open(path, "wb") as file:
            np.save(file, np.zeros(3))
    elif way == "objects":
        np.savez(path, sizes=np.asarray([{}], dtype=object))
    elif way == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(damaged_archives(path.read_bytes())[way])
    message = f"The file {path} cannot be read as an archive of plain arrays; write it again"
    with pytest.raises(RunError, match=f"^{re.escape(message)}[^\n]*\\.$"):
        write_figures(folder)
    assert not (folder / "figures").exists()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"samples": np.zeros((3, 2))}, "samples must be numbers (K, m, *shape)"),
    ({"samples": np.zeros((3, 0, 4))}, "none of them zero, but is 3x0x4 of type float64"),
    ({"samples": np.full((3, 2, 4), np.nan)}, "samples must be finite"),
    ({"samples": np.zeros((3, 2, 2, 8, 8))}, "images of samples must have one or three channels"),
    ({"samples": np.zeros((3, 2, 5))}, "must have one shape, but have (5,) and (4,)"),
    ({"samples": np.zeros((2, 2, 4))}, "must be the same everywhere, but is 2 in samples and 3"),
    ({"samples": np.asarray([[["a"]]])}, "samples must be numbers"),
    ({"partition_clusters": None}, "partition_points comes without partition_clusters"),
    ({"partition_points": None}, "partition_clusters comes without partition_points"),
    ({"partition_clusters": np.zeros(5, int)}, "each of the 60 points of partition_points, but"),
    ({"partition_clusters": np.full(60, 3)}, "must be from 0 to 2, but reaches from 3 to 3"),
    ({"latent_clusters": np.full(60, -1)}, "latent_clusters must be from 0 to 2"),
    ({"latent_clusters": np.zeros(60)}, "latent_clusters must be whole numbers (N,), but is 60"),
    ({"latent": np.zeros((60, 3))}, "latent must be numbers (N, 2), but is 60x3"),
    ({"latent_labels": np.zeros(5, int)}, "latent_labels must have one entry for each of the 60"),
    ({"latent_labels": np.full(60, -2)}, "latent_labels must be at least -1, but has -2"),
    ({"latent_labels": np.full(60, 4)}, "latent_labels has a 4, but label_names has 4 names"),
    ({"latent_labels": np.full(60, 10**9)}, "latent_labels must be below 10,000"),
    ({"latent": None, "latent_clusters": None}, "latent_labels comes without latent"),
    ({"confusion": np.zeros(3)}, "confusion must be counts (L, K)"),
    ({"confusion": np.full((4, 3), -1)}, "confusion must be counts, but has negative entries"),
    ({"label_names": np.asarray(["a"])}, "one name for each of the 4 rows of confusion"),
    ({"label_names": np.arange(4)}, "label_names must be a list of strings"),
    ({"sizes": np.asarray(3)}, "sizes must be counts (K,), but is a single number"),
    ({"column_names": np.asarray(["a"])}, "one name for each of the 4 columns, but has 1"),
    ({"num_columns": np.asarray(3)}, "num_columns must be at least 4, but is 3"),
    ({"num_columns": np.asarray([9])}, "num_columns must be one whole number, but is 1 of type"),
    ({"examples": np.zeros((3, 2, 8))}, "examples must be images (K, m, *shape)"),
    ({"examples": np.zeros((3, 2, 2, 8, 8))}, "images of examples must have one or three channels"),
    ({"examples": np.zeros((2, 2, 8, 8))}, "but is 3 in samples and 2 in examples"),
]


@pytest.mark.parametrize(("changes", "complaint"), BAD)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, NDArray[Any] | None], complaint: str
) -> None:
    arrays: dict[str, Any] = every_array(3, (4,)) | changes
    if complaint.startswith("one name for each of the 4 rows"):
        del arrays["latent_labels"]
    if complaint.startswith("images"):
        del arrays["partition_points"], arrays["partition_clusters"]
    np.savez(
        tmp_path / "arrays.npz",
        allow_pickle=False,
        **{key: value for key, value in arrays.items() if value is not None},
    )
    with pytest.raises(RunError, match=re.escape(complaint)) as refusal:
        read_arrays(tmp_path)
    assert str(refusal.value).startswith(f"In the file {tmp_path / 'arrays.npz'}, ")
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


# What the pictures show.


def test_images_of_any_range_and_type_are_displayed() -> None:
    whole = np.asarray([[[0, 255]]], np.uint8)
    assert displayable(whole).tolist() == [[[[0.0] * 3, [1.0] * 3]]]
    # Within the usual range nothing is stretched, outside everything is.
    assert displayable(np.asarray([[[0.2, 0.4]]])).ravel() == pytest.approx([0.2] * 3 + [0.4] * 3)
    assert displayable(np.asarray([[[-1.0, 1.0]]])).ravel().tolist() == [0.0] * 3 + [1.0] * 3
    assert displayable(np.full((1, 2, 2), 7.0)).max() == 0
    colour = np.arange(12).reshape(1, 3, 2, 2) / 12
    assert displayable(colour)[0, 1, 0] == pytest.approx(colour[0, :, 1, 0])


def test_samples_stand_in_the_row_of_their_cluster() -> None:
    # Cluster k is all of grey k / 4, so that the middle of each row tells where it is.
    samples = np.ones((4, 5, 14, 14)) * np.arange(4)[:, None, None, None] / 4
    axes = draw_image_samples(samples).axes[0]
    canvas = np.asarray(axes.images[0].get_array())
    assert canvas.shape == (4 * 15 - 1, 5 * 15 - 1, 3)
    for place, tick in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        cluster = int(tick.get_text().removeprefix("cluster "))
        assert canvas[round(place), 7, 0] == pytest.approx(cluster / 4)


def test_all_of_32_samples_are_shown() -> None:
    for count, shown in ((32, 32), (40, 32)):
        canvas = draw_image_samples(np.zeros((20, count, 28, 28), np.uint8)).axes[0].images[0]
        assert np.asarray(canvas.get_array()).shape == (20 * 30 - 2, shown * 30 - 2, 3)


def test_few_colours_make_a_small_file() -> None:
    from PIL import Image

    samples = np.random.default_rng(0).random((20, 32, 14, 14))
    whole = png(draw_image_samples(samples))
    small = reduced(whole)
    assert len(small) < 0.6 * len(whole)
    assert reduced(whole) == small
    pictures = [Image.open(io.BytesIO(each)).convert("RGB") for each in (whole, small)]
    assert pictures[0].size == pictures[1].size
    before, after = (np.asarray(picture).astype(int) for picture in pictures)
    # Greys come together, but the colour of every cluster stays as it is.
    assert np.abs(before - after).max() < 40
    for colour in (255 * colours(20)).round().astype(int):
        assert np.abs(after - colour).sum(-1).min() < 12


def test_a_row_of_a_partition_is_as_long_as_the_cluster_is_large() -> None:
    clusters = np.asarray([2, 0, 2, 2, 0])
    figure = draw_image_partition(np.zeros((5, 14, 14)), clusters, 4)
    axes = figure.axes[0]
    canvas = np.asarray(axes.images[0].get_array())
    dark = [int((canvas[round(place), :, 0] == 0).sum()) // 14 for place in axes.get_yticks()]
    assert dark == [2, 0, 3, 0]
    assert {"cluster 0 (2)", "cluster 1 (0)", "cluster 2 (3)", "cluster 3 (0)"} <= texts(figure)


def test_a_large_cluster_goes_on_in_further_rows_up_to_a_limit() -> None:
    clusters = np.concatenate((np.zeros(500, int), np.ones(3, int)))
    figure = draw_image_partition(np.zeros((503, 3, 4, 4)), clusters, 2)
    assert any("at most 96 shown of a cluster" in text for text in texts(figure))
    assert {"cluster 0 (500)", "cluster 1 (3)"} <= texts(figure)
    assert np.asarray(figure.axes[0].images[0].get_array()).shape[0] == 4 * 4 + 2 + 3


def test_very_many_clusters_and_large_images_still_make_a_picture() -> None:
    figure = draw_image_samples(np.zeros((70, 2, 1, 300, 200), np.float32))
    assert any("the first 50 of 70" in text for text in texts(figure))
    assert np.asarray(figure.axes[0].images[0].get_array()).shape[1] < 250


def test_the_partition_of_a_table_is_sorted_and_measured() -> None:
    rows = np.asarray([[3.0, 1.0], [1.0, 1.0], [3.0, 1.0], [1.0, 1.0]])
    figure = draw_row_partition(rows, np.asarray([1, 0, 1, 0]), 3, ["size", "constant"])
    bar, heat = figure.axes[:2]
    assert [patch.get_height() for patch in bar.patches] == [2, 2, 0]
    assert np.asarray(heat.images[0].get_array()).tolist() == [[-1, 0], [-1, 0], [1, 0], [1, 0]]
    assert {"size", "constant", "cluster 0 (2)", "cluster 1 (2)"} <= texts(figure)


def test_the_columns_of_a_table_are_named_in_panels_or_become_a_heat_map() -> None:
    few = draw_row_samples(np.zeros((3, 5, 4)), ["a", "b", "c", "d"])
    assert {"a", "b", "c", "d", "cluster 2"} <= texts(few)
    many = draw_row_samples(np.zeros((3, 5, 100)), [str(index) for index in range(100)])
    assert {"100 columns", "cluster 2"} <= texts(many)
    assert np.asarray(many.axes[0].images[0].get_array()).shape == (3, 100)
    chosen = draw_row_samples(np.zeros((3, 5, 40)), [str(index) for index in range(40)], 2048)
    assert any("(40 telling columns of 2,048)" in text for text in texts(chosen))


def test_the_columns_of_the_confusion_follow_the_best_matching() -> None:
    generator = np.random.default_rng(1)
    for num_labels, num_clusters in ((4, 4), (3, 6), (6, 3), (1, 1)):
        counts = generator.integers(50, size=(num_labels, num_clusters))
        order = matching_order(counts)
        assert sorted(order) == list(range(num_clusters))
        rows, columns = linear_sum_assignment(-counts)
        matched = [column for _, column in sorted(zip(rows, columns, strict=True))]
        assert order[: len(matched)] == matched
    assert matching_order(np.asarray([[0, 5, 1], [7, 0, 2]])) == [1, 0, 2]


def test_the_confusion_shows_counts_and_shares() -> None:
    counts = np.asarray([[0, 30, 10], [1234, 0, 0], [0, 0, 0]])
    names = np.asarray(["cat", "dog", "nobody"])
    figure = draw_confusion(Arrays(confusion=counts, label_names=names))
    assert {"30", "10", "1,234", "cat", "dog", "nobody"} <= texts(figure)
    assert "Labels and clusters: 99.2% on matching pairs" in texts(figure)
    shares = np.asarray(figure.axes[0].images[0].get_array())
    assert shares.tolist() == [[0.75, 0, 0.25], [0, 1, 0], [0, 0, 0]]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1", "0", "2"]
    assert png(draw_confusion(Arrays(confusion=np.zeros((150, 200), int))))


def test_the_latent_space_has_a_panel_for_labels_where_there_are_some() -> None:
    arrays = every_array(20, (4,), num_points=200)
    chosen = {key: value for key, value in arrays.items() if key.startswith("latent")}
    both = draw_latent(Arrays(**chosen, label_names=arrays["label_names"]))
    assert len(both.axes) == 2
    legend = both.axes[0].get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 20
    assert "label 3" in texts(both)
    del chosen["latent_labels"]
    assert len(draw_latent(Arrays(**chosen)).axes) == 1


def test_a_label_has_the_colour_of_its_cluster_and_an_unknown_one_is_grey() -> None:
    clusters = np.asarray([0, 0, 1, 1, 2, 2])
    labels = np.asarray([2, 2, 0, 0, -1, -1])
    points = np.arange(12.0).reshape(6, 2)
    figure = draw_latent(Arrays(latent=points, latent_clusters=clusters, latent_labels=labels))
    by_cluster, by_label = (axes.collections[0] for axes in figure.axes)
    found = [
        {
            float(x): tuple(colour[:3])
            for (x, _), colour in zip(dots.get_offsets(), dots.get_facecolor(), strict=True)
        }
        for dots in (by_cluster, by_label)
    ]
    for x in (0.0, 2.0, 4.0, 6.0):
        assert found[0][x] == found[1][x]
    assert len(set(found[1][8.0])) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_points_on_top_of_each_other_are_drawn(count: int) -> None:
    arrays = Arrays(latent=np.zeros((count, 2)), latent_clusters=np.zeros(count, int))
    assert png(draw_latent(arrays))


def test_colours_are_told_apart() -> None:
    for count in (1, 10, 20, 40):
        assert len(np.unique(colours(count), axis=0)) == count
    assert np.array_equal(colours(20)[:10], colours(10))


def test_sizes_are_written_on_the_bars() -> None:
    assert {"1,200", "0", "3.5"} <= texts(draw_sizes(np.asarray([1200, 0, 3.5])))
    assert png(draw_sizes(np.zeros(1)))
    assert png(draw_sizes(np.arange(60)))


# Curves.


def test_stages_are_read_apart() -> None:
    records: list[dict[str, Any]] = [
        {"stage": "pretraining", "step": 1, "epoch": 0.5, "loss": 3.0, "wall_time": 1.0},
        {"stage": "pretraining", "step": 2, "epoch": 1.0, "loss": None, "wall_time": 2.0},
        {"phase": "training", "step": 1, "loss": 2, "kl": 1.0, "note": "text", "best": True},
        {"phase": "training", "step": 2, "loss": 1},
        {"stage": "evaluation", "note": "no numbers"},
    ]
    pretraining, training = read_stages(records)
    assert (pretraining.name, pretraining.unit) == ("pretraining", "epoch")
    assert [curve.term for curve in pretraining.curves] == ["loss"]
    assert pretraining.curves[0].places.tolist() == [0.5, 1.0]
    np.testing.assert_array_equal(pretraining.curves[0].values, [3.0, np.nan])
    assert (training.name, training.unit) == ("training", "step")
    assert [curve.term for curve in training.curves] == ["loss", "kl"]
    assert {"pretraining", "training", "epoch", "step", "kl"} <= texts(
        draw_curves([pretraining, training])
    )


def test_means_over_few_steps_are_joined() -> None:
    """Epochs of ten steps; the third was cut off after two, and saved after three more."""
    steps, losses = [10, 20, 22, 25, 30, 40, 43], [4.0, 3.0, 0.5, 1.0, 2.0, 2.0, 9.0]
    records: list[dict[str, Any]] = [
        {"step": step, "epoch": step / 10, "loss": loss, "kl": 7.0}
        for step, loss in zip(steps, losses, strict=True)
    ]
    # A look at the test part is no mean, however close it is to another.
    records.insert(2, {"step": 20, "epoch": 2, "test_accuracy": 0.5})
    records.append({"step": 43, "epoch": 4.3, "test_accuracy": 0.7})
    (stage,) = read_stages(records)
    loss, kl, accuracy = stage.curves
    assert loss.places.tolist() == [1, 2, 3, 4.3]
    third, last = (2 * 0.5 + 3 * 1.0 + 5 * 2.0) / 10, (10 * 2.0 + 3 * 9.0) / 13
    assert loss.values == pytest.approx([4, 3, third, last])
    assert kl.values == pytest.approx([7] * 4)
    assert accuracy.places.tolist() == [2, 4.3]
    assert accuracy.values.tolist() == [0.5, 0.7]


def test_what_was_not_finite_stays_so() -> None:
    records = [{"step": 10, "loss": 1.0}, {"step": 12, "loss": None}, {"step": 20, "loss": 1.0}]
    (stage,) = read_stages([*records, {"step": 30, "loss": 3.0}])
    np.testing.assert_array_equal(stage.curves[0].values, [1, np.nan, 3])


def test_records_without_a_place_are_numbered() -> None:
    (stage,) = read_stages([{"loss": 1.0}, {"loss": 2.0}])
    assert (stage.name, stage.unit) == ("", "record")
    assert stage.curves[0].places.tolist() == [1, 2]


def test_curves_of_all_kinds_are_drawn() -> None:
    records = [
        {"step": step, "wide": 10.0**-step, "flat": 1.0, "never": None, "of_large": -1e9 * step}
        for step in range(1, 40)
    ]
    figure = draw_curves(read_stages(records))
    assert {"wide (log scale)", "flat", "never (never finite)", "of large"} <= texts(figure)
    assert png(figure)
    assert png(draw_curves(read_stages([{"step": 1, "once": 0.0}])))


def test_very_many_terms_are_cut() -> None:
    stages = read_stages([{"stage": f"{s}"} | {f"t{t}": 1.0 for t in range(30)} for s in range(3)])
    figure = draw_curves(stages)
    panels = [axes for part in figure.subfigs for axes in part.axes if axes.get_visible()]
    assert len(panels) == 45


# Names from outside.


def test_names_are_drawn_as_they_are() -> None:
    assert label("a\n b") == "a b"
    assert label("x" * 30) == "x" * 19 + "…"
    hostile = ["$\\frac{1$", "$x$", "a\nb\tc", "数据", "<b>", "%s {0} \\"]
    samples = np.random.default_rng(0).random((2, 3, len(hostile)))
    assert png(draw_row_samples(samples, hostile))
    confusion = Arrays(confusion=np.eye(6, dtype=int), label_names=np.asarray(hostile))
    assert png(draw_confusion(confusion))
    assert png(draw_curves(read_stages([dict.fromkeys(hostile, 1.0)])))
