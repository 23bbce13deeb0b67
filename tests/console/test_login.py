"""Login on the console: SCRAM users who act as themselves, OpenID Connect, roles, and a hostile browser."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.requests import Request

from tests.console.fake_provider import CLIENT, SECRET, Provider
from tests.console.site import Site
from tests.support.sasl_broker import free_address
from tests.support.wait import eventually, patience
from tidelog import Admin
from tidelog.clients.admin import AclBinding, AclOperation, AclResourceType, UserScramCredentialUpsertion
from tidelog.console.access import Access
from tidelog.console.access_file import AccessSettings, ScramSettings
from tidelog.console.api_credentials import BASIC_SECONDS, ApiCredentials
from tidelog.console.clusters import Cluster, Clusters
from tidelog.console.csrf import COOKIE
from tidelog.console.logins import LoginRefused
from tidelog.console.roles import EVERYTHING
from tidelog.console.server import ConsoleServer
from tidelog.console.sessions import Identity, Session, Sessions
from tidelog.testing import Broker

AUDIT = "tidelog.console.audit"
PASSWORDS = {"alice": "alice's word", "bob": "bob's own word", "eve": "eve's last word"}

ACCESS = """
[scram]
mechanisms = ["SCRAM-SHA-512"]
client = {{ "bootstrap.servers" = "{sasl}", "security.protocol" = "SASL_PLAINTEXT" }}

[oidc]
issuer = "{issuer}"
client_id = "{client}"
client_secret_file = "{secret_file}"

[roles]
default = "none"

[[roles.grants]]
role = "admin"
principals = ["User:alice"]

[[roles.grants]]
role = "operator"
principals = ["User:bob"]

[[roles.grants]]
role = "viewer"
groups = ["billing-team"]
resources = ["topic:l-open", "group:l-*"]

[[roles.grants]]
role = "operator"
groups = ["shift-team"]
resources = ["topic:l-open*", "group:l-*"]
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Site]:
    """A broker with an authorizer and a console with a login; bob may only see the topic l-open."""
    folder = tmp_path_factory.mktemp("login")
    sasl = free_address()
    (folder / "secret").write_text(f"{SECRET}\n")
    text = ACCESS.format(sasl=sasl, issuer=provider.issuer, client=CLIENT, secret_file=folder / "secret")
    (folder / "access.toml").write_text(text)
    settings = {
        "console.listener": "127.0.0.1:0",
        "console.access.config": str(folder / "access.toml"),
        "listeners": f"PLAINTEXT://127.0.0.1:0,SASL://{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice",
        "connection.failed.authentication.delay.ms": 20,
    }
    with Broker(settings) as broker:
        for topic in ("l-open", "l-secret"):
            broker.create_topic(topic)
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(*each, iterations=4096) for each in PASSWORDS.items()]
            )
            admin.alter_consumer_group_offsets("l-group", {("l-open", 0): 0, ("l-secret", 0): 0})
            admin.create_acls(
                [
                    AclBinding(AclResourceType.TOPIC, "l-open", "User:bob", AclOperation.READ),
                    AclBinding(AclResourceType.GROUP, "l-group", "User:bob", AclOperation.DESCRIBE),
                ]
            )
        with Site(broker) as site:
            yield site


class Browser:
    """A browser: keeps cookies, sends the headers of browsers, and the tokens of the pages it has seen."""

    def __init__(self, site: Site, address: str = "127.0.0.1", url: str = "") -> None:
        transport = httpx.HTTPTransport(local_address=address)
        self.http = httpx.Client(base_url=url or site.url, timeout=30, transport=transport)
        self.token = ""

    def page(self, path: str, **options: Any) -> httpx.Response:
        answer = self.http.get(path, headers={"sec-fetch-site": "none"}, **options)
        text = answer.text.replace("&#34;", '"')
        found = re.search(r'name="csrf" value="(\w+)"|X-CSRF-Token": "(\w+)"', text)
        if found:
            self.token = found[1] or found[2]
        return answer

    def post(self, path: str, **form: str) -> httpx.Response:
        form.setdefault("csrf", self.token)
        return self.http.post(path, data=form, headers={"sec-fetch-site": "same-origin"})

    def login(self, user: str, password: str | None = None, then: str = "") -> httpx.Response:
        self.page("/login")
        return self.post("/login", user=user, password=password or PASSWORDS[user], then=then)

    @property
    def cookie(self) -> str:
        return self.http.cookies.get(COOKIE) or ""


