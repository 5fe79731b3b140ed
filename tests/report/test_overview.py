"""Several runs on one page: scores, means over seeds, and folders that cannot be read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drpm.report import page as pages
from drpm.report.page import write_overview, write_page
from drpm.training.errors import RunError

from .folders import CONFIG, every_array, finished_run
from .test_page import HOSTILE, Page


def make_run(path: Path, accuracy: float | None, config: str = CONFIG, **further: Any) -> Path:
    further = {"names": {"accuracy": "ACC"}, "seed": 3, **further}
    images = {"grid__images": np.zeros((1, 2, 3, 3))}
    folder = finished_run(path, images, metrics={"accuracy": accuracy}, records=[], **further)
    (folder / "config.toml").write_text(config, encoding="utf-8")
    return folder


def rows_of(page: Page) -> list[list[str]]:
    """The table of scores, row by row."""
    table = page.source.split("<table")[1].split("</table>")[0]
    rows = [row.split("</tr>")[0] for row in table.split("<tr>")[1:]]
    cells = [row.replace("</td>", "</th>").split("</th>")[:-1] for row in rows]
    return [[cell.replace("</a>", "").split(">")[-1] for cell in row] for row in cells]


@pytest.mark.usefixtures("blank_pictures")
def test_means_are_over_runs_with_the_same_settings(tmp_path: Path) -> None:
    for seed, accuracy in ((2, 0.5), (10, 0.75)):
        config = CONFIG.replace("seed = 3", f"seed = {seed}")
        make_run(tmp_path / "study" / f"seed-{seed}", accuracy, config, seed=seed)
    other = make_run(tmp_path / "other", None, CONFIG.replace("0.5", "0.25"), seed=0)
    out = tmp_path / "pages" / "all.html"
    assert write_overview([tmp_path / "study", other], out) == {}
    head, *rows = rows_of(Page(out))
    assert head == ["run", "seed", "ACC", "data.fraction", "wall time"]
    assert [row[1:4] for row in rows] == [
        ["2", "0.5000", "0.5"],
        ["10", "0.7500", "0.5"],
        ["0", "—", "0.25"],
        ["", "0.6250 ± 0.18", "0.5"],  # the deviation is 0.25 / sqrt(2)
    ]
    assert rows[-1][0] == "mean of 2 runs"


def test_pictures_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = every_array(3, (4, 4))
    clustering = finished_run(tmp_path / "a #1", arrays, records=[])
    write_page(clustering)
    other = make_run(tmp_path / "other", 0.5)  # has no page of its own
    page = tmp_path / "pages" / "all.html"
    write_overview([clustering, other], page)
    found = Page(page)
    links = [each["href"] for each in found.all("a")]
    assert links == ["#run-0", "#run-1", "../a%20%231/index.html"]
    kinds = [(each["src"] or "").partition(";")[0] for each in found.all("img")]
    assert kinds == ["data:image/svg+xml", "data:image/png"]
    assert "3 clusters, 60 examples" in found.text
    # A page of many runs stays small.
    monkeypatch.setattr(pages, "_PICTURES", 100)
    write_overview([clustering, other], page)
    assert len(Page(page).all("img")) == 0


@pytest.mark.usefixtures("blank_pictures")
def test_folders_that_cannot_be_read_do_not_stop_the_others(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good", 0.5)
    empty, cut, odd = (tmp_path / name for name in ("empty", "cut", "odd"))
    empty.mkdir()
    make_run(cut, 0.5)
    (cut / "result.json").write_text('{"metrics": {', encoding="utf-8")
    make_run(odd, 0.5, names=HOSTILE)
    arrays = make_run(tmp_path / "arrays", 0.5) / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:-50])
    page, missing = tmp_path / "all.html", tmp_path / HOSTILE
    faults = write_overview([empty, good, cut, odd, arrays.parent, missing], page)
    assert [*faults] == [str(path) for path in (empty, cut, odd, arrays.parent, missing)]
    assert "config.toml is missing" in faults[str(empty)]
    assert "is not finished" in faults[str(cut)]
    found = Page(page)
    assert all(name in found.text and reason in found.text for name, reason in faults.items())
    assert "1 run" in found.text
    assert found.all("script") == [{}]
    page.unlink()
    with pytest.raises(RunError, match=r"^No run can be read: .* config\.toml is missing\.$"):
        write_overview([empty], page)
    assert not page.exists()


def test_the_smallest_overview(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / name, metrics={}, records=[]) for name in "ab"]
    for run in runs:
        (run / "config.toml").write_text("", encoding="utf-8")
    write_overview(runs, tmp_path / "all.html")
    head, *rows = rows_of(Page(tmp_path / "all.html"))
    assert head == ["run", "seed", "wall time"]
    assert len(rows) == 3
