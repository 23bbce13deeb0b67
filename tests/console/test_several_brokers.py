"""The console of one broker of a cluster: what other brokers know, and partitions that move."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import ClusterOfBrokers
from tests.support.wait import eventually, patience
from tidelog import Admin, NewTopic, Producer

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfBrokers]:
    folder: Path = tmp_path_factory.mktemp("several")
    settings = {"console.listener": "127.0.0.1:0", "console.scheduling.policy": "normal"}
    with ClusterOfBrokers(folder, 2, settings, secured=False) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("spread", replica_assignments={0: [1], 1: [2], 2: [1]})])
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for partition in (0, 1, 2):
                for _ in range(5):
                    producer.send("spread", b"x", partition=partition)
        yield cluster


@pytest.fixture
def api(cluster: ClusterOfBrokers) -> Iterator[httpx.Client]:
    found = eventually(
        lambda: re.search(r"the console answers.*url=(http://[\d.:]+)", cluster[1].log()),
        "the console answers",
        patience(30),
    )
    with httpx.Client(base_url=f"{found[1]}/api/clusters/local", timeout=60) as client:
        yield client


def read(api: httpx.Client, path: str, **query: Any) -> Any:
    answer = api.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_offsets_and_sizes_of_other_brokers_are_asked_for(api: httpx.Client) -> None:
    partitions = eventually(
        lambda: [p for p in read(api, "/topics/spread")["partitions"] if p["end"] == 5] or None,
        "all partitions have five records",
    )
    assert [partition["leader"] for partition in partitions] == [1, 2, 1]
    assert all(partition["bytes"] > 0 for partition in partitions)
    assert [partition["records"] for partition in partitions] == [5, None, 5], "counted where they are led"
    assert len(read(api, "/brokers")["brokers"]) == 2
    assert {item["broker"] for item in read(api, "/log-dirs")["log_dirs"]} == {1, 2}
    rows = {row["name"]: row for row in read(api, "/broker-configs")["rows"]}
    assert rows["broker.id"]["differs"]
    assert not rows["num.io.threads"]["differs"]


def test_a_reassignment_is_previewed_and_moves(api: httpx.Client) -> None:
    plan = read(api, "/reassignment-plan", topics="spread", brokers=2)
    assert [(move["partition"], move["after"]) for move in plan["moves"]] == [(0, [2]), (2, [2])]
    assert plan["bytes"] > 0
    started = api.post("/reassignments", json={"topics": "spread", "brokers": "2"})
    assert started.json() == {"message": "2 partitions move."}

    def moved() -> bool:
        replicas = [partition["replicas"] for partition in read(api, "/topics/spread")["partitions"]]
        return replicas == [[2]] * 3 and not read(api, "/reassignments")["reassignments"]

    eventually(moved, "all replicas are on broker 2", timeout=60, interval=0.2)
    assert read(api, "/reassignment-plan", topics="spread", brokers=2)["moves"] == []