@pytest.fixture
def browser(guarded: Site) -> Iterator[Browser]:
    browser = Browser(guarded)
    yield browser
    browser.http.close()


@pytest.fixture
def alice(browser: Browser) -> Browser:
    assert browser.login("alice").status_code == 303
    browser.page("/clusters/local")
    return browser


@pytest.fixture
def bob(browser: Browser) -> Browser:
    assert browser.login("bob").status_code == 303
    browser.page("/clusters/local")
    return browser


# Who


def test_nothing_is_shown_without_a_login(guarded: Site, browser: Browser) -> None:
    for path in ("", "/groups", "/nothing", "/../elsewhere"):
        answer = browser.page(f"/clusters/local{path}")
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/login")
        assert "l-open" not in answer.text
    for path in ("/api/clusters", "/api/clusters/local/topics", "/api/clusters/local/groups"):
        answer = httpx.get(guarded.url + path, timeout=30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "LOGIN_NEEDED")
    asked = browser.http.get("/clusters/local/groups", headers={"hx-request": "true"})
    assert asked.headers["hx-redirect"] == "/login"


def test_a_login_leads_to_the_page_that_was_asked_for(browser: Browser) -> None:
    answer = browser.login("alice", then="/clusters/local/groups?sort=lag")
    assert answer.headers["location"] == "/clusters/local/groups?sort=lag"
    assert "alice" in browser.page("/clusters/local/groups").text
    eventually(
        lambda: "l-group" in browser.page("/clusters/local/groups").text, "the group is shown", timeout=30.0
    )
    for elsewhere in ("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)"):
        assert browser.login("alice", then=elsewhere).headers["location"] == "/"


def test_the_cookie_cannot_be_read_by_scripts_or_sent_by_other_sites(browser: Browser) -> None:
    header = browser.login("alice").headers["set-cookie"].lower()
    assert "httponly" in header
    assert "samesite=lax" in header
    assert "max-age" not in header  # it ends with the browser


def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(browser: Browser) -> None:
    answers = [browser.login("alice", "wrong"), browser.login("nobody", "wrong"), browser.login("eve", " ")]
    assert {answer.status_code for answer in answers} == {401}
    assert all("The user or the password is wrong" in answer.text for answer in answers)
    assert 'value="alice"' in answers[0].text
    assert "wrong" not in answers[0].text.partition("<form")[2]
    hostile = browser.login('"><script>', "wrong").text
    assert "<script>" not in hostile.partition("<form")[2]
    assert browser.page("/clusters/local").status_code == 303


def test_the_id_of_the_session_is_a_new_one(browser: Browser) -> None:
    fixed = "A" * 43
    browser.http.cookies.set(COOKIE, fixed, domain="127.0.0.1")
    browser.login("alice")
    assert len(browser.cookie) == 43
    attacker = httpx.Client(base_url=browser.http.base_url, cookies={COOKIE: fixed}, timeout=30)
    assert attacker.get("/clusters/local").status_code == 303
    attacker.close()


def test_a_logout_ends_the_session_on_the_server(alice: Browser) -> None:
    stolen = alice.cookie
    assert alice.post("/logout", csrf="wrong").status_code == 403
    assert alice.post("/logout").status_code == 303
    answer = httpx.get(f"{alice.http.base_url}/clusters/local", cookies={COOKIE: stolen}, timeout=30)
    assert answer.status_code == 303


