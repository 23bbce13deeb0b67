"""What readers of a topic get, with other people's consumers."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

READ_SECONDS = 30.0


def read(
    bootstrap: str, topic: str, partitions: int = 1, *, isolation: str = "read_committed"
) -> list[list[bytes]]:
    """The values of each partition up to the end that the isolation level shows."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[list[bytes]] = [[] for _ in range(partitions)]
    at_end: set[int] = set()
    deadline = time.monotonic() + READ_SECONDS
    try:
        while len(at_end) < partitions:
            assert time.monotonic() < deadline, f"{topic} was not read to its end in {READ_SECONDS} s"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values[message.partition()].append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise AssertionError(str(error))
    finally:
        consumer.close()
    return values
