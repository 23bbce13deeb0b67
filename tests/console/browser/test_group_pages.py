"""Groups, security, transactions, pipelines and the login in a real browser, both themes and a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.console.browser.chromium import NEEDS_CHROMIUM, faults_of, watched
from tests.console.site import Site
from tests.support.sasl_broker import free_address
from tidelog import Admin
from tidelog.clients.admin import UserScramCredentialUpsertion
from tidelog.testing import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = NEEDS_CHROMIUM
HOSTILE = "<img src=x onerror=alert(1)>"
PAGES = (
    "/groups",
    "/groups/billing",
    "/groups/billing?tab=members",
    "/groups/billing?tab=reset&target=earliest",
    f"/groups/{quote(HOSTILE, safe='')}",
    "/transactions",
    "/transactions/hanging",
    "/security/acls",
    "/security/quotas",
    "/security/users",
    "/pipelines",
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console with a login; the user is alice."""
    folder = tmp_path_factory.mktemp("browser")
    sasl = free_address()
    (folder / "access.toml").write_text(
        f'[scram]\nclient = {{ "bootstrap.servers" = "{sasl}", "security.protocol" = "SASL_PLAINTEXT" }}\n'
        '[roles]\ndefault = "admin"\n'
    )
    settings = {
        "console.listener": "127.0.0.1:0",
        "console.access.config": str(folder / "access.toml"),
        "console.pipelines": str(folder),
        "listeners": f"PLAINTEXT://127.0.0.1:0,SASL://{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice",
    }
    with Broker(settings) as broker, Site(broker) as site:
        broker.create_topic("orders", 3)
        broker.create_topic("payments")
        for partition in range(3):
            broker.produce("orders", *(b"x" for _ in range(50)), partition=partition)
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", "alice's word")])
            for group in ("billing", "to-delete", HOSTILE):
                admin.alter_consumer_group_offsets(group, {("orders", index): 10 for index in range(3)})
            admin.alter_consumer_group_offsets("two-topics", {("orders", 0): 1, ("payments", 0): 0})
        yield site


def opened(browser: Browser, site: Site, width: int = 1280, scheme: Any = "light") -> tuple[Page, list[str]]:
    """A logged-in page, and the list that gets every error of the browser's console and every alert."""
    context = browser.new_context(
        base_url=site.url, viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    problems = watched(page)
    page.goto("/clusters/local/groups")
    page.get_by_label("User").fill("alice")
    page.get_by_label("Password").fill("alice's word")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/clusters/local/groups")
    return page, problems


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_every_page_fits_and_has_no_fault(
    browser: Browser, shown: Site, tmp_path: Path, scheme: str, width: int
) -> None:
    page, problems = opened(browser, shown, width, scheme)
    faults: list[str] = []
    for at, path in enumerate(PAGES):
        page.goto(f"/clusters/local{path}")
        page.screenshot(path=tmp_path / f"{at}.png", full_page=True)
        faults += faults_of(page, path)
    page.context.close()
    assert (faults, problems) == ([], [])


def test_offsets_are_reset_after_a_review(browser: Browser, shown: Site) -> None:
    page, problems = opened(browser, shown)
    page.get_by_role("link", name="billing").click()
    page.get_by_role("link", name="Reset").click()
    page.get_by_label("Reset to").select_option("latest")
    page.get_by_role("button", name="Review").click()
    assert page.get_by_text("+40").count() == 3
    page.get_by_role("button", name="Set these 3 offsets").click()
    page.wait_for_url("**/groups/billing")
    page.get_by_role("link", name="Members").wait_for()
    assert page.locator(".tiles dd").first.inner_text() == "0"
    page.context.close()
    assert problems == []


def test_a_group_is_deleted_after_its_id_was_typed(browser: Browser, shown: Site) -> None:
    page, problems = opened(browser, shown)
    page.goto("/clusters/local/groups/to-delete")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.locator("#delete-group input[name=confirm]").fill("something else")
    page.get_by_role("button", name="Delete the group").click()
    page.get_by_text("Type the id of the group to confirm").wait_for()
    page.locator("#delete-group input[name=confirm]").fill("to-delete")
    page.get_by_role("button", name="Delete the group").click()
    page.wait_for_url("**/clusters/local/groups")
    page.get_by_role("link", name="billing").wait_for()
    assert page.get_by_role("link", name="to-delete").count() == 0
    page.context.close()
    assert problems == []


def test_the_offsets_of_a_topic_are_deleted(browser: Browser, shown: Site) -> None:
    page, problems = opened(browser, shown)
    page.goto("/clusters/local/groups/two-topics?tab=reset")
    page.locator("select[name=topic]").select_option("payments")
    page.get_by_role("button", name="Delete the offsets").click()
    page.get_by_text("The offsets of two-topics in payments are deleted.").wait_for()
    assert page.locator("#offsets caption").count() == 1
    page.context.close()
    assert problems == []


def test_the_list_is_filtered_while_typing(browser: Browser, shown: Site) -> None:
    page, problems = opened(browser, shown)
    page.keyboard.press("/")
    page.keyboard.type("bil")
    page.get_by_text("1 group").wait_for()
    assert page.url.endswith("search=bil&state=&sort=name")
    page.context.close()
    assert problems == []


def test_a_logout_shows_the_login(browser: Browser, shown: Site) -> None:
    page, problems = opened(browser, shown)
    page.locator(".account summary").click()
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="Log in").wait_for()
    page.goto("/clusters/local/groups")
    page.get_by_role("button", name="Log in").wait_for()
    page.context.close()
    assert problems == []
