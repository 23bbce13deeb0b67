"""Debian's chromium for the tests of pages, and what it complains about."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.console import axe

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium"),
]


def watched(page: Page) -> list[str]:
    """The list that gets every error of the browser's console and every alert of a page."""
    problems: list[str] = []

    def said(message: Any) -> None:
        # The browser reports every answer with 4xx, such as that about a topic that does not exist.
        if message.type in ("error", "warning") and "a status of 4" not in message.text:
            problems.append(f"{page.url}: {message.text}")

    page.on("console", said)
    page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
    page.on("dialog", lambda dialog: (problems.append(f"{page.url}: {dialog.message}"), dialog.dismiss()))
    return problems


def faults_of(page: Page, path: str) -> list[str]:
    """What is wrong with an open page: wider than the window, or serious faults of accessibility by axe."""
    if not axe.SCRIPT.is_file():
        pytest.skip("needs axe-core, which `make test-browser` fetches by npm")
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    too_wide = [f"{path} is {wide} pixels wider than the window"] if wide > 0 else []
    page.add_script_tag(path=str(axe.SCRIPT))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return too_wide + [
        f"{path}: {fault['id']}: {node['html'][:150]} {node['failureSummary'][:300]}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
