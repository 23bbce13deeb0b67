"""The cluster as a broker sees it in its metadata, and as the tree has it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse


@dataclass(slots=True, frozen=True)
class View:
    controller: int
    brokers: frozenset[int]
    leaders: frozenset[tuple[str, int, int, int]]
    """Topic, partition, leader and leader epoch of every partition."""

    def __str__(self) -> str:
        leaders = ", ".join(f"{t}-{p}: {leader} in {epoch}" for t, p, leader, epoch in sorted(self.leaders))
        return f"controller {self.controller}, brokers {sorted(self.brokers)}, leaders {leaders}"


def cluster_view(address: tuple[str, int]) -> View | None:
    """What a broker answers; None if it does not answer."""
    try:
        with RawConnection(address, timeout=5) as connection:
            answer = connection.ask(MetadataRequest(topics=None), MetadataResponse, 9)
    except (ConnectionClosed, NoAnswer, OSError):
        return None
    return View(
        answer.controller_id,
        frozenset(broker.node_id for broker in answer.brokers),
        frozenset(
            (topic.name or "", partition.partition_index, partition.leader_id, partition.leader_epoch)
            for topic in answer.topics
            for partition in topic.partitions
        ),
    )


def tree_view(kazoo: KazooClient) -> View | None:
    """What ZooKeeper has; None without a controller, or while topics are created or deleted."""
    leaders = []
    try:
        controller = json.loads(kazoo.get("/controller")[0])["brokerid"]
        brokers = [int(name) for name in kazoo.get_children("/brokers/ids")]
        for topic in kazoo.get_children("/brokers/topics"):
            for index in kazoo.get_children(f"/brokers/topics/{topic}/partitions"):
                data, _ = kazoo.get(f"/brokers/topics/{topic}/partitions/{index}/state")
                state = json.loads(data)
                leaders.append((topic, int(index), state["leader"], state["leader_epoch"]))
    except NoNodeError:
        return None
    return View(controller, frozenset(brokers), frozenset(leaders))
