"""Pipelines, and the list of all clusters, in a real browser: both themes and a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM, faults_of, watched
from tests.console.piped import HOSTILE, piped_site
from tests.console.site import Site
from tidelog.console.clusters import Cluster, Clusters
from tidelog.console.server import ConsoleServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = NEEDS_CHROMIUM
HERE = "/clusters/local"
PAGES = (
    HERE,
    f"{HERE}/pipelines",
    f"{HERE}/pipelines/0/runs/earnings",
    f"{HERE}/pipelines/0/runs/rings",
    f"{HERE}/pipelines/0/tables",
    f"{HERE}/pipelines/0/tables/logins",
    f"{HERE}/pipelines/0/alerts",
    f"{HERE}/pipelines/0/alerts?alert=a1",
    f"{HERE}/pipelines/1/tables",
)
LOOKS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with piped_site(tmp_path_factory.mktemp("pipelines")) as site:
        yield site


@pytest.fixture(scope="module")
def side_by_side(shown: Site) -> Iterator[str]:
    """The address of a console of three clusters, one of which does not answer."""

    def clusters() -> Clusters:
        here = {"bootstrap.servers": shown.broker.bootstrap_servers}
        gone = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 300, "request.timeout.ms": 100}
        return Clusters(
            [
                Cluster("shop", here),
                Cluster("a bank with a long name", here, colour="violet", read_only=True),
                Cluster("gone", gone, colour="rose"),
            ]
        )

    server = ConsoleServer("127.0.0.1", 0, clusters)
    server.start()
    yield server.url
    server.close()


def looked_at(browser: Browser, url: str, scheme: Any, width: int) -> tuple[Page, list[str]]:
    """A page, and the list of what the browser complains about."""
    context = browser.new_context(
        base_url=url, viewport={"width": width, "height": 900}, bypass_csp=True, color_scheme=scheme
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    return page, watched(page)


def keep(page: Page, name: str) -> None:
    """A picture of the page in the folder TIDELOG_SCREENSHOTS, if there is one."""
    if folder := os.environ.get("TIDELOG_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_pages_of_pipelines_fit_and_have_no_fault(
    browser: Browser, shown: Site, scheme: str, width: int
) -> None:
    page, problems = looked_at(browser, shown.url, scheme, width)
    faults: list[str] = []
    for number, path in enumerate(PAGES):
        page.goto(path)
        keep(page, f"pipelines-{number}-{scheme}-{width}")
        faults += faults_of(page, path)
    page.context.close()
    # The folder in a store answers 501, which the browser reports.
    assert (faults, [each for each in problems if "status of 501" not in each]) == ([], [])


def test_the_newest_alert_leads_to_its_evidence(page: Page) -> None:
    page.goto(HERE)
    page.get_by_role("link", name=HOSTILE).click()
    page.get_by_text('"devices"').wait_for()
    assert page.url.endswith("/pipelines/0/alerts?alert=a1")


def test_the_report_is_readable(page: Page) -> None:
    page.goto(f"{HERE}/pipelines")
    page.get_by_role("link", name="Report").first.click()
    page.get_by_role("heading", name="What the pipelines found").wait_for()
    keep(page, "pipelines-report")


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_clusters_fill_their_rows(browser: Browser, side_by_side: str, scheme: str, width: int) -> None:
    page, problems = looked_at(browser, side_by_side, scheme, width)
    page.goto("/")
    page.get_by_text("does not answer").wait_for()
    page.locator("tbody tr:nth-child(2)").get_by_text("healthy").wait_for()
    keep(page, f"clusters-{scheme}-{width}")
    faults = faults_of(page, "/clusters")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/clusters/a%20bank%20with%20a%20long%20name")
    page.context.close()
    assert (faults, problems) == ([], [])
