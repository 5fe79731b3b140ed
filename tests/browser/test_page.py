"""The pages of runs in a browser: tables, pictures and the map, by pointer and by keyboard."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from drpm.report.page import write_overview, write_page
from tests.report.folders import every_array, finished_run, write_labels

Open = Callable[..., Page]

COMPARISON = {
    "DRPM-VC": {"accuracy": 0.75},
    "VaDE": {"accuracy": 0.5},
    "k-means": {"accuracy": None},
}


def make_run(folder: Path, shape: tuple[int, ...]) -> Path:
    arrays = every_array(4, shape, num_points=30)
    metrics = {"accuracy": 0.75}
    run = finished_run(folder, arrays, metrics=metrics, method="DRPM-VC", comparison=COMPARISON)
    write_labels(run, arrays)
    write_page(run)
    return run


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("page") / "images", (6, 6))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("page") / "rows", (5,))


def column(page: Page, section: str, place: int) -> list[str]:
    cells = page.locator(f"section:has(#{section}) tbody tr > :nth-child({place})")
    return [text.strip() for text in cells.all_inner_texts()]


def assert_shown_without_scrolling(page: Page, cells: str, least: int = 1) -> None:
    fits = f"x => x.clientWidth >= {least} && x.getBoundingClientRect().right <= innerWidth"
    assert page.locator(cells).evaluate_all(f"all => all.length && all.every({fits})")


def told(page: Page) -> dict[str, str]:
    """What the page tells about the chosen example."""
    names, values = (page.locator(f".example {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_tables_sort(images: Path, open_page: Open) -> None:
    page = open_page(images / "index.html")
    heading = page.locator("section:has(#clusters) th", has_text="examples")
    before = column(page, "clusters", 2)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, "clusters", 2) == sorted(before, key=int)
    # By keyboard; missing values stay at the end.
    scores = page.locator("section:has(#results) th", has_text="accuracy")
    scores.get_by_role("button").focus()
    for order, expected in (
        ("ascending", ["VaDE", "DRPM-VC"]),
        ("descending", ["DRPM-VC", "VaDE"]),
    ):
        page.keyboard.press("Enter")
        assert scores.get_attribute("aria-sort") == order
        assert column(page, "results", 1) == [*expected, "k-means"]
    assert page.locator("[aria-sort]").count() == 2  # one for each table


def test_pictures_enlarge(images: Path, open_page: Open) -> None:
    page = open_page(images / "index.html")
    button = page.get_by_role("button", name="Enlarge").first
    shown = button.locator("img").bounding_box()
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    large = dialog.locator("img").bounding_box()
    assert shown is not None
    assert large is not None
    assert large["width"] > shown["width"]
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert button.evaluate("button => button === document.activeElement")
    button.click()
    dialog.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_the_example_under_the_pointer(
    kind: str, request: pytest.FixtureRequest, open_page: Open
) -> None:
    run = request.getfixturevalue(kind)
    page = open_page(run / "index.html")
    point = page.locator(".map circle:not(.ring)").nth(7)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    example = page.locator(".example input").input_value()
    found = told(page)
    _, _, cluster, confidence = (
        (run / "labels.csv").read_text().splitlines()[int(example) + 1].split(",")
    )
    assert found["cluster"] == cluster
    assert float(found["confidence"]) == pytest.approx(float(confidence), abs=1e-3)
    assert f"cluster-{cluster}" in (point.get_attribute("class") or "")
    ring = page.locator(".map .ring")
    assert ring.get_attribute("cx") == point.get_attribute("cx")
    assert page.get_by_alt_text(f"Example {example}").is_visible() == (kind == "images")
    assert all(page.locator("img").evaluate_all("all => all.map(x => x.alt)"))
    assert ("column 0" in found) == (kind == "rows")


def test_the_map_by_keyboard(rows: Path, open_page: Open) -> None:
    page = open_page(rows / "index.html", reduced_motion="reduce")
    page.locator(".codes svg").focus()
    ring, field = page.locator(".map .ring"), page.locator(".example input")

    def place() -> tuple[int, int]:
        return int(ring.get_attribute("cx") or 0), int(ring.get_attribute("cy") or 0)

    places = [
        [int(c.get_attribute(a) or 0) for a in ("cx", "cy")]
        for c in page.locator(".map circle:not(.ring)").all()
    ]
    for key, axis, sign in (
        ("ArrowLeft", 0, -1),
        ("ArrowRight", 0, 1),
        ("ArrowDown", 1, 1),
        ("ArrowUp", 1, -1),
    ):
        before = place()
        page.keyboard.press(key)
        after = place()
        assert sign * (after[axis] - before[axis]) >= abs(after[1 - axis] - before[1 - axis])
        # It stays only where no point lies in that direction.
        ahead = [
            sign * (x[axis] - before[axis]) > abs(x[1 - axis] - before[1 - axis]) for x in places
        ]
        assert (after != before) == any(ahead)
    field.fill("12")
    assert told(page)["cluster"] == (rows / "labels.csv").read_text().splitlines()[13].split(",")[2]
    page.locator("#show-label-2").focus()
    page.keyboard.press("Space")
    for point in page.locator(".map circle:not(.ring)").all():
        opacity = point.evaluate("x => getComputedStyle(x).opacity")
        assert (opacity == "1") == ("label-2" in (point.get_attribute("class") or ""))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["images", "rows"])
def test_a_narrow_page(
    kind: str, scheme: str, request: pytest.FixtureRequest, open_page: Open
) -> None:
    run = request.getfixturevalue(kind)
    size = {"width": 375, "height": 800}
    page = open_page(
        run / "index.html", viewport=size, color_scheme=scheme, reduced_motion="reduce"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    cells, least = (".text", 300) if kind == "rows" else ("tr > :last-child", 60)
    assert_shown_without_scrolling(page, f"#clusters + .wide {cells}", least)
    red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert (int(red) < 50) == (scheme == "dark")
    durations = page.locator(".map circle").first.evaluate(
        "x => getComputedStyle(x).transitionDuration"
    )
    assert durations == "0s"


def test_without_javascript(images: Path, open_page: Open) -> None:
    page = open_page(images / "index.html", java_script_enabled=False)
    assert page.locator(".map circle").count() == 30
    assert not page.locator(".example").is_visible()
    assert page.locator("figure img").count() == 5
    assert page.get_by_role("button").count() == 0


@pytest.mark.parametrize("width", [375, 1280])
def test_several_runs(
    images: Path, rows: Path, open_page: Open, tmp_path: Path, width: int
) -> None:
    out = tmp_path / "all.html"
    write_overview([images, rows, tmp_path / "none"], out)
    page = open_page(out, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert_shown_without_scrolling(page, "section:has(#scores) :is(th, td)")
    assert page.get_by_text("config.toml is missing").is_visible()
    assert page.locator("figure img").evaluate_all("all => all.every(x => x.clientWidth > 100)")
    page.get_by_role("button", name="run").first.click()
    page.get_by_role("link", name="Page of this run").first.click()
    expect(page.locator(".codes svg")).to_be_visible()
