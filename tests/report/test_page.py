"""The page: what it says, and that nothing in it is fetched, run or taken for markup."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from drpm.clustering.experiment import THUMBNAILS
from drpm.report.page import describe_clusters, distinguishing_columns, write_page
from drpm.training.errors import RunError

from .folders import CONFIG, every_array, finished_run, write_labels

HOSTILE = "<script>alert(1)</script>"
COMPARISON = {"DRPM": {"accuracy": 0.875}, "VaDE": {"accuracy": 0.5, "nmi": None}}


class Page(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(folder: Path, **options: Any) -> Page:
    return Page(write_page(folder, **options))


def test_the_page_says_it_all(tmp_path: Path) -> None:
    folder = finished_run(
        tmp_path / "run",
        {"grid__images": np.zeros((2, 3, 4, 4)), "title__images": np.asarray("Images")},
        metrics={"accuracy": 0.875, "elbo": -10.5},
        names={"accuracy": "ACC"},
        method="DRPM",
        comparison=COMPARISON,
        about="Scores are those of the test part.",
        command=["drpm", "cluster", "my digits", "--seed", "3"],
        data={"name": "digits", "points": 1797, "shape": [8, 8]},
        wall_time=3725.4,
        device="cuda:0 (NVIDIA H200)",
        versions={"torch": "2.13.0"},
    )
    page = page_of(folder, title="Digits, clustered")
    assert (folder / "index.html").read_text(encoding="utf-8") == page.source
    results = page.text.split("Results")[2].split("Scores")[0]  # after the link to them
    assert results.split()[0] == "ACCelbonmi"
    assert results.split()[1:5] == ["DRPM", "0.8750", "-10.50", "—"]
    assert results.split()[5:] == ["VaDE", "0.5000", "—", "—"]
    for expected in (
        *("Digits, clustered", "Scores are those of the test part.", "--overwrite"),
        *("drpm cluster 'my digits' --seed 3", "1,797", "8, 8", "1:02:05"),
        *("cuda:0 (NVIDIA H200)", "2.13.0", CONFIG.strip()),
    ):
        assert expected in page.text, expected
    assert len(page.all("details")) == 1


@pytest.mark.parametrize("command", [["drpm", "factors", "--seeds", "3"], []])
def test_seeds_that_were_trained_together(tmp_path: Path, command: list[str]) -> None:
    """A run of one of them is repeated with all of them, whatever its command says."""
    stack = page_of(finished_run(tmp_path / "stack", stacked=[3, 5, 3, 5], command=command))
    assert ("--seeds 3,5" in stack.text) == bool(command)
    alone = page_of(finished_run(tmp_path / "alone", stacked=[3], command=command))
    assert "together" not in alone.text


def test_metrics_in_a_table_of_their_own(tmp_path: Path) -> None:
    folder = finished_run(
        tmp_path / "run",
        metrics={"accuracy": 0.75, "accuracy_a": 0.5, "size_a": 12.0, "accuracy_b": None},
        tables={"Parts": {"a": {"ACC": "accuracy_a", "n": "size_a"}, "b": {"ACC": "accuracy_b"}}},
    )
    page = page_of(folder)
    results = page.text.split("Results")[2].split("Parts")[0]
    assert results.split() == ["this", "run", "accuracy", "0.7500"]
    cells = page.text.split("Parts")[1].split("This run")[0]
    assert cells.split() == ["ACCn", "a", "0.5000", "12.00", "b", "—"]


def test_the_pictures_are_in_the_page(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", every_array(3, (4,)))
    page = page_of(folder)
    images = page.all("img")
    names = ("samples", "confusion", "sizes", "curves")
    for image, name in zip(images, names, strict=True):
        source = image["src"]
        assert source is not None
        head, _, content = source.partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(content) == (folder / "figures" / f"{name}.png").read_bytes()
        assert image["alt"]
        assert int(image["width"] or 0) > 100
    points = page.source.split("<svg")[1].split("</svg>")[0]
    assert points.split(">", 1)[1] in (folder / "figures" / "latent.svg").read_text("utf-8")


def cells(rows: dict[Any, dict[str, Any]], column: str) -> list[Any]:
    return [row[column] for row in rows.values()]


def test_what_was_found(tmp_path: Path) -> None:
    arrays = every_array(3, (4, 4), num_points=50)
    folder = finished_run(tmp_path / "run", arrays)
    assert "mean confidence" not in describe_clusters(folder, arrays)["found"]  # not recorded
    confidence = write_labels(folder, arrays)
    shown = describe_clusters(folder, arrays)
    sizes = arrays["sizes"]
    assert shown["found"] == {
        "clusters": 3,
        "examples": 50,
        "examples per cluster": f"{sizes.min()} to {sizes.max()}",
        "mean confidence": pytest.approx(confidence.mean()),
        "with confidence below 0.5": f"{(confidence < 0.5).mean():.1%}",
    }
    assert cells(shown["clusters"], "examples") == sizes.tolist()
    means = [confidence[arrays["latent_clusters"] == cluster].mean() for cluster in range(3)]
    assert cells(shown["clusters"], "mean confidence") == pytest.approx(means)
    most = arrays["confusion"].argmax(0)
    for text, label in zip(cells(shown["clusters"], "most common label"), most, strict=True):
        assert text.startswith(f"label {label} (")
    text = page_of(folder).text
    assert text.index("mean confidence") < text.index("Map of the codes") < text.rindex("Results")


def test_columns_that_set_a_cluster_apart() -> None:
    arrays = {
        "sizes": np.asarray([10, 30, 0]),
        "column_means": np.asarray([[1.0, 500, 2, 7], [1.0, 100, 4, 7.6], [0, 0, 0, 0]]),
        "column_deviations": np.asarray([0.0, 400, 1, 0.2]),
        "column_names": np.asarray(["constant", "large", "small", "third"]),
    }
    # In deviations, the means differ by 0, 1, 2 and 3 from that of the others.
    first, second, empty = distinguishing_columns(arrays)
    assert first == ["third ↓ 7.000 (7.450)", "small ↓ 2.000 (3.500)", "large ↑ 500.0 (200.0)"]
    assert [text.split()[1] for text in second] == ["↑", "↑", "↓"]
    assert empty == []
    alone = {name: x[:1] if name == "sizes" else x for name, x in arrays.items()}
    alone["column_means"] = arrays["column_means"][:1]
    assert distinguishing_columns(alone) == [[]]  # there are no others


@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 5), (14,)])
def test_what_the_map_tells(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = every_array(3, shape, num_points=40)
    arrays["latent_labels"][7] = -1
    arrays["examples"] = arrays["examples"][:30]  # the cap
    confidence = write_labels(finished_run(tmp_path / "run"), arrays)
    found = describe_clusters(tmp_path / "run", arrays)["map"]
    names, rows = found["facts"]["names"], found["facts"]["rows"]
    assert (len(rows), len(found["points"]), found["total"]) == (30, 30, 40)
    assert names[:4] == ["example", "cluster", "confidence", "label"]
    places = np.asarray([[point["x"], -point["y"]] for point in found["points"]])
    for row, place, point in zip(rows, places, found["points"], strict=True):
        example = int(row[0])
        assert float(row[2]) == pytest.approx(confidence[example], abs=1e-3)
        assert int(row[1]) == point["cluster"] == arrays["latent_clusters"][example]
        label = arrays["latent_labels"][example]
        assert row[3] == ("—" if label < 0 else f"label {label}")
        scaled = (place - places[0]) / 1000 * np.ptp(arrays["latent"][:30], axis=0).max()
        expected = arrays["latent"][example] - arrays["latent"][int(rows[0][0])]
        np.testing.assert_allclose(scaled, expected, atol=0.01)
        if len(shape) == 1:  # the columns in which the clusters differ most
            assert len(names) == 16
            column = int(names[9].removeprefix("column "))
            assert float(row[9]) == pytest.approx(arrays["examples"][example, column], rel=1e-3)
    if len(shape) > 1:
        sprite = found["sprite"]
        pixels = np.asarray(Image.open(BytesIO(sprite["png"])))
        height, width = shape[-2:]
        y, x = height * (8 // sprite["across"]), width * (8 % sprite["across"])
        image = arrays["examples"][int(rows[8][0])]
        image = image if image.ndim == 2 else image.transpose(1, 2, 0)
        np.testing.assert_allclose(pixels[y : y + height, x : x + width], 255 * image, atol=0.51)


def test_the_page_of_the_largest_map(tmp_path: Path) -> None:
    """Thumbnails of noise do not compress."""
    arrays = every_array(20, (3, 32, 32), num_points=THUMBNAILS // (3 * 32 * 32))
    assert write_page(finished_run(tmp_path / "run", arrays)).stat().st_size < 10_000_000


@pytest.mark.usefixtures("blank_pictures")
def test_the_smallest_page(tmp_path: Path) -> None:
    page = page_of(finished_run(tmp_path / "smallest", metrics={}, records=[]))
    assert "smallest" in page.text
    assert "fraction" in page.text  # among the settings
    assert "Results" not in page.text
    assert "command" not in page.text.replace(".command", "")
    assert not page.all("img")


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    arrays = every_array(2, (4,))
    page = page_of(finished_run(tmp_path / "run", arrays, comparison=COMPARISON))
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
    source = re.sub(r"base64,[\w+/=]+", "", page.source).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"url\(|@import|https?://", source)
    # The data of the map, and the one script that the policy allows.
    assert page.all("script") == [{"type": "application/json"}, {}]
    script = page.source.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policies = [each["content"] or "" for each in page.all("meta") if "http-equiv" in each]
    allowed = f"img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policies == [f"default-src 'none'; {allowed}"]


@pytest.mark.usefixtures("blank_pictures")
def test_names_are_no_markup(tmp_path: Path) -> None:
    arrays = every_array(2, (4,))
    arrays["label_names"] = np.asarray([HOSTILE] * 4)
    arrays["column_names"] = np.asarray([HOSTILE] * 4)
    folder = finished_run(
        tmp_path / "run",
        arrays,
        records=[{"step": 1, HOSTILE: 1.0, "stage": HOSTILE}],
        metrics={HOSTILE: 1.0, '"onload="x': 2.0},
        method=HOSTILE,
        comparison={HOSTILE: {HOSTILE: HOSTILE}},
        data={"name": HOSTILE, HOSTILE: [HOSTILE]},
        command=["drpm", "cluster", HOSTILE],
        device=HOSTILE,
        versions={HOSTILE: HOSTILE},
    )
    (folder / "config.toml").write_text(f'name = "{HOSTILE}</pre>"\n', encoding="utf-8")
    page = page_of(folder, title=HOSTILE)
    assert page.source.count("<script") == page.source.count("</script>") == 2
    assert page.source.count("alert(1)") > page.source.count("<script>alert") == 0
    assert page.text.count(HOSTILE) >= 12
    assert f"drpm cluster '{HOSTILE}'" in page.text
    assert any(HOSTILE in (image["alt"] or "") for image in page.all("img"))


@pytest.mark.parametrize(
    ("further", "arrays"),
    [
        ({"names": []}, {}),
        ({"comparison": {"a": 1}}, {}),
        ({"versions": None}, {}),
        ({"tables": {"a": {"b": 2}}}, {}),
        ({}, {"matrix__x": np.zeros(2)}),
        ({}, {"sizes": np.zeros(3)}),
        ({}, {"bars__x": np.asarray([["a"]])}),
        ({}, {"sizes": np.ones(2), "latent": np.zeros((3, 2))}),
    ],
)
def test_damaged_files_are_refused_in_one_sentence(
    tmp_path: Path, further: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> None:
    folder = finished_run(tmp_path / "run", arrays, records=[], **further)
    with pytest.raises(RunError, match=r"has a damaged result\.json, arrays\.npz or labels"):
        write_page(folder)
    (folder / "result.json").unlink()
    with pytest.raises(RunError, match=r"result\.json is missing or damaged"):
        write_page(folder)
