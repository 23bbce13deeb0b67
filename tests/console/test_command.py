"""`tidelog console`: the pages for clusters whose memory the console cannot read."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from tests.console.site import Site
from tests.support.wait import eventually
from tidelog.console.access import Access
from tidelog.console.app import make_app
from tidelog.console.clusters import Cluster, Clusters
from tidelog.console.server import ConsoleServer
from tidelog.errors import NetworkException


@pytest.fixture(scope="module")
def other(site: Site) -> Iterator[httpx.Client]:
    """A console beside the broker, with a second cluster that does not answer."""
    site.broker.create_topic("elsewhere", 2)
    site.broker.produce("elsewhere", b"a", b"b", b"c")

    def clusters() -> Clusters:
        here = Cluster("here", {"bootstrap.servers": site.broker.bootstrap_servers})
        gone = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 300, "request.timeout.ms": 100}
        return Clusters([here, Cluster("gone", gone, colour="rose", read_only=True)])

    server = ConsoleServer("127.0.0.1", 0, clusters, Access())
    server.start()
    try:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield client
    finally:
        server.close()


def test_counts_by_offsets_are_marked(other: httpx.Client) -> None:
    topic = other.get("/api/clusters/here/topics/elsewhere").json()["topic"]
    assert (topic["records"], topic["is_exact"], topic["records_per_s"]) == (3, False, None)
    assert topic["bytes"] > 0
    assert "~3" in other.get("/clusters/here/topics", params={"search": "elsewhere"}).text


def test_every_page_works_without_a_local_broker(other: httpx.Client) -> None:
    for path in ("", "/topics", "/topics/elsewhere", "/topics/elsewhere/settings", "/cluster"):
        assert other.get(f"/clusters/here{path}").status_code == 200
    assert "console.listener" in other.get("/clusters/here/cluster/connections").text
    assert other.get("/api/clusters/here/connections").status_code == 501


def test_clusters_stand_side_by_side(other: httpx.Client) -> None:
    listed = other.get("/api/clusters").json()["clusters"]
    assert [(item["name"], item["colour"]) for item in listed] == [("here", "teal"), ("gone", "rose")]
    assert 'href="/clusters/gone"' in other.get("/clusters/here").text
    first = other.get("/", follow_redirects=True)
    assert first.url.path == "/clusters"
    rows = re.findall(r'<tr class="colour-(\w+)" hx-get="([^"]+)"', first.text)
    assert rows == [
        ("teal", "/clusters/here/overview/summary"),
        ("rose", "/clusters/gone/overview/summary"),
    ]
    here, gone = (other.get(path) for _, path in rows)
    assert "healthy" in here.text
    assert here.text.count("<td") == 7
    assert gone.status_code == 200
    assert "does not answer" in gone.text


def test_the_names_of_clusters_are_parts_of_addresses() -> None:
    async def home(*names: str) -> str:
        clusters = Clusters([Cluster(name, {"bootstrap.servers": "127.0.0.1:1"}) for name in names])
        transport = httpx.ASGITransport(make_app(clusters))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/")
            page = await client.get("/clusters")
        await clusters.close()
        assert all(f'href="/clusters/{quote(name)}"' in page.text for name in names)
        return answer.headers["location"]

    assert asyncio.run(home("50% #1?")) == "/clusters/50%25%20%231%3F"
    assert asyncio.run(home("50% #1?", "b&c")) == "/clusters"


def test_an_open_overview_tells_that_the_cluster_is_gone(other: httpx.Client) -> None:
    with other.stream("GET", "/clusters/gone/overview/live") as answer:
        assert any("The cluster does not answer" in line for line in answer.iter_lines())


def test_a_cluster_that_does_not_answer_says_so(other: httpx.Client) -> None:
    page = other.get("/clusters/gone/topics")
    assert page.status_code in (502, 504)
    assert "The cluster does not answer" in page.text
    assert "error" in other.get("/api/clusters/gone/topics").json()


def test_a_read_only_cluster_refuses_changes_and_offers_none(other: httpx.Client) -> None:
    refused = httpx.post(
        str(other.base_url.join("/api/clusters/gone/topics")), json={"name": "x"}, timeout=30
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "READ_ONLY")


def test_the_command_prints_its_address_and_ends_with_a_signal() -> None:
    command = [sys.executable, "-m", "tidelog", "console", "--bootstrap-server", "127.0.0.1:1"]
    process = subprocess.Popen(
        [*command, "--listener", "127.0.0.1:0", "--read-only"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found is not None
        listed = eventually(
            lambda: httpx.get(f"{found[0]}/api/clusters", timeout=30).json(), "the console answers"
        )
        assert listed["clusters"][0]["name"] == "cluster"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


def test_a_cluster_that_is_down_is_told_at_once() -> None:
    async def look() -> None:
        cluster = Cluster("gone", {"bootstrap.servers": "127.0.0.1:1"})
        try:
            with pytest.raises(NetworkException, match=r"cannot connect to 127\.0\.0\.1:1"):
                await cluster.snapshot()
        finally:
            await cluster.close()

    asyncio.run(look())
