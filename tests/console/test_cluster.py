"""The cluster on the console: brokers, log folders, settings, connections, elections, reassignments."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from unittest.mock import AsyncMock

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.console.site import Site
from tests.support.scale import scale
from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.cluster import PartitionReassignment
from tidelog.console.api_reassignments import PlanBody, parse_wish, reassignment_item, running
from tidelog.console.clusters import Cluster
from tidelog.console.configs import ConfigItem, compare
from tidelog.console.health import health_of
from tidelog.console.local_broker import BrokerFigures, LatencyFigures, LogDirFigures
from tidelog.console.pages_cluster import picture
from tidelog.console.reassignment_plan import PlanRefused, plan
from tidelog.console.snapshot import BrokerSnapshot, ClusterSnapshot, PartitionSnapshot, TopicSnapshot
from tidelog.metrics.registry import Histogram
from tidelog.server.console_view import latency_figures

API = "/api/clusters/local"


def snapshot_of(*partitions: PartitionSnapshot, controller: int | None = 1) -> ClusterSnapshot:
    brokers = [BrokerSnapshot(number, "host", 9092) for number in (1, 2, 3)]
    return ClusterSnapshot(
        "c", controller, brokers, {"t": TopicSnapshot("t", "", False, list(partitions))}, {}, 0
    )


def figures(**changed: object) -> BrokerFigures:
    values: dict[str, object] = dict.fromkeys(BrokerFigures.__dataclass_fields__, 0)
    values |= {"version": "1", "has_controller": True, "latency": {}, "log_dirs": []} | changed
    return BrokerFigures(**values)  # type: ignore[arg-type]


def test_the_progress_of_a_move_counts_the_bytes_of_added_replicas() -> None:
    key = ("t", 0)
    snapshot = snapshot_of(PartitionSnapshot(0, 1, (1, 2, 3), (1, 2), size=1000))
    moving = PartitionReassignment([1, 2, 3], [2, 3], [1])
    assert reassignment_item(snapshot, key, moving, {}).copied == 0.5
    assert reassignment_item(snapshot, key, moving, {(3, key): 500}).copied == 0.75
    assert reassignment_item(snapshot, key, moving, {(3, key): 1000}).copied == 0.995, "not in sync yet"


class MovingCluster(Cluster):
    """Two topics move; the principal sees the topic t."""

    def __init__(self) -> None:
        super().__init__("moving", {"bootstrap.servers": "127.0.0.1:1"})
        moving = PartitionReassignment([1, 2], [2], [])
        self.asked = AsyncMock(spec=AsyncAdmin)
        self.asked.list_partition_reassignments.return_value = {("t", 0): moving, ("other", 0): moving}
        self.asked.describe_log_dirs.return_value = {}

    @property
    def admin(self) -> AsyncAdmin:
        return self.asked

    async def snapshot(self, *, fresh: bool = False) -> ClusterSnapshot:
        return snapshot_of(PartitionSnapshot(0, 1, (1, 2), (1,), size=1000))


def test_moves_of_topics_that_the_principal_does_not_see_are_left_out() -> None:
    assert [moving.topic for moving in asyncio.run(running(MovingCluster()))] == ["t"]


def test_topics_and_brokers_of_a_plan_have_commas_or_spaces_between_them() -> None:
    assert parse_wish(PlanBody(topics="a, b c", brokers="1 2,3")) == (["a", "b", "c"], [1, 2, 3])


def test_a_minute_without_requests_has_no_times() -> None:
    now = 0.0
    times = Histogram(0.001, clock=lambda: now)
    times.record(1500)
    assert latency_figures(1, times).p99 == pytest.approx(1.5, rel=0.1)
    now = 61.0
    assert latency_figures(1, times) == LatencyFigures(1, None, None, None)


def test_every_reason_why_a_cluster_is_not_healthy_is_told() -> None:
    fine = PartitionSnapshot(0, 1, (1, 2), (1, 2))
    assert health_of(snapshot_of(fine), figures()).state == "healthy"
    ill = snapshot_of(
        PartitionSnapshot(0, -1, (1, 2), (1,)), PartitionSnapshot(1, 1, (1, 2), (1,)), controller=None
    )
    full = LogDirFigures("/full", None, 100, 5)
    failed = LogDirFigures("/failed", "I/O error", None, None)
    health = health_of(ill, figures(under_min_isr=2, log_dirs=[full, failed]))
    assert health.state == "error"
    assert {reason.code for reason in health.reasons} == {
        "NO_CONTROLLER",
        "OFFLINE_PARTITIONS",
        "UNDER_REPLICATED",
        "UNDER_MIN_ISR",
        "DISK_NEARLY_FULL",
        "FAILED_LOG_DIR",
    }
    texts = " ".join(reason.text for reason in health.reasons)
    assert "t-0" in texts
    assert "5% of it is free" in texts
    assert health_of(snapshot_of(PartitionSnapshot(1, 1, (1, 2), (1,))), None).state == "warning"


def test_a_broker_that_is_down_is_named() -> None:
    found = health_of(snapshot_of(PartitionSnapshot(0, 1, (1, 4, 5), (1,))), None)
    assert [(reason.severity, reason.code) for reason in found.reasons] == [
        ("warning", "BROKERS_DOWN"),
        ("warning", "UNDER_REPLICATED"),
    ]
    assert found.reasons[0].text == "2 brokers are down: 4, 5."


def test_the_picture_shows_each_replica_by_what_it_does() -> None:
    found = picture(
        snapshot_of(PartitionSnapshot(0, 2, (1, 2, 3), (1, 2)), PartitionSnapshot(1, 1, (1,), (1,)))
    )
    looks = {broker.broker: [cell.look for cell in broker.cells] for broker in found}
    assert looks == {1: ["leader", "follower"], 2: ["acting"], 3: ["behind"]}


def test_settings_that_differ_between_brokers_are_marked() -> None:
    def item(value: str, source: str = "default") -> ConfigItem:
        return ConfigItem("num.io.threads", value, "8", source, False, False, False, None)

    (same,) = compare({1: [item("8")], 2: [item("8")]})
    assert (same.differs, same.is_changed) == (False, False)
    (other,) = compare({1: [item("8")], 2: [item("4", "file of the broker")]})
    assert (other.differs, other.is_changed) == (True, True)
    assert compare({1: [item("8")], 2: []})[0].differs


@given(
    st.integers(1, 6).flatmap(
        lambda brokers: st.tuples(
            st.lists(st.permutations(range(brokers)), min_size=1, max_size=24),
            st.integers(1, brokers),
            st.sets(st.integers(0, brokers - 1), min_size=1),
            st.lists(st.sampled_from([None, "a", "b"]), min_size=brokers, max_size=brokers),
        )
    )
)
def test_a_plan_uses_the_wanted_brokers_alike(
    given_plan: tuple[list[list[int]], int, set[int], list[str | None]],
) -> None:
    orders, factor, wanted, racks = given_plan
    partitions = {("t", index): tuple(order[:factor]) for index, order in enumerate(orders)}
    moves = plan(partitions, wanted, dict(enumerate(racks)))
    after = partitions | {(move.topic, move.partition): move.after for move in moves}
    copies = min(factor, len(wanted))
    load = dict.fromkeys(wanted, 0)
    for replicas in after.values():
        assert len(set(replicas)) == len(replicas) == copies
        assert set(replicas) <= wanted
        for broker in replicas:
            load[broker] += 1
    if len(set(racks)) == 1:
        assert max(load.values()) - min(load.values()) <= 1
    assert all(move.before != move.after for move in moves)


def test_a_plan_that_is_done_moves_nothing() -> None:
    partitions = {("t", index): (index % 3, (index + 1) % 3) for index in range(9)}
    assert plan(partitions, range(3), {}) == []


def test_a_plan_of_many_partitions_is_made_at_once() -> None:
    """Thousands of partitions from three brokers to six: the page of the preview waits for it."""
    topics = scale(3000, 10_000)
    partitions = {
        (f"t{topic}", index): tuple((topic + index + at) % 3 for at in range(3))
        for topic in range(topics)
        for index in range(3)
    }
    began = time.thread_time()
    moves = plan(partitions, range(6), {})
    spent = time.thread_time() - began
    load = Counter(broker for move in moves for broker in move.adding)
    assert load == dict.fromkeys((3, 4, 5), topics * 3 // 2)
    assert spent < 0.4 * topics / 3000


def test_a_plan_with_more_replicas_than_brokers_is_refused() -> None:
    with pytest.raises(PlanRefused, match="3 replicas need as many brokers, but 2 are chosen"):
        plan({("t", 0): (1,)}, [1, 2], {}, 3)
    with pytest.raises(PlanRefused, match="No broker"):
        plan({("t", 0): (1,)}, [], {})


def test_the_cluster_of_one_broker(site: Site) -> None:
    (broker,) = site.get("/brokers")["brokers"]
    assert broker["is_controller"]
    assert broker["replica_skew"] == 0
    (log_dir,) = site.get("/log-dirs")["log_dirs"]
    assert log_dir["path"] == site.broker.data
    assert log_dir["total_bytes"] > log_dir["free_bytes"] > 0
    assert log_dir["partitions"] >= broker["replicas"]
    rows = {row["name"]: row for row in site.get("/broker-configs")["rows"]}
    assert rows["num.io.threads"]["is_changed"]
    software = {item["software"] for item in site.get("/connections")["connections"]}
    assert software
    for path in ("", "/log-dirs", "/configs", "/connections", "/reassign"):
        assert "Cluster</h1>" in site.page(f"/cluster{path}")


def test_a_plan_of_one_broker_moves_nothing_and_names_what_does_not_exist(
    site: Site, client: httpx.Client
) -> None:
    assert site.get("/reassignment-plan")["moves"] == []
    for query in ({"topics": "no-such"}, {"brokers": 99999}):
        assert client.get(f"{API}/reassignment-plan", params=query).status_code == 404
    refused = client.get(f"{API}/reassignment-plan", params={"replication_factor": 5})
    assert refused.json()["error"]["code"] == "PLAN_REFUSED"
    assert site.get("/reassignments") == {"reassignments": []}
    assert "is no id of a broker" in site.page("/cluster/reassign", brokers="x", preview="1")


def test_elections(site: Site, client: httpx.Client) -> None:
    site.broker.create_topic("elected")
    done = client.post(f"{API}/elections", json={"topic": "elected"})
    assert done.json() == {"message": "0 leaders were elected."}
    unclean = client.post(f"{API}/elections", json={"kind": "unclean"})
    assert unclean.json()["error"]["code"] == "NOT_CONFIRMED"
    assert client.post(f"{API}/elections", json={"topic": "no-such"}).status_code == 404
