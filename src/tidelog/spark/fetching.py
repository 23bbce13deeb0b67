"""Reads one partition on a blocking socket, without an event loop or a thread: what a Spark task needs.

The next request can be on its way while the last answer is used: `ask`, then `answer`. A leader that moved,
or a connection that broke, is looked for again until the time to wait is over.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidelog import __version__
from tidelog.clients.connection import MAX_ANSWER_BYTES, agreed_version, api_key, split_address
from tidelog.clients.errors import NoBroker, TlsFailed
from tidelog.clients.security import Security
from tidelog.clients.settings import ConsumerSettings, consumer_settings
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
    UnsupportedVersion,
    error_class,
)
from tidelog.protocol.headers import read_response_header, request_header
from tidelog.protocol.message import Message, decode
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.protocol.wire import Buffer, ProtocolError
from tidelog.records.loops import Block

log = logging.getLogger("tidelog.spark")

R = TypeVar("R", bound=Message)

# The last version that names topics, which every broker since Kafka 2.7 speaks and most before it do.
FETCH_VERSION = 12
READ_COMMITTED = 1
EARLIEST = -2
LATEST = -1
# Measured: larger answers take no less CPU, smaller ones more.
FETCH_BYTES = 4 * 1024 * 1024
# A topic that was just made is known everywhere after that long; one that was deleted will not come back.
UNKNOWN_PATIENCE = 10.0
REFUSED = (SaslAuthenticationFailed, UnsupportedSaslMechanism, TlsFailed)
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


class BlockingConnection:
    """One connection: versions agreed upon, who we are proven; requests are answered in their order."""

    def __init__(self, host: str, port: int, settings: ConsumerSettings, security: Security) -> None:
        self.address = f"{host}:{port}"
        self.versions: dict[int, tuple[int, int]] = {}
        self._settings = settings
        self._correlation_id = 0
        self._waiting: list[tuple[int, int, int]] = []  # correlation id, API and version of what is asked
        self._socket = self._connected(host, port, security)
        try:
            self._agree_on_versions()
            self._authenticate(security)
        except BaseException:
            self.close()
            raise

    def version_for(self, request: type[Message], at_most: int | None = None) -> int:
        """The newest version that both sides speak, no newer than `at_most`."""
        return agreed_version(request, self.versions, self.address, at_most)

    def call(self, request: Message, answer: type[R], version: int | None = None) -> R:
        agreed = self.version_for(type(request)) if version is None else version
        self.send(request, agreed)
        decoded, _ = decode(answer, agreed, self.receive())
        return decoded

    def send(self, request: Message, version: int) -> None:
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        key = api_key(type(request))
        header = request_header(key, version, self._correlation_id, self._settings.client_id or None)
        frame = request.encode(version, header)
        self._waiting.append((self._correlation_id, key, version))
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self) -> Buffer:
        """The body of the answer to the oldest request that has none."""
        expected, key, version = self._waiting.pop(0)
        try:
            (size,) = struct.unpack(">i", self._read(4))
            if not 4 <= size <= MAX_ANSWER_BYTES:
                raise OSError(f"the answer claims a length of {size} bytes, so this is no Kafka broker")
            frame = self._read(size)
            correlation_id, start = read_response_header(key, version, frame)
        except (OSError, ProtocolError) as error:
            raise self._broken(error) from None
        if correlation_id != expected:
            raise self._broken(OSError(f"answer {correlation_id} came where {expected} was due"))
        return frame[start:]

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> memoryview:
        view = memoryview(Block(size))
        done = 0
        # A plain socket waits for all of it within the system; TLS comes in pieces.
        flags = 0 if isinstance(self._socket, ssl.SSLSocket) else socket.MSG_WAITALL
        while done < size:
            got = self._socket.recv_into(view[done:], size - done, flags)
            if not got:
                raise OSError("the broker closed it")
            done += got
        return view

    def _broken(self, error: OSError | ProtocolError) -> KafkaError:
        self.close()
        if isinstance(error, BlockingIOError | TimeoutError):
            return RequestTimedOut(f"no answer from {self.address} in {self._timeout:.0f} s")
        reason = getattr(error, "strerror", None) or error
        return NetworkException(f"the connection to {self.address} failed: {reason}")

    # Setting up

    @property
    def _timeout(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _connected(self, host: str, port: int, security: Security) -> socket.socket:
        limit = self._settings.socket_connection_setup_timeout_ms / 1000
        try:
            sock = socket.create_connection((host, port), limit)
        except OSError as error:
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise NetworkException(f"cannot connect to {self.address}: {reason}") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.context is not None:
                sock = security.context.wrap_socket(sock, server_hostname=host)
                sock.settimeout(self._timeout)
                return sock
        except ssl.SSLError as error:
            sock.close()
            raise TlsFailed(f"TLS with {self.address} failed: {error}") from None
        except OSError as error:
            sock.close()
            raise NetworkException(f"TLS with {self.address} failed: {error}") from None
        # The system's own time limit leaves the socket blocking: one call can wait for a whole answer.
        sock.settimeout(None)
        seconds, rest = divmod(self._settings.request_timeout_ms, 1000)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, rest * 1000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, rest * 1000))
        if "receive.buffer.bytes" in self._settings.given and self._settings.receive_buffer_bytes != -1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._settings.receive_buffer_bytes)
        return sock

    def _agree_on_versions(self) -> None:
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version=__version__)
        version = ApiVersionsRequest.VERSIONS.high
        self.send(request, version)
        body = self.receive()
        if int.from_bytes(body[:2], "big", signed=True) == UnsupportedVersion.code:
            # A broker that does not know our version says so in version 0, which every broker speaks.
            version = 0
            self.send(request, version)
            body = self.receive()
        answer, _ = decode(ApiVersionsResponse, version, body)
        if answer.error_code:
            raise error_class(answer.error_code)(f"{self.address} refused to name its versions")
        self.versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}

    def _authenticate(self, security: Security) -> None:
        steps, mechanism = security.sasl_steps(), security.mechanism
        if steps is None or mechanism is None:
            return
        shake = self.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if shake.error_code:
            offered = ", ".join(shake.mechanisms)
            raise error_class(shake.error_code)(
                f"{self.address} does not take {mechanism}; it offers {offered or 'none'}"
            )
        message = next(steps)
        while True:
            answer = self.call(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
            if answer.error_code:
                text = answer.error_message or "the broker refused without a reason"
                raise error_class(answer.error_code)(f"{self.address}: {text}")
            try:
                message = steps.send(bytes(answer.auth_bytes))
            except StopIteration:
                return


@dataclass(slots=True, frozen=True)
class Fetched:
    """What an answer brought: batches from the offset that was asked for on, and where the log is."""

    offset: int
    records: Buffer
    aborted: list[tuple[int, int]] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class PartitionFetcher:
    """`ask(offset)` and later `answer()`, again and again; errors of the partition itself are raised."""

    def __init__(self, client: Mapping[str, str], topic: str, partition: int, patience: float) -> None:
        self.settings = consumer_settings(dict(client))
        self._security = Security(self.settings)
        self._topic = topic
        self._partition = partition
        self._patience = patience
        self._committed = self.settings.isolation_level == "read_committed"
        self._connection: BlockingConnection | None = None
        self._replica: int | None = None
        self._asked: int | None = None
        if "max.partition.fetch.bytes" in self.settings.given:
            self._max_bytes = self.settings.max_partition_fetch_bytes
        else:
            self._max_bytes = FETCH_BYTES

    def ask(self, offset: int) -> None:
        """Send for what is at an offset and behind; what goes wrong is seen when the answer is wanted."""
        self._asked = offset
        if self._connection is None:
            return
        try:
            self._send(self._connection, offset)
        except KafkaError:
            self._drop()

    def answer(self) -> Fetched:
        """What was asked for; looks for the leader again where that helps, for as long as patience lasts."""
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
                log.info("%s-%d: %s; looking again", self._topic, self._partition, error)
                time.sleep(pause)
                pause = min(2 * pause, self.settings.retry_backoff_max_ms / 1000)

    def log_start(self) -> int:
        """The first offset that the leader has now."""
        return self._listed(EARLIEST)

    def log_end(self) -> int:
        """Where the log ends now for those who read as this does."""
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

    def _send(self, connection: BlockingConnection, offset: int) -> None:
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

    def _received(self, connection: BlockingConnection, offset: int) -> Fetched | None:
        """The answer; None where another replica is to be asked."""
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

    def _leader(self) -> BlockingConnection:
        """A connection to the partition's leader, or to the replica that it named."""
        error: KafkaError = NoBroker("no bootstrap server is named")
        for address in self.settings.bootstrap_servers:
            host, port = split_address(address)
            try:
                connection = BlockingConnection(host, port, self.settings, self._security)
            except REFUSED:
                raise
            except KafkaError as failure:
                error = failure
                continue
            return self._led_from(connection, (host, port))
        raise error

    def _led_from(self, connection: BlockingConnection, at: tuple[str, int]) -> BlockingConnection:
        try:
            topics = [MetadataRequest.MetadataRequestTopic(name=self._topic)]
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            version = min(connection.version_for(MetadataRequest), MetadataRequest.VERSIONS.high)
            answer = connection.call(request, MetadataResponse, version)
            node = self._node(answer)
        except BaseException:
            connection.close()
            raise
        if (node.host, node.port) == at:
            return connection
        connection.close()
        return BlockingConnection(node.host, node.port, self.settings, self._security)

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
        raise UnknownTopicOrPartition(f"{name} is not there")
