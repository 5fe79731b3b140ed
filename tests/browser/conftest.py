"""Pages in a real browser. Skipped where no Chromium is installed."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
PATIENCE = 600_000  # milliseconds, for a machine under load
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs Chromium, which is not installed")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=[*FLAGS], timeout=PATIENCE
        )
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a file, with options of a browser context such as ``viewport`` and ``color_scheme``.

    The test fails if a page reports an error or asks for anything outside of its file.
    """
    faults: list[str] = []
    contexts = []

    def open_file(path: Path, **options: Any) -> Page:
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(PATIENCE)
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on(
            "console",
            lambda message: faults.append(message.text) if message.type == "error" else None,
        )
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:"))
                else faults.append(f"request: {request.url}")
            ),
        )
        page.goto(path.resolve().as_uri())
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert faults == []
