"""The pages in a real browser: what people see and press, in both themes and at a phone's width."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM, faults_of, watched
from tests.console.site import Site
from tidelog import Consumer
from tidelog.testing import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = NEEDS_CHROMIUM
PAGES = (
    "",
    "/topics",
    "/new-topic",
    "/topics/orders",
    "/topics/orders/settings?all=1",
    "/topics/orders/groups",
    "/cluster",
    "/cluster/log-dirs",
    "/cluster/configs?show=all",
    "/cluster/reassign?preview=1",
    "/cluster/connections",
    "/topics/no-such-topic",
)
HOSTILE_GROUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def shown() -> Iterator[Site]:
    with Broker({"console.listener": "127.0.0.1:0"}) as broker, Site(broker) as site:
        broker.create_topic("orders", 3)
        broker.create_topic("payments", 1, {"cleanup_policy": "compact"})
        broker.produce("orders", *(b"x" for _ in range(50)))
        address = broker.bootstrap_servers
        with Consumer(
            bootstrap_servers=address, group_id=HOSTILE_GROUP, enable_auto_commit=False
        ) as consumer:
            consumer.commit({("orders", 0): 1})
        yield site


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
)
def test_no_page_has_a_serious_fault_of_accessibility(
    browser: Browser, shown: Site, scheme: str, width: int
) -> None:
    context = browser.new_context(
        base_url=shown.url,
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=True,
    )
    page = context.new_page()
    problems = watched(page)
    faults: list[str] = []
    for path in PAGES:
        page.goto(f"/clusters/local{path}")
        faults += faults_of(page, path)
    context.close()
    assert faults == []
    assert problems == []


def test_the_menu_of_a_phone_shows_the_current_page(browser: Browser, shown: Site) -> None:
    context = browser.new_context(base_url=shown.url, viewport={"width": 390, "height": 900})
    page = context.new_page()
    for path, row in (("/security/acls", ".side"), ("/topics/orders/analysis", ".tabs")):
        page.goto(f"/clusters/local{path}")
        box = page.locator(f"{row} [aria-current]").bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 390, path
    context.close()


def test_the_charts_move(page: Page, shown: Site) -> None:
    from playwright.sync_api import expect

    page.goto("/clusters/local")
    page.wait_for_selector(".chart canvas")
    shown.broker.produce("payments", *(b"x" for _ in range(50)), key=b"k")
    expect(page.locator(".chart").first).to_have_attribute(
        "aria-label", re.compile("now [1-9]"), timeout=30_000
    )


def test_a_topic_is_made_changed_and_deleted(page: Page) -> None:
    page.goto("/clusters/local/topics")
    page.keyboard.press("n")
    page.get_by_label("Name").fill("made")
    page.get_by_label("Partitions").fill("2")
    page.get_by_role("button", name="Create").click()
    page.get_by_text("The topic made is created.").wait_for()
    page.get_by_role("link", name="made", exact=True).click()
    assert page.locator("#done").inner_text() == "", "a message is shown once"
    page.get_by_role("button", name="Add partitions").click()
    page.get_by_label("Partitions in all").fill("4")
    page.get_by_role("button", name="Add", exact=True).click()
    page.wait_for_selector("tbody tr:nth-child(4)")
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("button", name="Edit cleanup.policy").click()
    page.get_by_label("Value").fill("nonsense")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector("#setting .error")
    page.get_by_label("Value").fill("compact")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector("text=1 of 33 settings is the topic's own")
    page.get_by_text("The setting cleanup.policy is compact.").wait_for()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_label("to confirm").last.fill("wrong")
    page.get_by_role("button", name="Delete the topic").click()
    page.wait_for_selector("#delete .error")
    page.get_by_label("to confirm").last.fill("made")
    page.get_by_role("button", name="Delete the topic").click()
    page.wait_for_url("**/topics")
    assert page.get_by_role("link", name="made", exact=True).count() == 0


def test_a_changed_setting_leads_back_to_all_settings(page: Page) -> None:
    page.goto("/clusters/local/topics/payments/settings?all=1")
    page.get_by_role("button", name="Edit retention.ms", exact=True).click()
    page.get_by_label("Value").fill("3600000")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("The setting retention.ms is 3600000.").wait_for()
    assert page.url.endswith("/settings?all=1")
    row = page.locator("tr", has=page.get_by_role("rowheader", name="retention.ms", exact=True))
    assert row.get_by_role("cell").all_inner_texts()[:2] == ["3600000 1 h", "604800000 7 d"]


def test_the_text_that_asks_for_a_typed_name_is_one_line(page: Page) -> None:
    page.goto("/clusters/local/topics/orders")
    page.get_by_role("button", name="Delete", exact=True).click()
    name = page.locator("#delete label b").bounding_box()
    text = page.locator("#delete label span").bounding_box()
    assert name is not None
    assert text is not None
    assert text["height"] < 2 * name["height"]


def test_everything_is_reached_by_keys(page: Page) -> None:
    page.goto("/clusters/local")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    page.keyboard.type("orde")
    page.wait_for_url("**search=orde*")
    assert page.locator("tbody tr").count() == 1
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders")
    page.keyboard.press("Control+k")
    page.keyboard.type("paym")
    page.wait_for_selector("#palette-results a:has-text('payments')")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/payments")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


SEEN = """(state) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => state });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_pages_in_the_background_leave_connections_to_others(browser: Browser, shown: Site) -> None:
    """A browser has six connections to a site, and each live page holds one while somebody sees it."""
    context = browser.new_context(base_url=shown.url)
    for _ in range(8):
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto("/clusters/local")
        page.wait_for_selector(".chart canvas")
        page.evaluate(SEEN, "hidden")
    page.evaluate("document.addEventListener('htmx:sseMessage', () => { window.told = true; })")
    page.evaluate(SEEN, "visible")
    page.wait_for_function("() => window.told")
    context.close()


