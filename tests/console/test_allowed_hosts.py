"""The names under which a console answers: a site that gives its own to the address gets nothing."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.console.site import Site
from tidelog.console.access import Access
from tidelog.console.access_file import AccessSettings, ScramSettings
from tidelog.console.allowed_hosts import AllowedHosts
from tidelog.console.clusters import Cluster, Clusters
from tidelog.console.server import ConsoleServer
from tidelog.testing import Broker

CONTAINER = "172.18.0.2"


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("localhost", True),
        ("LocalHost.:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("[::ffff:127.0.0.1]", True),
        (f"{CONTAINER}:8080", True),
        ("console.example:80", True),
        ("a.below.example", True),
        ("a.b.below.example:1", True),
        ("10.1.2.3", True),
        ("[2001:DB8::1]:80", True),
        ("", False),
        ("evil.example:8080", False),
        ("below.example", False),
        ("notbelow.example", False),
        ("localhost.evil.example", False),
        ("localhost:8080.evil.example", False),
        ("10.1.2.4", False),
        ("127.0.0.1.evil.example", False),
        ("2130706433", False),
        ("[evil.example]x", False),
    ],
)
def test_only_known_names_are_answered(host: str, is_allowed: bool) -> None:
    names = ("Console.Example", "*.below.example", "10.1.2.3", "2001:db8::1")
    assert AllowedHosts(names).allows(host, CONTAINER) is is_allowed


def test_with_a_login_every_address_is_answered_and_no_other_name() -> None:
    hosts = AllowedHosts(any_address=True)
    assert hosts.allows("192.0.2.7:8080", CONTAINER)
    assert not hosts.allows("evil.example", CONTAINER)


def test_a_star_answers_under_all_names() -> None:
    assert AllowedHosts(["*"]).allows("evil.example", CONTAINER)


@pytest.fixture
def open_console() -> Iterator[ConsoleServer]:
    """A console that other machines reach."""

    def clusters() -> Clusters:
        return Clusters([Cluster("gone", {"bootstrap.servers": "127.0.0.1:1"})])

    settings = AccessSettings(ScramSettings(), public_url="https://public.example/console")
    server = ConsoleServer("0.0.0.0", 0, clusters, Access(settings=settings), allowed_hosts=["own.example"])
    server.start()
    yield server
    server.close()


def test_a_console_for_other_machines_refuses_foreign_names_with_a_sentence(
    open_console: ConsoleServer,
) -> None:
    with httpx.Client(base_url=open_console.url, timeout=30) as client:

        def status(host: str) -> int:
            return client.get("/api/openapi.json", headers={"host": host}).status_code

        refused = client.get("/login", headers={"host": "evil.example"})
        assert refused.status_code == 421
        assert refused.json()["error"]["message"] == (
            "This console does not answer under the name 'evil.example'. If it is a name of the console, add"
            " it to console.allowed.hosts of the broker, or give --allowed-host to tidelog console."
        )
        assert status("own.example") == status("public.example:443") == status("192.0.2.7") == 200
        assert client.get("/static/console.css", headers={"host": "evil.example"}).status_code == 421


def test_a_broker_allows_the_names_of_its_settings_and_those_that_it_advertises() -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://kafka.example:9092",
        "console.listener": "127.0.0.1:0",
        "console.allowed.hosts": "console.example,*.below.example",
        "console.command.config": "",
    }
    with Broker(settings) as broker, Site(broker) as site:

        def status(host: str) -> int:
            return site.http.get("/api/openapi.json", headers={"host": host}).status_code

        for host in ("kafka.example", "console.example:80", "a.below.example"):
            assert status(host) == 200
        assert [status(host) for host in ("evil.example", "192.0.2.7")] == [421] * 2
