"""What a tool is to read has to be there: a topic, a partition, an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import OffsetOutOfRange, UnknownTopicOrPartition

if TYPE_CHECKING:
    from tidelog.clients.consumer.blocking import Consumer

# A topic that was made a moment ago is not known to every broker at once.
UNKNOWN_TOPIC_SECONDS = 3.0


def check_topic(consumer: Consumer, topic: str, partition: int | None = None) -> None:
    """UnknownTopicOrPartition where the cluster says that a topic, or a partition of it, does not exist."""
    from tidelog.clients.errors import Timeout, UnknownTopic

    try:
        partitions = consumer.partitions_for(topic, UNKNOWN_TOPIC_SECONDS)
    except UnknownTopic:
        raise UnknownTopicOrPartition(f"topic {topic!r} does not exist") from None
    except Timeout:
        return  # no answer yet: a poll waits for a broker
    if partition is not None and partition not in partitions:
        there = "partition 0" if len(partitions) == 1 else f"partitions 0 to {len(partitions) - 1}"
        raise UnknownTopicOrPartition(f"topic {topic!r} has no partition {partition}: it has {there}")


def check_offset(consumer: Consumer, partition: tuple[str, int], offset: int) -> None:
    """OffsetOutOfRange where a partition has no such offset, and none that comes next."""
    from tidelog.partitions import TopicPartition

    name = TopicPartition(*partition)
    first, end = consumer.beginning_offsets([name])[name], consumer.end_offsets([name])[name]
    if not first <= offset <= end:
        raise OffsetOutOfRange(
            f"offset {offset} of {name} is out of range: its log goes from {first} to {end}"
        )
