"""Groups on the console: list, detail, reset with review, deletion; hostile names in all of them."""

from __future__ import annotations

import html
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.console.site import Site
from tests.support.wait import eventually
from tidelog import Admin, Consumer
from tidelog.clients.offsets import OffsetAndMetadata
from tidelog.console.pages_groups import by_topic

HOSTILE = "<img src=x onerror=alert(1)>\"'/../{{7*7}}"


@pytest.fixture(scope="module")
def groups(site: Site) -> Iterator[Site]:
    """A topic of 30 records, a group 20 behind, one that never committed there, and one with a bad name."""
    site.broker.create_topic("g-orders", partitions=2)
    site.broker.create_topic("g-users")
    for partition in (0, 1):
        site.broker.produce("g-orders", *(f"{n}" for n in range(15)), partition=partition, timestamp_ms=1000)
    site.broker.produce("g-users", "a", "b", "c")
    with Admin(bootstrap_servers=site.broker.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets("g-billing", {("g-orders", 0): 5, ("g-orders", 1): 5})
        admin.alter_consumer_group_offsets("g-search", {("g-orders", 0): 15, ("g-users", 0): 1})
        admin.alter_consumer_group_offsets(HOSTILE, {("g-users", 0): OffsetAndMetadata(0, HOSTILE)})
    eventually(lambda: "g-billing" in str(site.get("/groups", search="g-")), "the snapshot has the groups")
    return site


def change(site: Site, method: str, path: str, body: Any) -> httpx.Response:
    """A change by a program, which has no cookies."""
    return httpx.request(method, f"{site.url}/api/clusters/local{path}", json=body, timeout=30)


def path_of(group: str, *more: str) -> str:
    return "/groups/" + "/".join([quote(group, safe=""), *more])


def test_the_list_has_the_lags(groups: Site) -> None:
    found = {item["group"]: item for item in groups.get("/groups", search="g-", sort="lag")["groups"]}
    assert found["g-billing"]["lag"] == 20
    assert found["g-billing"]["topics"] == ["g-orders"]
    assert found["g-search"]["lag"] == 2
    assert found["g-billing"]["state"] == "Empty"
    by_lag = groups.get("/groups", search="g-", sort="lag", descending="true")["groups"]
    assert by_lag[0]["group"] == "g-billing"


def test_the_lag_of_a_topic_in_time_is_a_lower_limit_where_that_of_its_partition_is() -> None:
    def partition(topic: str, seconds: float | None, at_least: bool) -> SimpleNamespace:
        return SimpleNamespace(topic=topic, lag=1, seconds=seconds, at_least=at_least)

    found: Any = SimpleNamespace(
        partitions=[
            partition("a", 5.0, False),
            partition("a", 76.0, True),
            partition("b", 9.0, False),
            partition("c", None, False),
        ]
    )
    assert [row[:4] for row in by_topic(found)] == [
        ("a", 2, 76.0, True),
        ("b", 1, 9.0, False),
        ("c", 1, None, False),
    ]


def test_the_list_is_filtered_by_state_and_topic(groups: Site) -> None:
    assert {item["group"] for item in groups.get("/groups", search="g-users")["groups"]} == {
        "g-search",
        HOSTILE,
    }
    assert groups.get("/groups", search="g-", state="Stable")["total"] == 0
    assert groups.get("/groups", search="g-", size=1, page=2)["pages"] == 3


def test_the_pages_show_hostile_names_as_text(groups: Site) -> None:
    group = path_of(HOSTILE)
    for path in ("/groups", group, f"{group}?tab=reset", f"{group}?tab=members"):
        answer = groups.http.get(f"/clusters/local{path}")
        assert answer.status_code == 200
        assert "<img src=x" not in answer.text
        assert html.escape(HOSTILE) in answer.text or "&lt;img src=x" in answer.text
        assert "49" not in answer.text.partition("{{7")[0][-10:]


def test_a_group_that_reads_shows_members_and_partitions_without_offset(groups: Site) -> None:
    with Consumer(
        bootstrap_servers=groups.broker.bootstrap_servers,
        group_id="g-live",
        client_id="<b>reader</b>",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(["g-orders"])
        eventually(lambda: bool(consumer.poll(0.1)), "the consumer reads")
        found = groups.get(path_of("g-live"))
        assert found["group"]["state"] == "Stable"
        assert found["members"][0]["client"] == "<b>reader</b>"
        assert sorted(map(tuple, found["members"][0]["partitions"])) == [("g-orders", 0), ("g-orders", 1)]
        assert [(row["committed"], row["lag"]) for row in found["partitions"]] == [(None, None)] * 2
        page = groups.page(path_of("g-live"), tab="members")
        assert "&lt;b&gt;reader&lt;/b&gt;" in page
        assert "<b>reader</b>" not in page
        body = {"target": "earliest", "topics": "g-orders", "dry_run": False}
        refused = change(groups, "POST", path_of("g-live", "reset"), body)
        assert refused.status_code == 409
        assert "stop its consumers" in refused.json()["error"]["message"]


def reset(site: Site, group: str, **body: Any) -> Any:
    answer = change(site, "POST", path_of(group, "reset"), body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ({"target": "earliest"}, {("g-orders", 0): 0, ("g-orders", 1): 0}),
        ({"target": "latest"}, {("g-orders", 0): 15, ("g-orders", 1): 15}),
        ({"target": "offset", "offset": 7, "topics": "g-orders:1"}, {("g-orders", 1): 7}),
        ({"target": "shift", "by": -100}, {("g-orders", 0): 0, ("g-orders", 1): 0}),
        ({"target": "time", "time": "1970-01-01T00:00:01"}, {("g-orders", 0): 0, ("g-orders", 1): 0}),
        ({"target": "time", "time": "2100-01-01T00:00"}, {("g-orders", 0): 15, ("g-orders", 1): 15}),
        ({"target": "group", "from_group": "g-search"}, {("g-orders", 0): 15, ("g-users", 0): 1}),
        (
            {"target": "earliest", "topics": "g-orders g-users"},
            {("g-orders", 0): 0, ("g-orders", 1): 0, ("g-users", 0): 0},
        ),
        ({"target": "plan", "plan": "g-orders,0,3\n"}, {("g-orders", 0): 3}),
    ],
)
def test_a_dry_run_shows_before_and_after_and_changes_nothing(
    groups: Site, body: dict[str, Any], after: dict[tuple[str, int], int]
) -> None:
    found = reset(groups, "g-billing", **body)
    assert {(row["topic"], row["partition"]): row["after"] for row in found["rows"]} == after
    assert all(row["before"] in (5, None) for row in found["rows"])
    assert found["dry_run"] is True
    assert groups.get(path_of("g-billing"))["group"]["lag"] == 20


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"target": "earliest", "topics": "nowhere"}, 404, "nowhere does not exist"),
        ({"target": "earliest", "topics": "g-orders:9"}, 404, "g-orders-9 does not exist"),
        ({"target": "earliest", "topics": "g-orders:x"}, 400, "Invalid partition"),
        ({"target": "time", "time": "tomorrow"}, 400, "is not like"),
        ({"target": "offset"}, 400, "needs an offset"),
        ({"target": "offset", "offset": -1}, 400, ">= 0"),
        ({"target": "shift"}, 400, "number of records"),
        ({"target": "shift", "by": 1, "topics": "g-users"}, 400, "no current committed offset"),
        ({"target": "group"}, 400, "another group"),
        ({"target": "plan", "plan": "g-orders,0"}, 400, "2 columns"),
        ({"target": "nirvana"}, 400, "not right"),
    ],
)
def test_a_wrong_reset_says_what_is_wrong(groups: Site, body: Any, status: int, message: str) -> None:
    answer = change(groups, "POST", path_of("g-billing", "reset"), body)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text


