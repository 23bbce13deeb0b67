"""One browser for all tests of pages. A test module has the fixture `shown`, a running console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.browser.chromium import CHROMIUM, watched
from tests.console.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, shown: Site) -> Iterator[Page]:
    """A page of its own browser profile; a line in the browser's console or an alert fails the test."""
    context = browser.new_context(base_url=shown.url, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems = watched(page)
    yield page
    context.close()
    assert problems == []
