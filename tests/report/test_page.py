"""The page: what it says, and that nothing in it is fetched, run or taken for markup."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drpm.report import write_page
from drpm.report.numbers import format_values
from drpm.training.errors import RunError

from .folders import CONFIG, every_array, finished_run

HOSTILE = "<script>alert(1)</script>"
COMPARISON = {"DRPM": {"accuracy": 0.875}, "VaDE": {"accuracy": 0.5, "nmi": None}}


class Page(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    VOID = ("meta", "img")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(self.source)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(folder: Path, **options: Any) -> Page:
    return Page(write_page(folder, **options))


def test_the_page_says_it_all(tmp_path: Path) -> None:
    folder = finished_run(
        tmp_path / "run",
        {"sizes": np.asarray([3, 1])},
        comparison=COMPARISON,
        command="drpm cluster digits --seed 3",
        data={"name": "digits", "points": 1797, "shape": [8, 8]},
        wall_time=3725.4,
        device="cuda:0 (NVIDIA H200)",
        versions={"torch": "2.13.0"},
    )
    page = page_of(folder, title="Digits, clustered")
    assert (folder / "index.html").read_text(encoding="utf-8") == page.source
    for expected in (
        *("DRPM", "VaDE", "accuracy", "0.8750", "0.5000", "nmi"),
        "Digits, clustered",
        "drpm cluster digits --seed 3",
        "1,797",
        "8, 8",
        "1:02:05",
        "cuda:0 (NVIDIA H200)",
        "2.13.0",
        CONFIG.strip(),
    ):
        assert expected in page.text, expected
    assert len(page.all("details")) == 1
    assert "this run" not in page.text  # it is one of the methods


def test_metrics_by_the_names_that_the_result_gives(tmp_path: Path) -> None:
    folder = finished_run(
        tmp_path / "run",
        metrics={"nmi": 0.25, "lower_bound": -3.5},
        names={"nmi": "NMI", "ari": "ARI"},
        method="VaDE",
        about="Scores are those of the test part.",
        command=["drpm", "cluster", "digits"],
    )
    page = page_of(folder)
    for expected in ("NMI", "lower_bound", "VaDE", "Scores are those of the test part."):
        assert expected in page.text, expected
    for other in ("nmi", "ARI", "this run"):
        assert other not in page.text.partition("This run")[0], other
    assert "--overwrite" in page.text


@pytest.mark.parametrize("command", [["drpm", "factors", "--seeds", "3"], None])
def test_seeds_that_were_trained_together(tmp_path: Path, command: list[str] | None) -> None:
    """A run of one of them is repeated with all of them, whatever its command says."""
    given = {} if command is None else {"command": command}
    stack = page_of(finished_run(tmp_path / "stack", stacked=[3, 5, 3, 5], **given))
    assert ("--seeds 3,5" in stack.text) == bool(command)
    alone = page_of(finished_run(tmp_path / "alone", stacked=[3], **given))
    assert "together" not in alone.text


def test_metrics_in_a_table_of_their_own(tmp_path: Path) -> None:
    folder = finished_run(
        tmp_path / "run",
        metrics={"accuracy": 0.75, "accuracy_a": 0.5, "size_a": 12.0, "accuracy_b": 1.0},
        tables={"Parts": {"a": {"ACC": "accuracy_a", "n": "size_a"}, "b": {"ACC": "accuracy_b"}}},
    )
    page = page_of(folder)
    results = page.text.split("Results")[1].split("Training")[0]
    assert results.split() == ["metricthis", "run", "accuracy0.7500"]
    cells = page.text.split("Parts")[1].split("This run")[0]
    assert cells.split() == ["ACCn", "a0.50012.00", "b1.000—"]


def test_the_pictures_are_in_the_page(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", every_array(3, (4,)))
    page = page_of(folder)
    images = page.all("img")
    assert len(images) == 6
    names = ("samples", "partition", "latent", "confusion", "sizes", "curves")
    for image, name in zip(images, names, strict=True):
        source = image["src"]
        assert source is not None
        head, _, content = source.partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(content) == (folder / "figures" / f"{name}.png").read_bytes()
        assert image["alt"]
        assert int(image["width"] or 0) > 100


def test_the_smallest_page(tmp_path: Path) -> None:
    page = page_of(finished_run(tmp_path / "smallest", metrics={}, records=[]))
    assert "smallest" in page.text
    assert "fraction" in page.text  # among the settings
    assert "Results" not in page.text
    assert "command" not in page.text.replace(".command", "")
    assert not page.all("img")


def test_the_second_call_writes_the_same(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run", every_array(2, (8, 8)))
    first = write_page(folder).read_bytes()
    assert write_page(str(folder)).read_bytes() == first


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    arrays = {"sizes": np.asarray([3, 1])}
    page = page_of(finished_run(tmp_path / "run", arrays, comparison=COMPARISON))
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", page.source)
    assert not re.search(r"url\(|@import|https?://", re.sub(r"base64,[\w+/=]+", "", page.source))
    policies = [each["content"] or "" for each in page.all("meta") if "http-equiv" in each]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_names_are_no_markup(tmp_path: Path) -> None:
    arrays = every_array(2, (4,))
    arrays["label_names"] = np.asarray([HOSTILE] * 4)
    arrays["column_names"] = np.asarray([HOSTILE] * 4)
    folder = finished_run(
        tmp_path / "run",
        arrays,
        records=[{"step": 1, HOSTILE: 1.0, "stage": HOSTILE}],
        metrics={HOSTILE: 1.0, '"onload="x': 2.0},
        comparison={HOSTILE: {HOSTILE: HOSTILE}},
        data={"name": HOSTILE, HOSTILE: [HOSTILE]},
        command=f"drpm cluster '{HOSTILE}'",
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


def test_a_description_may_be_a_sentence_and_a_command_its_words(tmp_path: Path) -> None:
    folder = finished_run(
        tmp_path / "run", data="Small images of digits.", command=["drpm", "my file"]
    )
    page = page_of(folder)
    assert "Small images of digits." in page.text
    assert "drpm 'my file'" in page.text


@pytest.mark.parametrize(
    "further",
    [
        {"metrics": 3},
        {"comparison": {"a": 1}},
        {"comparison": []},
        {"versions": None},
        {"names": []},
        {"tables": {"a": 1}},
        {"tables": {"a": {"b": 2}}},
    ],
)
def test_a_damaged_result_is_one_sentence(tmp_path: Path, further: dict[str, Any]) -> None:
    folder = finished_run(tmp_path / "run", {}, records=[])
    result = json.loads((folder / "result.json").read_bytes())
    (folder / "result.json").write_text(json.dumps(result | further), encoding="utf-8")
    with pytest.raises(RunError, match=r"result\.json is damaged: "):
        write_page(folder)
    (folder / "result.json").write_text("[]", encoding="utf-8")
    with pytest.raises(RunError, match=r"result\.json is missing or damaged"):
        write_page(folder)


def test_settings_that_are_no_text_are_one_sentence(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run")
    (folder / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match=r"a damaged config\.toml, which is not text in UTF-8"):
        write_page(folder)
    (folder / "config.toml").write_text("no toml", encoding="utf-8")
    assert "no toml" in page_of(folder).text


# Numbers.


def test_the_run_is_found_among_the_methods(tmp_path: Path) -> None:
    metrics = {"accuracy": 0.875, "test": {"elbo": -10.5}}
    page = page_of(finished_run(tmp_path / "a", metrics=metrics, comparison=COMPARISON))
    results = page.text.split("Results")[1].split("Training")[0]
    assert results.split() == [
        "metricDRPMVaDE",
        "accuracy0.87500.5000",
        "test.elbo-10.50—",
        "nmi——",
    ]
    page = page_of(finished_run(tmp_path / "b", metrics={"accuracy": 0.6}, comparison=COMPARISON))
    assert "metricthis runDRPMVaDE" in page.text


def test_numbers_line_up() -> None:
    assert format_values([0.5, 0.12345]) == ["0.5000", "0.1235"]
    assert format_values([12345.678, 1.0]) == ["12,346", "1"]
    assert format_values([1e-9, 1e-12]) == ["1e-09", "1e-12"]
    assert format_values([0.0, None, True, 1200, "x"]) == ["0", "—", "yes", "1,200", "x"]
    assert format_values([float("nan"), float("inf")]) == ["nan", "inf"]
