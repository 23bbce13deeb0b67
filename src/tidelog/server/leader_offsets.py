"""LeaderOffsets: the end offsets of partitions that other brokers lead, for the lag of groups.

A coordinator knows the commits of its groups, and the leaders know the ends of the logs. Each leader gets one
request for all partitions, so the cost grows with the number of brokers and not with the number of groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.transport import EndpointOf, Transport
from tidelog.coordinator.transaction.broker_link import BrokerLink
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

log = logging.getLogger("tidelog.server.lag")

LATEST: Final = -1
CONSUMER: Final = -1
TIMEOUT_MS: Final = 5000
MAX_PARTITIONS: Final = 20_000
"""The partitions of a request: a broker refuses one with more than 100,000 elements."""


class LeaderOffsets:
    """`refresh` asks the leaders in the background; `known` has their last answers."""

    def __init__(self, metadata: MetadataCache, transport: Transport, endpoint_of: EndpointOf) -> None:
        self.known: dict[PartitionKey, int] = {}
        self._metadata = metadata
        self._transport = transport
        self._endpoint_of = endpoint_of
        self._links: dict[int, BrokerLink] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}

    def refresh(self, partitions: Iterable[PartitionKey]) -> None:
        """Ask the leaders of these partitions, except those with an unanswered request.

        Forgets other partitions.
        """
        by_leader: dict[int, list[PartitionKey]] = {}
        wanted = set(partitions)
        for partition in wanted:
            state = self._metadata.snapshot.partition(*partition)
            if state is not None and self._endpoint_of(state.leader) is not None:
                by_leader.setdefault(state.leader, []).append(partition)
        self.known = {partition: end for partition, end in self.known.items() if partition in wanted}
        for leader, led in by_leader.items():
            if leader not in self._asking:
                task = asyncio.get_running_loop().create_task(self._ask(leader, led[:MAX_PARTITIONS]))
                self._asking[leader] = task
                task.add_done_callback(partial(self._answered, leader))

    def _answered(self, leader: int, _task: asyncio.Task[None]) -> None:
        self._asking.pop(leader, None)

    async def _ask(self, leader: int, partitions: list[PartitionKey]) -> None:
        link = self._links.get(leader)
        if link is None:
            link = BrokerLink(leader, self._endpoint_of, self._transport, lambda: TIMEOUT_MS)
            self._links[leader] = link
        try:
            answer = await link.call(_request(partitions), ListOffsetsResponse)
        except KafkaError as error:
            log.debug("broker %d does not tell the ends of its partitions: %s", leader, error)
            return
        self.known.update(_ends(answer))

    def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        for link in self._links.values():
            link.close("the broker stops")


def _request(partitions: Iterable[PartitionKey]) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = {}
    for topic, index in partitions:
        partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=LATEST)
        topics.setdefault(topic, []).append(partition)
    return ListOffsetsRequest(
        replica_id=CONSUMER,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=of) for name, of in topics.items()],
        timeout_ms=TIMEOUT_MS,
    )


def _ends(answer: ListOffsetsResponse) -> Iterator[tuple[PartitionKey, int]]:
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code == 0:
                yield (topic.name, partition.partition_index), partition.offset
