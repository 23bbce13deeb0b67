"""The pages of records in a real browser: search, open, live, produce, replay, import, analyse."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM, faults_of, watched
from tests.console.site import Site
from tidelog import Producer
from tidelog.testing import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = NEEDS_CHROMIUM
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
HERE = "/clusters/local/topics/rides"
PAGES = (
    f"{HERE}/messages",
    f"{HERE}/messages?filter=record.value.nothing",
    f"{HERE}/messages?filter=1%20%2B",
    f"{HERE}/messages?live=true",
    f"{HERE}/messages/0/0?value=avro-container",
    f"{HERE}/analysis",
)


@pytest.fixture(scope="module")
def shown() -> Iterator[Site]:
    with Broker({"console.listener": "127.0.0.1:0"}) as broker, Site(broker) as site:
        broker.create_topic("rides", 3)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(200):
                status = "failed" if number % 9 == 0 else "done"
                value = f'{{"ride": {number}, "city": "Köln", "status": "{status}"}}'
                producer.send(
                    "rides", value.encode(), key=f"user-{number % 17}".encode(), headers=[("trace", b"ab12")],
                    timestamp_ms=1_790_000_000_000 + (number * number) * 20_000,
                )  # fmt: skip
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer:
            producer.init_transactions()
            for commit in (True, False):
                producer.begin_transaction()
                producer.send("rides", b"paid" if commit else b"not paid", timestamp_ms=1_790_800_000_000)
                producer.flush()
                producer.commit_transaction() if commit else producer.abort_transaction()
        binary = msgpack.packb({"binary": b"\xff", "n": 5})
        broker.produce("rides", binary, None, EVIL, key=EVIL, headers=[(EVIL, EVIL.encode())],
                       timestamp_ms=1_790_800_100_000)  # fmt: skip
        answer = site.http.post("/api/clusters/local/topics/rides/analysis")
        assert answer.status_code == 200, answer.text
        yield site


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_the_pages_fit_in_both_themes_and_on_a_phone(
    browser: Browser, shown: Site, scheme: str, width: int
) -> None:
    """TIDELOG_SCREENSHOTS=FOLDER keeps a picture of each."""
    context = browser.new_context(
        base_url=shown.url, viewport={"width": width, "height": 900}, bypass_csp=True,
        color_scheme="dark" if scheme == "dark" else "light",
    )  # fmt: skip
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems = watched(page)
    faults: list[str] = []
    folder = os.environ.get("TIDELOG_SCREENSHOTS")
    for number, path in enumerate(PAGES):
        page.goto(path)
        if number == 0:
            page.wait_for_selector("#timeline svg")
            page.locator("details.record > summary").nth(1).click()
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{folder}/records-{number}-{scheme}-{width}.png")
        faults += faults_of(page, path)
    context.close()
    assert faults == []
    assert problems == []


def test_a_search_has_a_permalink_and_says_what_it_means(page: Page) -> None:
    page.goto(f"{HERE}/messages")
    page.get_by_label("Filter, a CEL expression").fill('record.value.status == "failed')
    page.wait_for_selector("#verdict .error")
    page.get_by_label("Filter, a CEL expression").fill('record.value.status == "failed"')
    page.wait_for_selector("#verdict :not(.error)")
    page.get_by_label("Start").select_option("oldest")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**filter=record.value.status*")
    assert page.locator("details.record").count() == 23
    page.locator("details.record > summary").first.click()
    page.get_by_role("link", name="Permalink").first.click()
    page.wait_for_selector("h2:has-text('offset')")
    assert '"ride": 0' in page.locator("pre").last.inner_text()


def test_the_timeline_and_pages_lead_on(page: Page) -> None:
    page.goto(f"{HERE}/messages?count=50")
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**cursor=od*")
    first = page.locator(".where").first.inner_text()
    page.get_by_role("link", name="Newer").click()
    page.wait_for_url("**cursor=nd*")
    assert page.locator(".where").first.inner_text() != first
    page.locator("#timeline svg a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**start=time*")
    assert page.locator("details.record").count() == 50


def test_records_are_reached_by_keys(page: Page) -> None:
    page.goto(f"{HERE}/messages")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    assert page.locator("details.record").nth(1).get_attribute("open") is not None


def test_a_place_is_asked_for_only_where_it_counts(page: Page) -> None:
    page.goto(f"{HERE}/messages")
    place = page.get_by_label("Offset or time")
    assert not place.is_visible()
    page.get_by_label("Start").select_option("offset")
    place.fill("5")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**start=offset&at=5*")
    assert place.input_value() == "5"
    assert page.locator(".where").first.inner_text().endswith("· 5")


def test_a_copy_says_that_it_is_done(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{HERE}/messages?filter=record.value.ride==7")
    page.locator("details.record > summary").first.click()
    page.get_by_role("button", name="Copy the value").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert '"ride": 7' in page.evaluate("navigator.clipboard.readText()")


def test_hostile_records_stay_text(page: Page) -> None:
    page.goto(f"{HERE}/messages?text=onerror")
    page.locator("details.record > summary").first.click()
    assert EVIL in page.locator("pre").first.inner_text()
    assert page.locator("main img").count() == 0


def test_a_record_is_produced_and_comes_live(page: Page, browser: Browser, shown: Site) -> None:
    page.goto(f"{HERE}/messages?live=true&text=fresh")
    page.wait_for_selector("text=records read")
    other = browser.new_context(base_url=shown.url).new_page()
    other.set_default_timeout(60_000)
    other.goto(f"{HERE}/messages?text=fresh")
    other.get_by_role("button", name="Produce", exact=True).click()
    other.locator("#produce [name=key]").fill("fresh key")
    other.locator("#produce [name=value]").fill('{"fresh": true}')
    other.locator("#produce button.primary").click()
    page.wait_for_selector("details.record:has-text('fresh key')")
    other.wait_for_selector("details.record:has-text('fresh key')")
    assert re.search(r"The record is in rides-\d at offset \d+\.", other.locator("#done").inner_text())
    assert other.url.endswith("text=fresh"), "the search stays"
    page.locator("details.record > summary").first.click()
    page.locator("details.record").first.get_by_role("button", name="Copy the value").wait_for()
    other.locator("details.record > summary").first.click()
    other.locator("details.again > summary").first.click()
    other.get_by_role("button", name="Produce again").first.click()
    page.wait_for_function("() => document.querySelectorAll('details.record').length === 2")
    other.context.close()


def test_a_download_closes_its_form(page: Page) -> None:
    page.goto("/clusters/local/topics/rides/messages")
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "rides.jsonl"
    page.wait_for_function("!document.querySelector('dialog[open]')")


def test_a_file_is_imported(page: Page, tmp_path: Path) -> None:
    page.goto(f"{HERE}/messages")
    page.get_by_role("button", name="Import").click()
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"valu": "x"}')
    page.locator("[data-import]").set_input_files(str(wrong))
    page.locator("#import button.primary").click()
    page.wait_for_selector("#import .error")
    right = tmp_path / "right.csv"
    right.write_text("key,value\nfile-key,from a file\n")
    page.locator("[data-import]").set_input_files(str(right))
    page.wait_for_function("() => document.querySelector('#import select').value === 'csv'")
    page.locator("#import button.primary").click()
    page.wait_for_selector("details.record:has-text('from a file')")


def test_an_analysis_runs_to_its_end(page: Page) -> None:
    page.goto(f"{HERE}/analysis")
    page.get_by_role("button", name="Analyse").click()
    page.wait_for_selector(".chip:has-text('done')")
    assert page.locator("text=Records per hour").count() == 1