@pytest.mark.parametrize(
    "path",
    ["/overview/live", "/topics/l-open/messages/live", "/cluster/reassign/live", "/groups/l-group/live"],
)
def test_a_logout_ends_live_pages(alice: Browser, path: str) -> None:
    """A page that is left open must not go on showing figures and records."""
    group = "/clusters/local/groups/l-group"
    eventually(lambda: alice.page(group).status_code == 200, "the group is known", timeout=30.0)
    with alice.http.stream("GET", f"/clusters/local{path}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert alice.post("/logout").status_code == 303
        limit = time.monotonic() + patience(15.0)
        for _ in answer.iter_raw():
            assert time.monotonic() < limit, "the page still gets events"


def until_slowed_down(guess: Callable[[], httpx.Response]) -> None:
    """Guess until the wait is long enough for a slow machine to make one more request in it."""
    enough = min(patience(2.0), 16.0)

    def is_slow() -> bool:
        answer = guess()
        return answer.status_code == 429 and int(answer.headers["retry-after"]) >= enough

    eventually(is_slow, "guesses are slowed down", timeout=120.0, interval=0.1)


def test_guessing_a_password_is_slowed_down(guarded: Site) -> None:
    guesser = Browser(guarded, "127.0.0.77")
    assert guesser.login("eve", "guess").status_code == 401
    until_slowed_down(lambda: guesser.login("eve", "guess"))
    refused = guesser.login("eve")
    assert refused.status_code == 429  # the right password does not help
    assert int(refused.headers["retry-after"]) >= 1
    elsewhere = Browser(guarded, "127.0.0.78")
    assert elsewhere.login("eve").status_code == 303
    guesser.http.close()
    elsewhere.http.close()


# Requests of other sites


def test_a_change_needs_the_token_of_this_session(guarded: Site, alice: Browser) -> None:
    other = Browser(guarded, "127.0.0.79")
    other.login("bob")
    other.page("/clusters/local")
    path = "/api/clusters/local/groups/l-group/reset"
    body = {"target": "latest", "dry_run": True}
    for token in (None, "", other.token, alice.cookie):
        headers = {} if token is None else {"x-csrf-token": token}
        assert alice.http.post(path, json=body, headers=headers).json()["error"]["code"] == "CSRF"
    good = {"x-csrf-token": alice.token}
    assert alice.http.post(path, json=body, headers=good).status_code == 200
    for foreign in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        refused = alice.http.post(path, json=body, headers=good | foreign)
        assert refused.json()["error"]["code"] == "CSRF"
    other.http.close()


def test_a_login_form_of_another_site_is_refused(guarded: Site) -> None:
    answer = httpx.post(
        f"{guarded.url}/login",
        data={"user": "alice", "password": PASSWORDS["alice"]},
        headers={"origin": "https://evil.example"},
        timeout=30,
    )
    assert answer.status_code == 403
    assert COOKIE not in answer.cookies or len(answer.cookies[COOKIE]) == 43


# What


def test_the_console_acts_as_the_principal(alice: Browser, guarded: Site) -> None:
    """Bob's ACLs let him see one topic, and change nothing, though his role would allow it."""
    sees(alice, "l-open", "l-secret")
    bob = Browser(guarded, "127.0.0.80")
    assert bob.login("bob").status_code == 303
    bob.page("/clusters/local")
    sees(bob, "l-open")
    group = bob.http.get("/api/clusters/local/groups/l-group").json()
    assert [row["topic"] for row in group["partitions"]] == ["l-open"]
    assert bob.http.get("/api/clusters/local/topics/l-secret").status_code == 404
    body = {"target": "earliest", "topics": "l-open", "dry_run": False}
    refused = bob.http.post(
        "/api/clusters/local/groups/l-group/reset", json=body, headers={"x-csrf-token": bob.token}
    )
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "GroupAuthorizationFailed"
    bob.http.close()


def test_a_console_without_credentials_asks_a_cluster_as_those_who_log_in(guarded: Site) -> None:
    """`tidelog console` in front of a cluster that asks who connects."""
    address = guarded.broker.address_of("SASL")
    settings = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT"}
    access = Access(settings=AccessSettings(ScramSettings(), roles=EVERYTHING, idle_seconds=60))
    server = ConsoleServer("127.0.0.1", 0, lambda: Clusters([Cluster("far", settings)]), access)
    server.start()
    try:
        browser = Browser(guarded, url=server.url)
        assert browser.login("bob").status_code == 303
        sees(browser, "l-open", cluster="far")
        assert "l-group" in browser.page("/clusters/far/groups").text
        assert [session.identity.name for session in access.sessions] == ["User:bob"]
        browser.http.close()
    finally:
        server.close()
    assert len(access.sessions) == 0


def sees(browser: Browser, *topics: str, cluster: str = "local") -> None:
    """The topics are listed, some seconds after they were made, and never another one."""

    def seen() -> bool:
        answer = browser.http.get(f"/api/clusters/{cluster}/topics")
        assert answer.status_code == 200, answer.text
        found = {topic["name"] for topic in answer.json()["topics"]}
        assert found <= set(topics)
        return found == set(topics)

    eventually(seen, f"{topics} are listed", timeout=30.0)


def audited(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, str]]:
    """The first lines of the audit; they come from the console's process a moment after the answer."""

    def found() -> list[dict[str, str]]:
        return [record.fields for record in caplog.records if record.name == AUDIT]  # type: ignore[attr-defined]

    eventually(lambda: len(found()) >= count, "the audit is logged")
    return found()


