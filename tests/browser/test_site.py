"""The pages of the documentation site. ``make docs`` names their folder in ``DRPM_SITE``."""

import os
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page, expect

SITE = Path(os.environ.get("DRPM_SITE", "no site"))
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.glob("**/*.html"))

pytestmark = pytest.mark.skipif(not PAGES, reason="needs the site: make docs")

Open = Callable[..., Page]
WIDE = "all => all.some(x => x.checkVisibility() && x.offsetWidth > x.parentNode.clientWidth)"


class Links(HTMLParser):
    """The anchors of a page, and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.add(value)


links = cache(Links)


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    missing = []
    for target in links(SITE / name).targets:
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme in ("https", "http", "data"), target
            assert parts.scheme == "data" or parts.netloc, target
            continue
        path = (SITE / name).parent / unquote(parts.path) if parts.path else SITE / name
        is_page = path.suffix == ".html" and path.is_file()
        if not path.is_file() or (
            is_page and parts.fragment and unquote(parts.fragment) not in links(path).anchors
        ):
            missing.append(target)
    assert not missing


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(name: str, open_page: Open) -> None:
    page = open_page(SITE / name, viewport={"width": 375, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert not page.locator("article table").evaluate_all(WIDE)
    pictures = page.locator("article img")
    assert pictures.evaluate_all("all => all.every(x => (x.loading = 'eager') && x.alt)")
    assert pictures.evaluate_all("all => Promise.all(all.map(x => x.decode())).then(() => true)")


def test_search_and_keyboard(open_page: Open) -> None:
    page = open_page(SITE / "index.html", viewport={"width": 1280, "height": 800})
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Skip to content"
    page.get_by_role("textbox", name="Search").fill("Plackett")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results li").first).to_be_visible()


def test_the_explorer_is_embedded(open_page: Open) -> None:
    frame = open_page(SITE / "explore.html").frame_locator("iframe.explore")
    expect(frame.get_by_role("slider").first).to_be_visible()
