"""Logs and group offsets as they are when everybody is done, read by several clients and plain requests."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

from tests.support.contents import read_with_client, read_with_fetch
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.routing import routed_connection
from tests.support.wait import answered, eventually, known
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tidelog.simulation.checks.transaction_checker import Final, Log
from tidelog.simulation.checks.transaction_history import Entry, Partition

GONE = (ConnectionClosed, NoAnswer, OSError)
NO_OFFSET = -1
READ_SECONDS = 30.0


def ends(bootstrap: str, partitions: Iterable[Partition], *, stable: bool) -> dict[Partition, int] | None:
    """The end of each log, or its last stable offset; None while the broker cannot say."""
    found: dict[Partition, int] = {}
    try:
        with routed_connection(bootstrap) as connection:
            for topic, index in partitions:
                wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
                request = ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=1 if stable else 0,
                    topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])],
                )
                answer = connection.ask(request, ListOffsetsResponse, 6).topics[0].partitions[0]
                if answer.error_code:
                    return None
                found[topic, index] = answer.offset
    except GONE:
        return None
    return found


def stable_offsets(connection: RawConnection, group: str, partitions: Sequence[Partition]) -> list[Entry]:
    """The committed offsets that no transaction under way may change; those that one may are left out."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic.items()
                ],
            )
        ],
        require_stable=True,
    )
    answer = connection.ask(request, OffsetFetchResponse, 8).groups[0]
    if answer.error_code:
        return []
    return [
        Entry(topic.name, partition.partition_index, partition.committed_offset, group)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE
    ]


def wait_for_stable_offsets(
    bootstrap: str, group: str, partitions: Sequence[Partition]
) -> dict[Partition, int]:
    found, waiting = offsets_in_the_end(bootstrap, group, partitions, 30)
    assert not waiting, f"offsets of {group} wait for transactions: {waiting}"
    return found


def offsets_in_the_end(
    bootstrap: str, group: str, partitions: Sequence[Partition], timeout: float
) -> tuple[dict[Partition, int], list[Partition]]:
    """The committed offsets, and the partitions whose offset may still change when that time is over."""
    deadline = time.monotonic() + timeout

    def settled() -> list[Entry] | None:
        try:
            with routed_connection(bootstrap) as connection:
                found = stable_offsets(connection, group, partitions)
        except GONE:
            return None
        return found if len(found) == len(partitions) or (found and time.monotonic() > deadline) else None

    found = eventually(settled, f"the broker tells the offsets of {group}", timeout + 30, 0.05)
    places = {entry.place for entry in found}
    offsets = {entry.place: entry.offset for entry in found if entry.offset != NO_OFFSET}
    return offsets, [partition for partition in partitions if partition not in places]


def wait_until_stable(bootstrap: str, partitions: Collection[Partition], timeout: float) -> bool:
    """Whether the last stable offsets reach the ends of the logs in time."""
    deadline = time.monotonic() + timeout

    def reached() -> bool:
        found = ends(bootstrap, partitions, stable=False)
        is_stable = found is not None and found == ends(bootstrap, partitions, stable=True)
        return is_stable or time.monotonic() > deadline

    eventually(reached, "the logs are stable", timeout + 10, 0.05)
    return time.monotonic() <= deadline


def read_final(
    bootstrap: str,
    partitions: Sequence[Partition],
    groups: Iterable[str],
    *,
    who: str,
    client: str,
    patience: float,
) -> Final:
    """Everything as one kind of client reads it; `fetch` stands for plain requests."""
    readers = {"confluent-kafka": _with_confluent, "kafka-python": _with_kafka_python, "fetch": _with_fetch}
    read = readers[client]
    final = Final(who)
    eventually(lambda: ends(bootstrap, partitions, stable=True), "every partition has a leader", patience)
    final.committed = read(bootstrap, partitions, True)
    final.uncommitted = read(bootstrap, partitions, False)
    final.ends = known(lambda: ends(bootstrap, partitions, stable=False), "the ends", patience)
    final.stable_ends = known(lambda: ends(bootstrap, partitions, stable=True), "stable ends", patience)
    for group in groups:
        final.offsets[group], final.waiting[group] = offsets_in_the_end(
            bootstrap, group, partitions, patience
        )
    return final


def _with_confluent(bootstrap: str, partitions: Sequence[Partition], committed: bool) -> dict[Partition, Log]:
    found = read_with_client(bootstrap, partitions, committed=committed)
    return {
        partition: [(record.offset, (record.value or b"").decode()) for record in contents.records]
        for partition, contents in found.items()
    }


def _with_fetch(bootstrap: str, partitions: Sequence[Partition], committed: bool) -> dict[Partition, Log]:
    return {
        partition: [
            (record.offset, (record.value or b"").decode())
            for record in read_with_fetch(bootstrap, partition, committed=committed).records
        ]
        for partition in partitions
    }


def _with_kafka_python(
    bootstrap: str, partitions: Sequence[Partition], committed: bool
) -> dict[Partition, Log]:
    from kafka.errors import KafkaError

    from kafka import KafkaConsumer, TopicPartition

    isolation = "read_committed" if committed else "read_uncommitted"
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        enable_auto_commit=False,
        group_id=None,
        fetch_max_wait_ms=50,
    )
    places = [TopicPartition(topic, index) for topic, index in partitions]
    found: dict[Partition, Log] = {partition: [] for partition in partitions}
    try:
        consumer.assign(places)
        consumer.seek_to_beginning()

        def position(place: TopicPartition) -> int:
            return answered(lambda: consumer.position(place), f"the position in {place}", (KafkaError,)) or 0

        until = answered(lambda: consumer.end_offsets(places), "the ends of the logs", (KafkaError,))
        last = time.monotonic()
        while any(position(place) < until[place] for place in places):
            assert time.monotonic() < last + READ_SECONDS, f"kafka-python does not reach {until}"
            for place, records in consumer.poll(timeout_ms=200).items():
                last = time.monotonic()
                found[place.topic, place.partition] += [
                    (record.offset, record.value.decode()) for record in records
                ]
    finally:
        consumer.close()
    return found