def test_a_role_that_is_too_small_is_refused_and_audited(
    bob: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, AUDIT)
    refused = bob.http.request(
        "PUT",
        "/api/clusters/local/users",
        json={"user": "mallory", "password": "mallory's word"},
        headers={"x-csrf-token": bob.token},
    )
    assert refused.status_code == 403
    assert "needs admin" in refused.json()["error"]["message"]
    assert audited(caplog, 1) == [
        {
            "principal": "User:bob",
            "address": "127.0.0.1",
            "cluster": "local",
            "action": "user.edit",
            "resource": "",
            "outcome": "NOT_ALLOWED",
        }
    ]


def test_every_change_and_login_is_in_the_audit_without_secrets(
    browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    browser.login("alice", "no alice's word")
    browser.login("alice")
    browser.page("/clusters/local")
    answer = browser.http.request(
        "PUT",
        "/api/clusters/local/users",
        json={"user": "dora", "password": "dora's word"},
        headers={"x-csrf-token": browser.token},
    )
    assert answer.status_code == 200, answer.text
    assert [(each["action"], each["principal"], each["outcome"]) for each in audited(caplog, 3)] == [
        ("login.scram", "User:alice", "LOGIN_REFUSED"),
        ("login.scram", "User:alice", "done"),
        ("user.edit", "User:alice", "done"),
    ]
    assert not any("'s word" in f"{record.getMessage()} {vars(record)}" for record in caplog.records)


def test_pages_offer_only_what_the_role_allows(alice: Browser, guarded: Site) -> None:
    assert "Set a password" in alice.page("/clusters/local/security/users").text
    bob = Browser(guarded, "127.0.0.81")
    bob.login("bob")
    assert "Set a password" not in bob.page("/clusters/local/security/acls").text
    bob.http.close()


# OpenID Connect


def begin(browser: Browser, then: str = "") -> str:
    """Begin a login at the provider; returns the address that the browser is sent to."""
    browser.page("/login")
    answer = browser.post("/login/oidc", then=then)
    assert answer.status_code == 200, answer.text
    found = re.search(r'url=([^"]+)"', answer.text)
    assert found
    return found[1].replace("&amp;", "&")


def test_a_login_at_a_provider(browser: Browser, provider: Provider) -> None:
    answer = browser.page(provider.approve(begin(browser, "/clusters/local/groups")))
    assert (answer.status_code, answer.headers["location"]) == (303, "/clusters/local/groups")
    # carol's group of the provider is a viewer of some names.
    sees(browser, "l-open")
    page = browser.page("/clusters/local/groups/l-group")
    assert "carol" in page.text
    assert "Delete the group" not in page.text
    assert browser.page("/clusters/local/topics").status_code == 200


def test_an_answer_works_once_and_only_in_the_browser_that_began(
    browser: Browser, provider: Provider, guarded: Site
) -> None:
    address = provider.approve(begin(browser))
    victim = Browser(guarded)
    refused = victim.page(address)
    assert refused.status_code == 401
    assert "another browser" in refused.text
    assert "not begun here" in browser.page(address).text  # the state is used up
    again = provider.approve(begin(browser))
    assert browser.page(again).status_code == 303
    assert browser.page(again).status_code == 401
    assert victim.page("/login/oidc/callback?state=x&code=y").status_code == 401
    victim.http.close()


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"nonce": "another"}, "another login"),
        ({"aud": "another-client"}, "audience"),
        ({"aud": [CLIENT, "x"], "azp": "x"}, "another client"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"exp": 1000, "iat": 900}, "expired"),
        ({"sub": ""}, "claim sub"),
    ],
)
def test_a_wrong_token_is_refused(
    browser: Browser, provider: Provider, claims: dict[str, Any], problem: str
) -> None:
    address = provider.approve(begin(browser))
    provider.claims = claims
    try:
        answer = browser.page(address)
    finally:
        provider.claims = {}
    assert answer.status_code == 401
    assert problem in answer.text
    assert browser.page("/clusters/local").status_code == 303