def test_a_list_keeps_filter_and_focus_when_it_renews_itself(page: Page) -> None:
    page.clock.install()
    page.goto("/clusters/local/topics")
    page.keyboard.press("/")
    page.keyboard.type("orde")
    page.clock.run_for(1000)
    page.wait_for_url("**search=orde*")
    page.locator("h1").click()
    page.keyboard.press("j")
    with page.expect_response(lambda found: "x-background" in found.request.headers) as renewed:
        page.clock.run_for(11_000)
    assert "search=orde" in renewed.value.url
    page.wait_for_function("() => document.activeElement.textContent === 'orders'")
    assert page.locator("tbody tr").count() == 1


def test_the_theme_and_favourites_stay(page: Page) -> None:
    page.goto("/clusters/local/topics")
    page.get_by_role("button", name="★ Favourites").click()
    page.get_by_text("There are no favourites yet").wait_for()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("d")
    page.get_by_role("button", name="Favourite orders").click()
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.get_by_role("button", name="★ Favourites").click()
    page.wait_for_url("**only=orders*")
    assert page.locator("tbody tr").count() == 1
    page.get_by_role("link", name="all topics").click()
    page.get_by_role("button", name="Favourite payments").click()
    page.get_by_role("button", name="★ Favourites").click()
    page.wait_for_url("**only=orders&only=payments*")
    page.get_by_role("link", name="Records", exact=True).click()
    page.wait_for_url("**sort=records*")
    assert page.locator("tbody tr").count() == 2


def test_hostile_names_are_text(page: Page) -> None:
    page.goto("/clusters/local/topics/orders/groups")
    assert page.get_by_role("link", name=HOSTILE_GROUP).count() == 1
    page.goto("/clusters/local/topics")
    assert page.locator("main img").count() == 0
    page.goto('/clusters/local/topics?search="><script>alert(1)</script>')
    page.wait_for_selector("text=No topic fits")
