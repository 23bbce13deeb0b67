"""The blocking consumer of Kafka 0.8: each thread of the application iterates over one stream.

>>> with ConsumerConnector({"zookeeper.connect": zookeeper, "group.id": "loggers"}) as connector:
...     streams = connector.create_message_streams({"clicks": 4})
...     for stream in streams["clicks"]:
...         executor.submit(handle, stream)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Self

from tidelog.clients.blocking import LoopThread
from tidelog.clients.errors import ClientClosedException
from tidelog.clients.settings import with_keywords
from tidelog.clients.zookeeper_consumer.connector import AsyncConsumerConnector
from tidelog.clients.zookeeper_consumer.streams import AsyncKafkaStream, Record
from tidelog.clients.zookeeper_consumer.topic_count import TopicFilter
from tidelog.partitions import TopicPartition


class KafkaStream:
    """`for record in stream` reads until the connector is shut down. One thread uses it at a time."""

    def __init__(self, stream: AsyncKafkaStream, thread: LoopThread) -> None:
        self._queue = stream.queue
        self._timeout = stream.timeout
        self._thread = thread
        self._queue.call_on_loop = self._call_on_loop

    def _call_on_loop(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(ClientClosedException):  # nobody fetches any more
            self._thread.call(function)

    def __iter__(self) -> KafkaStream:
        return self

    def __next__(self) -> Record:
        """Raises ConsumerTimeoutException if consumer.timeout.ms passes without a record."""
        while True:
            record = self._queue.take()
            if record is not None:
                return record
            try:
                if not self._thread.run(self._queue.wait(self._timeout)):
                    raise StopIteration
            except (ClientClosedException, CancelledError):
                raise StopIteration from None


class ConsumerConnector:
    """A member of a group in ZooKeeper. Settings are Kafka 0.8's, as keywords with underscores or as a dict.

    It creates streams once. Its calls may come from any thread.
    """

    def __init__(self, config: Mapping[str, object] | None = None, /, **settings: object) -> None:
        self._inner = AsyncConsumerConnector(with_keywords(config, settings))
        self._thread = LoopThread(f"consumer {self._inner.consumer_id}")

    @property
    def consumer_id(self) -> str:
        """The id of this member in the tree."""
        return self._inner.consumer_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def create_message_streams(self, topic_count: Mapping[str, int]) -> dict[str, list[KafkaStream]]:
        """Join the group; returns as many streams of each topic as asked for.

        Raises ConsumerRebalanceFailedException if others do not give up their partitions in time,
        TreeUnavailable if ZooKeeper cannot be reached.
        """
        made = self._thread.run(self._inner.create_message_streams(topic_count))
        return {
            topic: [KafkaStream(stream, self._thread) for stream in streams]
            for topic, streams in made.items()
        }

    def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, num_streams: int = 1
    ) -> list[KafkaStream]:
        """Join the group; returns streams over all topics of a Whitelist or Blacklist, also of later ones."""
        made = self._thread.run(self._inner.create_message_streams_by_filter(topic_filter, num_streams))
        return [KafkaStream(stream, self._thread) for stream in made]

    def owned_partitions(self) -> set[TopicPartition]:
        """The partitions that this consumer claimed in its last rebalance."""
        return self._thread.apply(self._inner.owned_partitions)

    def commit_offsets(self) -> None:
        """Write the offsets of all records that the streams have returned to the tree."""
        self._thread.run(self._inner.commit_offsets())

    def shutdown(self) -> None:
        """Commit if auto.commit.enable is set, end the streams and leave the group."""
        if self._thread.closed:
            return
        try:
            self._thread.run(self._inner.shutdown())
        finally:
            self._thread.close()
