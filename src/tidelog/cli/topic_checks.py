"""Checks for tools that read: a broker answers, and the topic, partition or offset exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import NetworkException, OffsetOutOfRange, UnknownTopicOrPartition

if TYPE_CHECKING:
    from tidelog.clients.consumer.blocking import Consumer

# Not every broker knows a new topic at once.
UNKNOWN_TOPIC_SECONDS = 3.0


def check_topic(consumer: Consumer, topic: str, partition: int | None = None) -> None:
    """Raise UnknownTopicOrPartition if the topic or the partition does not exist."""
    from tidelog.clients.errors import TimeoutException, UnknownTopicException

    try:
        partitions = [info.partition for info in consumer.partitions_for(topic, UNKNOWN_TOPIC_SECONDS)]
    except UnknownTopicException:
        raise UnknownTopicOrPartition(f"topic {topic!r} does not exist") from None
    except TimeoutException:
        return  # no answer yet: a poll waits for a broker
    if partition is not None and partition not in partitions:
        there = "partition 0" if len(partitions) == 1 else f"partitions 0 to {len(partitions) - 1}"
        raise UnknownTopicOrPartition(f"topic {topic!r} has no partition {partition}: it has {there}")


def check_answered(consumer: Consumer, servers: object) -> None:
    """Raise NetworkException if no broker has answered this consumer."""
    if not consumer.metrics()["response-total"]:
        raise NetworkException(f"no broker answered at {servers}")


def check_offset(consumer: Consumer, partition: tuple[str, int], offset: int) -> None:
    """Raise OffsetOutOfRange if the offset is neither in the log of a partition nor its end."""
    from tidelog.partitions import TopicPartition

    name = TopicPartition(*partition)
    first, end = consumer.beginning_offsets([name])[name], consumer.end_offsets([name])[name]
    if not first <= offset <= end:
        raise OffsetOutOfRange(
            f"offset {offset} of {name} is out of range: its log goes from {first} to {end}"
        )
