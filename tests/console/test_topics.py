"""Topics on the console: list, one topic, and every change of them."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any, cast

import httpx

from tests.console.site import Site
from tests.support.wait import eventually
from tidelog.clients.admin.configs import ConfigResource, ResourceType
from tidelog.config.entries import ConfigEntry, ConfigSource
from tidelog.console.api_topics import TopicsQuery, topic_list
from tidelog.console.clusters import Cluster
from tidelog.console.configs import topic_configs
from tidelog.console.snapshot import ClusterSnapshot, GroupSnapshot, PartitionSnapshot, TopicSnapshot
from tidelog.errors import ClusterAuthorizationFailed

API = "/api/clusters/local"


def a_topic(name: str, end: int = 0, *, internal: bool = False, size: int | None = 0) -> TopicSnapshot:
    partition = PartitionSnapshot(0, 1, (1,), (1,), start=0, end=end, size=size)
    return TopicSnapshot(name, f"id-{name}", internal, [partition])


def names(query: TopicsQuery) -> list[str]:
    topics = [
        a_topic("orders", 5),
        a_topic("Payments", 50, size=None),
        a_topic("__offsets", 9, internal=True),
    ]
    return [topic.name for topic in topic_list(topics, query).topics]


def test_topics_are_filtered_sorted_and_paged() -> None:
    assert names(TopicsQuery()) == ["Payments", "orders"]
    assert names(TopicsQuery(search="PAY ments")) == ["Payments"]
    assert names(TopicsQuery(internal=True, sort="records", descending=True)) == [
        "Payments",
        "__offsets",
        "orders",
    ]
    assert names(TopicsQuery(only=["orders"])) == ["orders"]
    assert names(TopicsQuery(size=1, page=2)) == ["orders"]
    assert names(TopicsQuery(size=1, page=99)) == ["orders"]
    assert names(TopicsQuery(sort="size", descending=True)) == ["orders", "Payments"]


def test_a_count_is_exact_only_if_all_partitions_were_counted() -> None:
    topic = a_topic("t", 7)
    assert (topic.records, topic.is_exact) == (7, False)
    topic.partitions[0].records = 4
    assert (topic.records, topic.is_exact) == (4, True)


def test_the_lag_of_a_group_is_unknown_where_an_end_is_unknown() -> None:
    known, unknown = a_topic("known", 10), a_topic("unknown")
    unknown.partitions[0].end = None
    group = GroupSnapshot("g", "classic", "Empty", 0, 1, {("known", 0): 4, ("unknown", 0): 1, ("gone", 0): 1})
    snapshot = ClusterSnapshot("c", 1, [], {"known": known, "unknown": unknown}, {"g": group}, 0)
    snapshot.add_lags()
    assert group.lags == {"known": 6, "unknown": None}
    assert group.lag is None
    assert [(found.group_id, found.lag) for found in known.groups] == [("g", 6)]


def changed(client: httpx.Client, method: str, path: str, **body: Any) -> Any:
    answer = client.request(method, f"{API}{path}", json=body or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_life_of_a_topic(site: Site, client: httpx.Client) -> None:
    changed(
        client,
        "POST",
        "/topics",
        name="life",
        partitions=2,
        settings="retention.ms=1000\n\nmax.message.bytes=9000",
    )
    again = client.post(f"{API}/topics", json={"name": "life"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "TopicAlreadyExists")
    changed(client, "POST", "/topics/life/clone", name="life-copy")
    changed(client, "POST", "/topics/life/partitions", total=3)
    changed(client, "PUT", "/topics/life/configs/cleanup.policy", value="compact")
    changed(client, "DELETE", "/topics/life/configs/max.message.bytes")
    configs = {item["name"]: item for item in site.get("/topics/life/configs")["configs"]}
    assert configs["cleanup.policy"]["value"] == "compact"
    assert configs["cleanup.policy"]["default"] == "delete"
    assert configs["cleanup.policy"]["source"] == "topic"
    assert configs["max.message.bytes"]["is_own"] is False
    assert configs["retention.ms"]["default"] == "604800000", "from log.retention.hours"
    assert site.get("/topics/life")["topic"]["partitions"] == 3
    copied = {item["name"]: item["value"] for item in site.get("/topics/life-copy/configs")["configs"]}
    assert (copied["retention.ms"], copied["max.message.bytes"]) == ("1000", "9000")
    wrong = client.request("DELETE", f"{API}/topics/life", json={"confirm": "live"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "NOT_CONFIRMED")
    changed(client, "DELETE", "/topics/life", confirm="life")
    assert client.get(f"{API}/topics/life").status_code == 404


def test_truncation_deletes_the_records_below_an_offset(site: Site, client: httpx.Client) -> None:
    site.broker.create_topic("cut", 1)
    site.broker.produce("cut", *(b"x" for _ in range(10)))
    changed(client, "POST", "/topics/cut/truncate", confirm="cut", before=4)
    assert site.get("/topics/cut")["partitions"][0]["start"] == 4
    changed(client, "POST", "/topics/cut/truncate", confirm="cut")
    assert site.get("/topics/cut")["topic"]["records"] == 0
    missing = client.post(f"{API}/topics/cut/truncate", json={"confirm": "cut", "partition": 1})
    assert missing.status_code == 404


def test_a_form_leads_to_a_page_of_this_console_or_shows_a_sentence(site: Site, client: httpx.Client) -> None:
    path = f"{API}/topics"
    made = client.post(path, data={"name": "by-form", "partitions": "", "then": "/clusters/local/topics"})
    assert (made.status_code, made.headers["hx-redirect"]) == (204, "/clusters/local/topics")
    assert json.loads(made.headers["hx-trigger"]) == {"done": {"message": "The topic by-form is created."}}
    for elsewhere in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        answer = client.post(f"{path}/by-form/partitions", data={"total": "1", "then": elsewhere})
        assert "hx-redirect" not in answer.headers
    refused = client.post(path, data={"name": "<b>bad</b>"})
    assert refused.status_code == 400
    assert "<b>" not in refused.text
    assert "&lt;b&gt;" in refused.text


def test_a_browser_needs_the_token_of_its_page(site: Site) -> None:
    with httpx.Client(base_url=site.url, timeout=30) as browser:
        page = browser.get("/clusters/local/topics").text
        token = page.partition('X-CSRF-Token": "')[2].partition('"')[0]
        assert len(token) == 64
        body = {"name": "by-browser"}
        assert browser.post(f"{API}/topics", json=body).status_code == 403
        assert browser.post(f"{API}/topics", json=body, headers={"x-csrf-token": "0" * 64}).status_code == 403
        assert browser.post(f"{API}/topics", data=body | {"csrf": token}).status_code == 204
    foreign = httpx.post(
        f"{site.url}{API}/topics",
        data={"name": "x"},
        headers={"origin": "https://evil.example"},
        timeout=30,
    )
    assert foreign.status_code == 403


def test_groups_with_lag_are_listed_with_their_topics(site: Site) -> None:
    from tidelog import Consumer

    site.broker.create_topic("read", 1)
    site.broker.produce("read", *(b"x" for _ in range(9)))
    address = site.broker.bootstrap_servers
    with Consumer(bootstrap_servers=address, group_id="reader<i>", enable_auto_commit=False) as consumer:
        consumer.commit({("read", 0): 3})

    def lag() -> Any:
        return site.get("/topics/read")["topic"]["groups"]

    assert eventually(lag, "the group is known") == [{"group": "reader<i>", "lag": 6}]
    page = site.page("/topics", search="read")
    assert "reader&lt;i&gt;" in page
    assert "reader<i>" not in page
    assert site.get("/topics", only=["read", "no-such"])["total"] == 1
    assert "reader&lt;i&gt;" in site.page("/topics/read/groups")


def test_a_topic_with_many_groups_leads_to_all_of_them(site: Site) -> None:
    from tidelog import Admin

    site.broker.create_topic("popular", 1)
    groups = {f"popular-{number}" for number in range(5)}
    with Admin(bootstrap_servers=site.broker.bootstrap_servers) as admin:
        for group in groups:
            admin.alter_consumer_group_offsets(group, {("popular", 0): 0})

    def link() -> str:
        found = re.search(r'href="([^"]+)">2 more', site.page("/topics", search="popular"))
        return found[1] if found else ""

    page = site.http.get(eventually(link, "the list has the groups")).text
    assert {group for group in groups if f">{group}</a>" in page} == groups


def test_links_of_a_list_keep_all_favourites(site: Site) -> None:
    favourites = ["kept-b", "kept-a"]
    for name in favourites:
        site.broker.create_topic(name, 1)
    eventually(lambda: site.get("/topics", only=favourites)["total"] == 2, "the topics are listed")
    page = site.page("/topics", only=favourites, search="")
    kept = "only=kept-b&amp;only=kept-a"
    assert f'href="/clusters/local/topics?{kept}&amp;sort=records&amp;descending=true"' in page


def test_a_setting_of_a_topic_is_escaped(site: Site, client: httpx.Client) -> None:
    hostile = '"><script>alert(1)</script>'
    client.post(
        f"{API}/topics", json={"name": "hostile", "configs": {"follower.replication.throttled.replicas": "*"}}
    )
    for path in ("/topics/hostile", "/topics/hostile/settings", "/topics/hostile/settings/cleanup.policy"):
        assert "<script>alert" not in site.page(path)
    shown = site.page("/topics", search=hostile)
    assert "<script>alert" not in shown
    assert site.http.get(f"/clusters/local/topics/{'%3Cscript%3Ealert(1)%3C%2Fscript%3E'}").status_code == 404
    assert "<script>alert" not in site.page("/palette", q=hostile)
    assert "<script>alert" not in site.page("/cluster/reassign", topics=hostile, preview="1")
    assert "<script>alert" not in site.page("/cluster/configs", search=hostile)


def test_the_count_of_a_topic_is_exact_with_transactions(site: Site) -> None:
    from tidelog import Producer

    site.broker.create_topic("transacted", 1)
    with Producer(bootstrap_servers=site.broker.bootstrap_servers, transactional_id="exact") as producer:
        producer.init_transactions()
        for _ in range(3):
            producer.begin_transaction()
            producer.send("transacted", b"one")
            producer.send("transacted", b"two")
            producer.commit_transaction()
    found = eventually(
        lambda: [topic for topic in [site.get("/topics/transacted")["topic"]] if topic["records"] == 6],
        "six records without their three markers",
    )
    assert found[0]["is_exact"]
    assert site.get("/topics/transacted")["partitions"][0]["end"] == 9


def test_the_settings_of_a_topic_are_shown_to_who_may_not_see_those_of_brokers() -> None:
    own = ConfigEntry("retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG)

    async def describe_configs(resources: list[ConfigResource], **_: object) -> object:
        (resource,) = resources
        if resource.type is ResourceType.BROKER:
            raise ClusterAuthorizationFailed("the settings of brokers")
        return {resource: {own.name: own}}

    async def snapshot() -> object:
        return SimpleNamespace(brokers=[SimpleNamespace(broker_id=1)])

    cluster = SimpleNamespace(admin=SimpleNamespace(describe_configs=describe_configs), snapshot=snapshot)
    (item,) = asyncio.run(topic_configs(cast(Cluster, cluster), "t"))
    assert (item.value, item.default) == ("1000", None)
