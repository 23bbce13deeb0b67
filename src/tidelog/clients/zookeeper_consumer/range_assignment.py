"""The range assignment: consecutive partitions of a topic for each of the sorted threads of the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.clients.zookeeper_consumer.topic_count import ConsumerThreadId
from tidelog.partitions import TopicPartition


def assign_ranges(
    threads: Mapping[str, Iterable[ConsumerThreadId]], partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, ConsumerThreadId]:
    """The thread of each partition, from the threads and the partitions of each topic.

    The first threads have one partition more, if the numbers do not divide. Every member that sees the same
    threads and partitions gets the same result: nobody has to tell it.
    """
    owners: dict[TopicPartition, ConsumerThreadId] = {}
    for topic, unsorted in threads.items():
        ordered = sorted(unsorted, key=str)  # by their text, as Kafka: thread 10 comes before thread 2
        numbers = sorted(partitions.get(topic, ()))
        share, extra = divmod(len(numbers), len(ordered)) if ordered else (0, 0)
        start = 0
        for index, thread in enumerate(ordered):
            end = start + share + (1 if index < extra else 0)
            for number in numbers[start:end]:
                owners[TopicPartition(topic, number)] = thread
            start = end
    return owners
