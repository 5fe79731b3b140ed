"""The page: what it says, and that nothing in it is fetched, run or taken for markup."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from drpm.report import write_page
from drpm.training.errors import RunError

from .folders import CONFIG, every_array, finished_run

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
        {"samples": np.zeros((2, 3, 4, 4))},
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
    results = page.text.split("Results")[1].split("Scores")[0]
    assert results.split() == ["DRPMVaDE", "ACC0.87500.5000", "elbo-10.50—", "nmi——"]
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
    results = page.text.split("Results")[1].split("Training")[0]
    assert results.split() == ["this", "run", "accuracy0.7500"]
    cells = page.text.split("Parts")[1].split("This run")[0]
    assert cells.split() == ["ACCn", "a0.500012.00", "b—"]


def test_the_pictures_are_in_the_page(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", every_array(3, (4,)))
    images = page_of(folder).all("img")
    names = ("samples", "labels", "confusion", "latent", "sizes", "curves")
    for image, name in zip(images, names, strict=True):
        source = image["src"]
        assert source is not None
        head, _, content = source.partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(content) == (folder / "figures" / f"{name}.png").read_bytes()
        assert image["alt"]
        assert int(image["width"] or 0) > 100


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
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"url\(|@import|https?://", re.sub(r"base64,[\w+/=]+", "", page.source))
    policies = [each["content"] or "" for each in page.all("meta") if "http-equiv" in each]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


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
    assert "<script" not in page.source
    assert not page.all("script")
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
    ],
)
def test_damaged_files_are_refused_in_one_sentence(
    tmp_path: Path, further: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> None:
    folder = finished_run(tmp_path / "run", arrays, records=[], **further)
    with pytest.raises(RunError, match=r"has a damaged result\.json or arrays\.npz: "):
        write_page(folder)
    (folder / "result.json").unlink()
    with pytest.raises(RunError, match=r"result\.json is missing or damaged"):
        write_page(folder)
