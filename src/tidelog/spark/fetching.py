"""Reads one partition on a blocking socket, without an event loop or a thread, for Spark tasks.

`ask` sends a request and `answer` takes its response, so the caller can work in between. After a change of
leader or a broken connection the fetcher looks for the leader again, until the time to wait is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidelog.clients.connection import Connection, split_address
from tidelog.clients.errors import NoBrokersAvailableException, SslAuthenticationException
from tidelog.clients.security import Security
from tidelog.clients.settings import consumer_settings
from tidelog.errors import (
    FencedLeaderEpoch,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    NetworkException,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    ReplicaNotAvailable,
    RequestTimedOut,
    SaslAuthenticationFailed,
    UnknownLeaderEpoch,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedSaslMechanism,
    error_class,
)
from tidelog.protocol.message import Message, decode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.protocol.wire import Buffer
from tidelog.spark.client_options import on_this_machine

log = logging.getLogger("tidelog.spark")

R = TypeVar("R", bound=Message)

# The last version with topic names. Brokers since Kafka 2.7 serve it, and most before that.
FETCH_VERSION = 12
READ_COMMITTED = 1
# Measured: larger answers do not save CPU, smaller ones cost more.
FETCH_BYTES = 4 * 1024 * 1024
# By then all brokers know a new topic. A topic that is unknown for longer was deleted.
UNKNOWN_PATIENCE = 10.0
REFUSED = (SaslAuthenticationFailed, UnsupportedSaslMechanism, SslAuthenticationException)
LOOK_AGAIN = (
    NetworkException,
    RequestTimedOut,
    NotLeaderOrFollower,
    LeaderNotAvailable,
    ReplicaNotAvailable,
    KafkaStorageError,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    OffsetNotAvailable,
    UnknownTopicOrPartition,
    UnknownServerError,
)


@dataclass(slots=True, frozen=True)
class Fetched:
    """The answer to a fetch: batches from the requested offset on, and the state of the log."""

    offset: int
    records: Buffer
    aborted: list[tuple[int, int]] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class PartitionFetcher:
    """Alternate `ask(offset)` and `answer()`. Errors of the partition itself are raised."""

    def __init__(self, client: Mapping[str, str], topic: str, partition: int, patience: float) -> None:
        self.settings = consumer_settings(on_this_machine(client))
        self._security = Security(self.settings)
        self._topic = topic
        self._partition = partition
        self._patience = patience
        self._committed = self.settings.isolation_level == "read_committed"
        self._connection: Connection | None = None
        self._replica: int | None = None
        self._asked: int | None = None
        if "max.partition.fetch.bytes" in self.settings.given:
            self._max_bytes = self.settings.max_partition_fetch_bytes
        else:
            self._max_bytes = FETCH_BYTES

    def ask(self, offset: int) -> None:
        """Send a fetch for an offset and the records after it. `answer` raises the errors."""
        self._asked = offset
        if self._connection is None:
            return
        try:
            self._send(self._connection, offset)
        except KafkaError:
            self._drop()

    def answer(self) -> Fetched:
        """The answer to `ask`. Retries with the current leader if that may help, within the time to wait."""
        assert self._asked is not None, "nothing was asked for"
        offset = self._asked
        began = time.monotonic()
        deadline = began + self._patience
        pause = self.settings.retry_backoff_ms / 1000
        while True:
            try:
                if self._connection is None:
                    self._connection = self._leader()
                    self._send(self._connection, offset)
                found = self._received(self._connection, offset)
                if found is not None:
                    self._asked = None
                    return found
            except LOOK_AGAIN as error:
                self._drop()
                if isinstance(error, UnknownTopicOrPartition):
                    deadline = min(deadline, began + UNKNOWN_PATIENCE)
                if time.monotonic() + pause > deadline:
                    raise
                log.info("%s-%d: %s; looking for the leader again", self._topic, self._partition, error)
                time.sleep(pause)
                pause = min(2 * pause, self.settings.retry_backoff_max_ms / 1000)

    def log_start(self) -> int:
        """The current log start offset of the leader."""
        return self._listed(EARLIEST)

    def log_end(self) -> int:
        """The current end of the log for the isolation level of this fetcher."""
        return self._listed(LATEST)

    def _listed(self, timestamp: int) -> int:
        if self._connection is None:
            self._connection = self._leader()
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=READ_COMMITTED if self._committed else 0,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=self._topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=self._partition, timestamp=timestamp
                        )
                    ],
                )
            ],
        )
        answer = self._connection.call(request, ListOffsetsResponse)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise error_class(found.error_code)(f"offset of {self._topic}-{self._partition}")
        return found.offset

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, connection: Connection, offset: int) -> None:
        version = connection.version_for(FetchRequest, FETCH_VERSION)
        part = FetchRequest.FetchPartition(
            partition=self._partition, fetch_offset=offset, partition_max_bytes=self._max_bytes
        )
        settings = self.settings
        request = FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=READ_COMMITTED if self._committed else 0,
            topics=[FetchRequest.FetchTopic(topic=self._topic, partitions=[part])],
            rack_id=settings.client_rack,
        )
        connection.send(request, version)

    def _received(self, connection: Connection, offset: int) -> Fetched | None:
        """The answer, or None if the fetch has to go to another replica."""
        version = connection.version_for(FetchRequest, FETCH_VERSION)
        answer, _ = decode(FetchResponse, version, connection.receive())
        code = answer.error_code
        data = answer.responses[0].partitions[0] if not code and answer.responses else None
        if data is None or data.error_code:
            code = code or (data.error_code if data is not None else UnknownServerError.code)
            raise error_class(code)(f"fetch of {self._topic}-{self._partition} at offset {offset}")
        if data.preferred_read_replica >= 0 and not data.records:
            self._drop()
            self._replica = data.preferred_read_replica
            return None
        if answer.throttle_time_ms > 0:
            time.sleep(answer.throttle_time_ms / 1000)
        records = data.records
        aborted = None
        if self._committed:
            aborted = sorted((e.first_offset, e.producer_id) for e in data.aborted_transactions or ())
        return Fetched(
            offset,
            records if isinstance(records, bytes | bytearray | memoryview) else b"",
            aborted,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
        )

    def _leader(self) -> Connection:
        """A connection to the partition's leader, or to the preferred replica that the leader named."""
        error: KafkaError = NoBrokersAvailableException("kafka.bootstrap.servers names no server")
        for address in self.settings.bootstrap_servers:
            host, port = split_address(address)
            try:
                connection = self._connected(host, port)
            except REFUSED:
                raise
            except KafkaError as failure:
                error = failure
                continue
            return self._led_from(connection, (host, port))
        raise error

    def _connected(self, host: str, port: int) -> Connection:
        settings = self.settings
        given = "receive.buffer.bytes" in settings.given and settings.receive_buffer_bytes != -1
        return Connection(
            host,
            port,
            client_id=settings.client_id or None,
            connect_timeout=settings.socket_connection_setup_timeout_ms / 1000,
            request_timeout=settings.request_timeout_ms / 1000,
            receive_buffer=settings.receive_buffer_bytes if given else None,
            security=self._security,
        )

    def _led_from(self, connection: Connection, at: tuple[str, int]) -> Connection:
        try:
            topics = [MetadataRequest.MetadataRequestTopic(name=self._topic)]
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            node = self._node(connection.call(request, MetadataResponse))
        except BaseException:
            connection.close()
            raise
        if (node.host, node.port) == at:
            return connection
        connection.close()
        return self._connected(node.host, node.port)

    def _node(self, answer: MetadataResponse) -> MetadataResponse.MetadataResponseBroker:
        name = f"{self._topic}-{self._partition}"
        nodes = {broker.node_id: broker for broker in answer.brokers}
        for topic in answer.topics:
            if topic.name != self._topic:
                continue
            if topic.error_code:
                raise error_class(topic.error_code)(f"topic {self._topic}")
            for entry in topic.partitions:
                if entry.partition_index == self._partition:
                    replica, self._replica = self._replica, None
                    wanted = replica if replica in nodes else entry.leader_id
                    if wanted not in nodes:
                        raise LeaderNotAvailable(f"{name} has no leader at the moment")
                    return nodes[wanted]
        raise UnknownTopicOrPartition(f"{name} does not exist")