def test_a_token_of_another_key_is_refused(browser: Browser, provider: Provider) -> None:
    address = provider.approve(begin(browser))
    provider.other_key = ec.generate_private_key(ec.SECP256R1())
    try:
        assert "cannot be verified" in browser.page(address).text
    finally:
        provider.other_key = None


def test_an_error_of_the_provider_is_shown_as_text(browser: Browser, provider: Provider) -> None:
    state = re.search(r"state=([^&]+)", provider.approve(begin(browser)))
    assert state
    answer = browser.page(f"/login/oidc/callback?state={state[1]}&error=<script>alert(1)</script>")
    assert answer.status_code == 401
    assert "<script>alert" not in answer.text


def test_the_token_of_the_provider_logs_in_at_the_cluster(tmp_path: Path, provider: Provider) -> None:
    """With acts_as_user the ACLs of carol decide, not the console's own connection."""
    sasl = free_address()
    keys = f"{provider.issuer}/keys"
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "access.toml").write_text(
        f'''[oidc]
issuer = "{provider.issuer}"
client_id = "{CLIENT}"
client_secret_file = "{tmp_path}/secret"
acts_as_user = true
client = {{ "bootstrap.servers" = "{sasl}", "security.protocol" = "SASL_PLAINTEXT" }}
[roles]
default = "admin"
'''
    )
    settings = {
        "console.listener": "127.0.0.1:0",
        "console.access.config": str(tmp_path / "access.toml"),
        "listeners": f"PLAINTEXT://127.0.0.1:0,SASL://{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "tidelog.sasl.oauthbearer.allowed.urls": keys,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings) as broker, Site(broker) as site:
        for topic in ("o-open", "o-secret"):
            broker.create_topic(topic)
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_acls([AclBinding(AclResourceType.TOPIC, "o-open", "User:carol", AclOperation.READ)])
        browser = Browser(site)
        assert browser.page(provider.approve(begin(browser))).status_code == 303
        sees(browser, "o-open")
        browser.http.close()


# Programs

GROUP = "/api/clusters/local/groups/l-group"
RESET = {"target": "latest", "topics": "l-open", "dry_run": True}


def test_a_program_uses_the_api_with_user_and_password(
    guarded: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One login serves all requests with the same credentials; the ACLs and roles of the user decide."""
    caplog.set_level(logging.DEBUG)
    with httpx.Client(base_url=guarded.url, auth=("alice", PASSWORDS["alice"]), timeout=30) as alice:
        eventually(lambda: alice.get(GROUP).status_code == 200, "the group is known", timeout=30.0)
        changed = alice.post(f"{GROUP}/reset", json=RESET)
        assert changed.status_code == 200, changed.text
        assert alice.get("/api/clusters").status_code == 200
        assert not alice.cookies
    assert [(each["action"], each["principal"], each["outcome"]) for each in audited(caplog, 2)] == [
        ("login.basic", "User:alice", "done"),
        ("group.reset", "User:alice", "done"),
    ]
    assert not any("'s word" in f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    with httpx.Client(base_url=guarded.url, auth=("bob", PASSWORDS["bob"]), timeout=30) as bob:
        assert bob.put("/api/clusters/local/users", json={"user": "m", "password": "m"}).status_code == 403
        assert bob.get("/api/clusters/local/topics/l-secret").status_code == 404
        # Pages are for people: they have a form. Files are for both.
        assert bob.get("/clusters/local").status_code == 303
        export = "/clusters/local/topics/{}/messages/export?format=jsonl"
        assert bob.get(export.format("l-open")).status_code == 200
        hidden = bob.get(export.format("l-secret"))
        assert (hidden.status_code, hidden.json()["error"]["code"]) in (
            (403, "TopicAuthorizationFailed"),
            (404, "NOT_FOUND"),
        )
        refused = bob.get(export.format("l-open"), auth=("bob", "wrong"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "LOGIN_REFUSED")


@pytest.mark.parametrize(
    "header",
    [
        "Basic " + base64.b64encode(b"alice:wrong").decode(),
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic \u00e4\u00f6".encode(),
        "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
        "Basic",
        "Bearer",
        "Bearer not.a.token",
        "Negotiate abc",
        "",
    ],
)
def test_wrong_credentials_of_a_program_are_refused(guarded: Site, header: str | bytes) -> None:
    transport = httpx.HTTPTransport(local_address="127.0.0.90")
    with httpx.Client(base_url=guarded.url, transport=transport, timeout=30) as program:
        refused = program.get("/api/clusters", headers={"authorization": header})
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "LOGIN_REFUSED")
    assert "Basic realm=" in refused.headers["www-authenticate"]
    assert "Bearer" in refused.headers["www-authenticate"]


def test_a_browser_is_never_asked_for_a_password_by_its_own_window(guarded: Site, browser: Browser) -> None:
    """Passwords that are typed there go with the requests of other sites, too."""
    assert "www-authenticate" in httpx.get(f"{guarded.url}/api/clusters", timeout=30).headers
    for headers in ({"sec-fetch-site": "same-origin"}, {"origin": guarded.url}, {"cookie": "a=b"}):
        refused = httpx.get(f"{guarded.url}/api/clusters", headers=headers, timeout=30)
        assert refused.status_code == 401
        assert "www-authenticate" not in refused.headers
    assert "www-authenticate" not in browser.page("/clusters/local").headers


def test_guessing_passwords_through_the_api_is_slowed_down(guarded: Site) -> None:
    transport = httpx.HTTPTransport(local_address="127.0.0.91")
    with httpx.Client(base_url=guarded.url, transport=transport, timeout=30) as guesser:
        assert guesser.get("/api/clusters", auth=("eve", "guess")).status_code == 401
        until_slowed_down(lambda: guesser.get("/api/clusters", auth=("eve", "guess")))
        assert guesser.get("/api/clusters", auth=("eve", PASSWORDS["eve"])).status_code == 429


def test_a_header_does_not_replace_the_token_of_a_page(guarded: Site, alice: Browser) -> None:
    """A cross-site form brings the cookie, and perhaps a header of any kind."""
    right = base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode()
    for header in ("Basic bogus", "Bearer bogus", f"Basic {right}"):
        for more in ({}, {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            refused = alice.http.post(f"{GROUP}/reset", json=RESET, headers={"authorization": header, **more})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "CSRF")
    # A browser that keeps a password sends it with the requests of other sites, without any cookie of ours.
    for more in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        refused = httpx.post(
            f"{guarded.url}{GROUP}/reset",
            json=RESET,
            headers={"authorization": f"Basic {right}", **more},
            timeout=30,
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "CSRF")


def test_a_program_uses_the_api_with_a_token(guarded: Site, provider: Provider) -> None:
    def ask(token: str) -> httpx.Response:
        return httpx.get(
            f"{guarded.url}/api/clusters/local/topics",
            headers={"authorization": f"Bearer {token}"},
            timeout=30,
        )

    member = ask(provider.access_token(groups=["billing-team"]))
    assert member.status_code == 200, member.text
    assert {topic["name"] for topic in member.json()["topics"]} <= {"l-open"}
    assert ask(provider.access_token()).status_code == 403  # no role
    for wrong in (
        provider.access_token(aud="another-program"),
        provider.access_token(iss="https://other.example"),
        provider.access_token(exp=1000, iat=900),
        provider.access_token(ec.generate_private_key(ec.SECP256R1())),
    ):
        refused = ask(wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "LOGIN_REFUSED")


def test_a_role_for_some_resources_ends_at_their_names(guarded: Site, provider: Provider) -> None:
    """Neither a name in a body nor a list without topics and groups leads beyond the resources of a grant."""
    token = provider.access_token(groups=["shift-team"])
    robot = httpx.Client(
        base_url=f"{guarded.url}/api/clusters/local", headers={"authorization": f"Bearer {token}"}, timeout=30
    )
    eventually(lambda: robot.get("/groups/l-group").status_code == 200, "the group is known", timeout=30.0)
    clone = "/topics/l-open/clone"
    refused = robot.post(clone, json={"name": "payroll"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
    assert robot.post(clone, json={"name": "l-open-2"}).status_code == 200
    refused = robot.post("/groups/l-group/reset", json={"target": "group", "from_group": "payroll"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
    copied = robot.post("/groups/l-new/reset", json={"target": "group", "from_group": "l-group"})
    assert [(row["topic"], row["after"]) for row in copied.json()["rows"]] == [("l-open", 0)]
    for path in ("/acls", "/quotas", "/users", "/transactions", "/transactions/hanging", "/pipelines"):
        refused = robot.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "NOT_ALLOWED"), path
        assert "on the whole cluster" in refused.json()["error"]["message"]
    with Admin(bootstrap_servers=guarded.broker.bootstrap_servers) as admin:
        admin.delete_topics(["l-open-2"])
    robot.close()


def test_the_description_of_the_api_names_the_logins_of_programs(guarded: Site) -> None:
    document = httpx.get(f"{guarded.url}/api/openapi.json", timeout=30).json()
    schemes = document["components"]["securitySchemes"]
    assert {each["scheme"] for each in schemes.values()} == {"basic", "bearer"}
    assert document["security"] == [{}, *({name: []} for name in schemes)]


def test_a_login_of_a_program_ends() -> None:
    """A password is checked again after a while, and its session ends if it is no longer the right one."""
    clock, logins, right = 1000.0, 0, "right"

    class Scram:
        async def login(self, user: str, password: str, address: str) -> Identity:
            nonlocal logins
            logins += 1
            if password != right:
                raise LoginRefused
            return Identity(f"User:{user}")

    async def main() -> None:
        nonlocal clock, right
        sessions = Sessions(now=lambda: clock, on_end=lambda session: programs.forget(session))
        scram: Any = Scram()
        programs = ApiCredentials(sessions, lambda: scram, None, lambda *_: None, lambda: clock)

        def ask(password: str) -> Coroutine[Any, Any, Session]:
            value = base64.b64encode(f"ann:{password}".encode())
            scope = {"type": "http", "headers": [(b"authorization", b"Basic " + value)], "client": None}
            return programs.session(Request(scope), is_used=True)

        first = await asyncio.gather(*(ask("right") for _ in range(10)))
        assert len({session.session_id for session in first}) == logins == 1
        with pytest.raises(LoginRefused):
            await ask("wrong")
        assert (await ask("right")).session_id == first[0].session_id
        assert logins == 2
        clock += BASIC_SECONDS
        assert (await ask("right")).session_id == first[0].session_id
        assert logins == 3
        right = "another"
        assert (await ask("right")).session_id == first[0].session_id
        clock += BASIC_SECONDS
        with pytest.raises(LoginRefused):
            await ask("right")
        assert len(sessions) == 0
        again = await ask("another")
        assert again.session_id != first[0].session_id
        sessions.end(again.session_id)
        assert (await ask("another")).session_id != again.session_id

    asyncio.run(main())


# The file


def test_a_wrong_file_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text("[scram]\nmechanism = 'PLAIN'\n")
    with pytest.raises(Exception, match="unknown name; expected client, mechanisms"):
        Broker(
            {"console.listener": "127.0.0.1:0", "console.access.config": str(tmp_path / "access.toml")}
        ).start()
