"""The cluster as a broker sees it in its metadata, and as the tree has it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.offset_specs import LATEST


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


def unserved(address: tuple[str, int], broker_id: int, view: View) -> list[str]:
    """The partitions that a broker leads and does not serve, with the error codes."""
    topics: dict[str, list[int]] = {}
    for topic, partition, leader, _ in view.leaders:
        if leader == broker_id:
            topics.setdefault(topic, []).append(partition)
    if not topics:
        return []
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=LATEST)
                    for index in partitions
                ],
            )
            for topic, partitions in topics.items()
        ],
    )
    try:
        with RawConnection(address, timeout=5) as connection:
            answer = connection.ask(request, ListOffsetsResponse, 6)
    except (ConnectionClosed, NoAnswer, OSError) as error:
        return [f"broker {broker_id} does not answer: {error}"]
    return [
        f"{topic.name}-{partition.partition_index} of broker {broker_id}: error {partition.error_code}"
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code
    ]


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
