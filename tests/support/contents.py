"""Everything that a broker serves of a partition, seen by a real client and by bare Fetch requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.routing import RoutedConnection, routed_connection
from tests.support.wait import eventually, patience
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.records.batch import iter_batches, read_records

READ_SECONDS = 30.0
FETCH_VERSION = 12
LEADER_CHANGES = (
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)
COMMITTED = 1
GONE = (ConnectionClosed, NoAnswer, OSError)
AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""What librdkafka says of brokers that are coming back."""

Partition = tuple[str, int]


@dataclass(slots=True, frozen=True)
class SeenRecord:
    offset: int
    timestamp_type: int  # 1: of the producer, 2: of the append
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(slots=True)
class Contents:
    low: int
    high: int
    records: list[SeenRecord] = field(default_factory=list)

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


def read_with_client(
    bootstrap: str, partitions: Collection[Partition], *, committed: bool = False
) -> dict[Partition, Contents]:
    """What librdkafka reads of the partitions by assignment, each from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        with routed_connection(bootstrap) as connection:
            found = {partition: _bounds(connection, partition) for partition in partitions}
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for topic, index in partitions])
        _read_to_end(consumer, found)
        return found
    finally:
        consumer.close()


def _read_to_end(consumer: Consumer, found: dict[Partition, Contents]) -> None:
    unread = set(found)
    limit = patience(READ_SECONDS)
    last = time.monotonic()
    while unread:
        assert time.monotonic() < last + limit, f"nothing read within {limit} s before the end of {unread}"
        for message in consumer.consume(500, 1.0):
            error, key = message.error(), (str(message.topic()), message.partition() or 0)
            if error is None:
                found[key].records.append(_seen(message))
                last = time.monotonic()
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(key)
            else:
                assert error.retriable() or error.code() in AWAY, error


def _seen(message: Message) -> SeenRecord:
    kind, timestamp = message.timestamp()
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return SeenRecord(
        message.offset() or 0,
        kind,
        timestamp,
        message.key(),
        message.value(),
        tuple((name, value) for name, value in headers),
    )


def produce(
    bootstrap: str,
    values: Mapping[Partition, Sequence[bytes]],
    settings: Mapping[str, str] | None = None,
    *,
    timestamp: int = 0,
) -> None:
    """With an idempotent producer, so that every produce is also one of sequences."""
    failures: list[object] = []

    def delivered(error: object, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, **(settings or {})}
    )
    for (topic, index), entries in values.items():
        for value in entries:
            producer.produce(topic, value, b"key", index, on_delivery=delivered, timestamp=timestamp)
    assert producer.flush(READ_SECONDS) == 0
    assert failures == []


def read_with_fetch(address: str, partition: Partition, *, committed: bool = False) -> Contents:
    """The same from bare Fetch requests, aborted transactions left out as a client would do it."""
    with routed_connection(address) as connection:
        found = _bounds(connection, partition)
        position = found.low
        while True:
            answer = _fetch(connection, partition, position, committed)
            following = _take(found, answer, position)
            if following == position:
                return found
            position = following


def _bounds(connection: RawConnection, partition: Partition) -> Contents:
    return Contents(offset_at(connection, partition, EARLIEST), offset_at(connection, partition, LATEST))


def offset_at(connection: RawConnection, partition: Partition, timestamp: int) -> int:
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition[1], timestamp=timestamp)
    topic = ListOffsetsRequest.ListOffsetsTopic(name=partition[0], partitions=[wanted])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic])

    def ask() -> ListOffsetsResponse.ListOffsetsPartitionResponse:
        return connection.ask(request, ListOffsetsResponse, 6).topics[0].partitions[0]

    return _from_leader(connection, ask, partition).offset


def _fetch(
    connection: RawConnection, partition: Partition, offset: int, committed: bool
) -> FetchResponse.PartitionData:
    wanted = FetchRequest.FetchPartition(
        partition=partition[1], fetch_offset=offset, partition_max_bytes=1 << 16
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=COMMITTED if committed else 0,
        topics=[FetchRequest.FetchTopic(topic=partition[0], partitions=[wanted])],
    )

    def ask() -> FetchResponse.PartitionData:
        answer = connection.ask(request, FetchResponse, FETCH_VERSION)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]

    return _from_leader(connection, ask, partition)


class _Answer(Protocol):
    error_code: int


A = TypeVar("A", bound=_Answer)


def _from_leader(connection: RawConnection, ask: Callable[[], A], partition: Partition) -> A:
    """The answer of the leader. As every client does, ask again while a leader is elected or comes back."""
    finds_others = isinstance(connection, RoutedConnection)

    def from_leader() -> A | None:
        try:
            answer = ask()
        except GONE:
            if finds_others:
                return None
            raise
        return None if answer.error_code in LEADER_CHANGES else answer

    answer = eventually(from_leader, f"the leader of {partition} answers", patience(READ_SECONDS))
    assert answer.error_code == 0
    return answer


def _take(found: Contents, answer: FetchResponse.PartitionData, position: int) -> int:
    """Add the visible records of an answer; the offset that comes after them."""
    aborted = {entry.producer_id: entry.first_offset for entry in reversed(answer.aborted_transactions or [])}
    data = bytes(answer.records or b"")  # type: ignore[arg-type]
    skipping: set[int] = set()
    for start, header in iter_batches(data):
        if aborted.get(header.producer_id, header.next_offset) <= header.base_offset:
            skipping.add(header.producer_id)
        if header.is_control:
            skipping.discard(header.producer_id)
            _next_aborted(aborted, answer, header.producer_id, header.base_offset)
        elif not (header.is_transactional and header.producer_id in skipping):
            kind = 2 if header.is_log_append_time else 1
            found.records += [
                SeenRecord(r.offset, kind, r.timestamp, r.key, r.value, tuple(r.headers))
                for r in read_records(data, start, header=header)
                if r.offset >= position
            ]
        position = max(position, header.next_offset)
    return position


def _next_aborted(
    aborted: dict[int, int], answer: FetchResponse.PartitionData, producer_id: int, ended: int
) -> None:
    """A producer's transaction ended: the one that it aborted next, if there is one."""
    later = [
        entry.first_offset
        for entry in answer.aborted_transactions or []
        if entry.producer_id == producer_id and entry.first_offset > ended
    ]
    aborted.pop(producer_id, None)
    if later:
        aborted[producer_id] = min(later)
