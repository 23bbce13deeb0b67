"""The ends of partitions that other brokers lead, as the coordinator of a group learns them."""

from __future__ import annotations

import asyncio
from typing import cast

from tests.support.wait import eventually_async
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.transport import BrokerConnection, Transport
from tidelog.endpoints import Endpoint
from tidelog.errors import NetworkException
from tidelog.metadata.state import PartitionState
from tidelog.protocol.message import Message
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.server.leader_offsets import LeaderOffsets

PARTITION = ListOffsetsResponse.ListOffsetsPartitionResponse


class Leaders:
    """Brokers 1 and 2: broker 1 answers, broker 2 cannot be reached."""

    def __init__(self) -> None:
        self.asked: list[ListOffsetsRequest] = []
        self.closed = False

    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> BrokerConnection:
        if broker_id != 1:
            raise NetworkException("nobody is there")
        return cast("BrokerConnection", self)

    async def call(
        self,
        request: Message,
        answer: type[Message],
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> Message:
        assert isinstance(request, ListOffsetsRequest)
        self.asked.append(request)
        return ListOffsetsResponse(
            topics=[
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        PARTITION(partition_index=each.partition_index, offset=100 + each.partition_index)
                        if each.partition_index < 2
                        else PARTITION(partition_index=each.partition_index, error_code=6)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def close(self, reason: str = "") -> None:
        self.closed = True


class Snapshot:
    """Partitions 0, 1 and 2 of t are led by broker 1, partition 3 by broker 2, partition 4 by nobody."""

    def partition(self, topic: str, index: int) -> PartitionState | None:
        leaders = {0: 1, 1: 1, 2: 1, 3: 2, 4: -1}
        if topic != "t" or index not in leaders:
            return None
        return PartitionState(leader=leaders[index], leader_epoch=0, replicas=[1], isr=[1])


class Metadata:
    snapshot = Snapshot()


def test_each_leader_is_asked_once_for_all_its_partitions() -> None:
    async def scenario() -> None:
        leaders = Leaders()
        offsets = LeaderOffsets(
            cast("MetadataCache", Metadata()),
            cast("Transport", leaders),
            lambda broker_id: Endpoint("B", "PLAINTEXT", "localhost", 1) if broker_id >= 0 else None,
        )
        wanted = [("t", index) for index in range(5)] + [("gone", 0)]
        offsets.refresh(wanted)
        offsets.refresh(wanted)  # while the first request is under way
        await eventually_async(lambda: len(offsets.known) == 2, "the answer of broker 1")
        assert offsets.known == {("t", 0): 100, ("t", 1): 101}
        assert len(leaders.asked) == 1
        offsets.refresh([("t", 1)])
        assert offsets.known == {("t", 1): 101}
        await eventually_async(lambda: len(leaders.asked) == 2, "the next question")
        assert [len(topic.partitions) for topic in leaders.asked[1].topics] == [1]
        offsets.close()
        assert leaders.closed

    asyncio.run(scenario())
