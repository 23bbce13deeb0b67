"""Reading a partition with a plain Fetch, so that what a producer wrote is seen by other means than ours."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.routing import leader_address
from tests.support.wait import eventually
from tidelog.clients.connection import Connection, split_address
from tidelog.errors import ErrorCode, error_class
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.records.batch import BatchHeader, Record, iter_batches, read_records

LAST_VERSION_WITH_TOPIC_NAMES = 12


def partitions_of(bootstrap: str, topic: str) -> int:
    with Connection(*split_address(bootstrap)) as broker:
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        return len(broker.call(request, MetadataResponse).topics[0].partitions)


def batches(
    bootstrap: str, topic: str, partition: int = 0, *, committed: bool = False
) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Every batch of a partition from its beginning; `committed` leaves out open and aborted transactions."""
    offset = 0
    with Connection(*split_address(leader_address(bootstrap, topic, partition))) as broker:
        while True:
            answer = _fetch(broker, topic, partition, offset, committed)
            records = answer.records
            if not isinstance(records, bytes | bytearray | memoryview) or not len(records):
                return
            aborted = sorted(
                ((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions or ()),
                reverse=True,
            )
            dropped: set[int] = set()
            for position, header in iter_batches(records):
                offset = header.next_offset
                while aborted and aborted[-1][0] <= header.last_offset:
                    dropped.add(aborted.pop()[1])
                if header.is_control:
                    dropped.discard(header.producer_id)
                elif committed and header.is_transactional and header.producer_id in dropped:
                    continue
                yield header, read_records(records, position, header=header)


def _fetch(
    broker: Connection, topic: str, partition: int, offset: int, committed: bool
) -> FetchResponse.PartitionData:
    version = min(broker.version_for(FetchRequest), LAST_VERSION_WITH_TOPIC_NAMES)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 26,
        isolation_level=1 if committed else 0,
        session_epoch=-1,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 26
                    )
                ],
            )
        ],
    )

    def fetched() -> FetchResponse.PartitionData | None:
        found = broker.call(request, FetchResponse, version=version).responses[0].partitions[0]
        if found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return None  # the topic is new: the leader that Kafka names does not know it yet
        if found.error_code:
            raise error_class(found.error_code)(f"{topic}-{partition} at {offset}")
        return found

    return eventually(fetched, f"{topic}-{partition} is led")


def records(bootstrap: str, topic: str, partition: int = 0, *, committed: bool = False) -> list[Record]:
    """Every record of a partition; control records are left out."""
    return [
        record
        for header, found in batches(bootstrap, topic, partition, committed=committed)
        if not header.is_control
        for record in found
    ]


def values(bootstrap: str, topic: str, *, committed: bool = False) -> list[bytes | None]:
    """The values of all partitions of a topic, partition by partition."""
    return [
        record.value
        for partition in range(partitions_of(bootstrap, topic))
        for record in records(bootstrap, topic, partition, committed=committed)
    ]
