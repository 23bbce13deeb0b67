"""Where partitions begin and end, and which offset a time has: asked of the leader of each partition."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.clients.admin import Admin, Node, error_of
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

NO_OFFSET = -1
NO_REPLICA = -1


def list_offsets(admin: Admin, times: Mapping[PartitionKey, int]) -> dict[PartitionKey, int | KafkaError]:
    """The first offset at or after a time, LATEST and EARLIEST included; NO_OFFSET where nothing is as late.

    For each partition the offset, or why it is not known.
    """
    found: dict[PartitionKey, int | KafkaError] = {}
    by_leader: dict[Node, list[PartitionKey]] = {}
    for partition, leader in admin.leaders(times).items():
        if isinstance(leader, Node):
            by_leader.setdefault(leader, []).append(partition)
        else:
            found[partition] = leader
    for node, partitions in by_leader.items():
        answer = admin.call_node(node, _request(times, partitions), ListOffsetsResponse)
        for topic in answer.topics:
            for result in topic.partitions:
                found[topic.name, result.partition_index] = error_of(result.error_code) or result.offset
    return found


def _request(times: Mapping[PartitionKey, int], partitions: list[PartitionKey]) -> ListOffsetsRequest:
    request = ListOffsetsRequest(replica_id=NO_REPLICA)
    for topic in sorted({name for name, _ in partitions}):
        wanted = [
            ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=times[name, index])
            for name, index in partitions
            if name == topic
        ]
        request.topics.append(ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=wanted))
    return request