def test_the_reviewed_plan_is_what_is_committed(groups: Site) -> None:
    with Admin(bootstrap_servers=groups.broker.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets("g-reset", {("g-orders", 0): 5, ("g-orders", 1): 5})
        page = groups.page(path_of("g-reset"), tab="reset", target="shift", by="3")
        assert "Set these 2 offsets" in page
        assert "+3" in page
        plan = reset(groups, "g-reset", target="shift", by=3)["plan"]
        reset(groups, "g-reset", target="plan", plan=plan, dry_run=False)
        committed = admin.list_consumer_group_offsets(["g-reset"])["g-reset"]
        assert {key: found.offset for key, found in committed.items()} == {
            ("g-orders", 0): 8,
            ("g-orders", 1): 8,
        }


def test_the_page_says_why_there_is_no_review(groups: Site) -> None:
    page = groups.page(path_of("g-billing"), tab="reset", target="time", time="<script>")
    assert "is not like" in page
    assert "<script>&#39;" not in page


def test_offsets_of_one_topic_are_deleted(groups: Site) -> None:
    with Admin(bootstrap_servers=groups.broker.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets("g-two", {("g-orders", 0): 1, ("g-users", 0): 1})
        eventually(lambda: "g-two" in str(groups.get("/groups")), "the snapshot has the group")
        answer = change(groups, "DELETE", path_of("g-two", "offsets"), {"topic": "g-users"})
        assert answer.status_code == 200, answer.text
        assert list(admin.list_consumer_group_offsets(["g-two"])["g-two"]) == [("g-orders", 0)]


def test_a_group_is_deleted_after_its_id_was_typed(groups: Site) -> None:
    with Admin(bootstrap_servers=groups.broker.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets("g/slash", {("g-users", 0): 1})
        path = path_of("g/slash")
        wrong = change(groups, "DELETE", path, {"confirm": "g"})
        assert wrong.json()["error"]["code"] == "NOT_CONFIRMED"
        assert change(groups, "DELETE", path, {"confirm": "g/slash"}).status_code == 200
        assert "g/slash" not in [group.group_id for group in admin.list_groups()]
    assert groups.http.get(f"/api/clusters/local{path}").status_code == 404


def test_the_history_has_samples(groups: Site) -> None:
    def sampled() -> list[Any]:
        samples: list[Any] = groups.get(path_of("g-billing", "history"))["samples"]
        return samples

    samples = eventually(sampled, "a sample", timeout=30.0)
    assert samples[-1]["lag"] == 20


def test_a_live_page_sends_samples(groups: Site) -> None:
    with groups.http.stream("GET", f"/clusters/local{path_of('g-billing', 'live')}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "event: sample"
        assert '"lag":20' in next(lines)


@pytest.mark.parametrize("path", ["../../../etc/passwd", "..%2f..%2fsecret", "%00", "\x7f", "a" * 5000])
def test_odd_paths_are_just_unknown_groups(groups: Site, path: str) -> None:
    for prefix in ("/api/clusters/local/groups/", "/clusters/local/groups/", "/static/"):
        answer = httpx.get(f"{groups.url}{prefix}{quote(path, safe='%')}", timeout=30)
        assert answer.status_code == 404
        assert "root:" not in answer.text
