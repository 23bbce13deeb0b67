"""LeaderEndPoint: the requests of a replica fetcher to the broker that leads its partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidelog.cluster.fetch_session import WantedPartition
from tidelog.cluster.transport import BrokerConnection, EndpointOf, Transport
from tidelog.errors import KafkaError, NetworkException, error_class
from tidelog.partitions import PartitionKey
from tidelog.protocol.message import decode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.protocol.wire import Buffer, ProtocolError
from tidelog.records.loops import one_fetch_request, parse_one_fetched

WITHOUT_TOPIC_IDS = 12
"""The newest version of Fetch with topic names."""
WITH_REPLICA_STATE = 15
"""The oldest version of Fetch with the broker epoch of the follower."""


FETCH = 1

OneFetched = tuple[int, str | bytes | None, int, int, int, int, int]
"""An answer without errors with one partition or none: session id, topic name or id or None, partition, high
watermark, log start offset, and where in its body the records begin and end.
"""


class FetchAnswers(Protocol):
    """Receives the answers to the fetches of one follower. Each fetch has one answer."""

    def answered(self, answer: FetchResponse | None, error: KafkaError | None) -> None:
        """The answer to a fetch, or its error."""

    def answered_one(self, answer: OneFetched, body: Buffer) -> None:
        """An answer without errors with one partition or none."""


class LeaderEndPoint:
    def __init__(
        self,
        broker_id: int,
        leader_id: int,
        transport: Transport,
        endpoint_of: EndpointOf,
        broker_epoch: Callable[[], int],
        *,
        timeout: float,
    ) -> None:
        """`broker_epoch` is that of this broker, `timeout` limits each request, in seconds."""
        self.leader_id = leader_id
        self._broker_id = broker_id
        self._transport = transport
        self._endpoint_of = endpoint_of
        self._broker_epoch = broker_epoch
        self._timeout = timeout
        self._connection: BrokerConnection | None = None
        self._fetch_versions: dict[bool, int] = {}  # of the connection, with and without topic ids
        # Of the fetch in flight.
        self._version = WITHOUT_TOPIC_IDS
        self._answers: FetchAnswers | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.closed

    @property
    def is_known(self) -> bool:
        """Whether the leader is among the live brokers."""
        return self._endpoint_of(self.leader_id) is not None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the leader, for metrics; empty while it is not known."""
        endpoint = self._endpoint_of(self.leader_id)
        return ("", 0) if endpoint is None else (endpoint.host, endpoint.port)

    async def connect(self) -> None:
        """Raises KafkaError if the leader cannot be reached."""
        endpoint = self._endpoint_of(self.leader_id)
        if endpoint is None:
            raise NetworkException(f"broker {self.leader_id} is not among the live brokers")
        self._fetch_versions.clear()
        self._connection = await self._transport.connect(self.leader_id, endpoint, timeout=self._timeout)

    def fetch(self, request: FetchRequest, answers: FetchAnswers, *, topic_ids: bool) -> None:
        """Send a fetch as this broker; `answers` gets the answer or the error. One fetch is in flight.

        Raises KafkaError if the fetch cannot be sent.
        """
        version = self._version_for(topic_ids)
        if version >= WITH_REPLICA_STATE:
            request.replica_state = FetchRequest.ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            )
        else:
            request.replica_id = self._broker_id
        self._send(version, request.encode(version), answers)

    def fetch_next(
        self,
        wanted: WantedPartition | None,
        session: tuple[int, int],
        limits: tuple[int, int, int],
        answers: FetchAnswers,
        *,
        topic_ids: bool,
    ) -> bool:
        """`fetch` for the next fetch of a session that names one partition or none, without message objects.

        `session` is the session id and epoch, `limits` are max_wait_ms, min_bytes and max_bytes. Returns
        False and sends nothing if the leader does not serve a version that this short way can write.
        """
        version = self._version_for(topic_ids)
        if version < WITHOUT_TOPIC_IDS:
            return False
        body = one_fetch_request(version, self._broker_id, self._broker_epoch(), *limits, *session, wanted)
        self._send(version, body, answers)
        return True

    def _version_for(self, topic_ids: bool) -> int:
        version = self._fetch_versions.get(topic_ids)
        if version is None:
            at_most = None if topic_ids else WITHOUT_TOPIC_IDS
            version = self._connected().version_for(FetchRequest, at_most=at_most)
            self._fetch_versions[topic_ids] = version
        return version

    def _send(self, version: int, body: bytes, answers: FetchAnswers) -> None:
        self._version, self._answers = version, answers
        self._connected().send(FETCH, version, (body,), self._received, timeout=self._timeout)

    def _received(self, body: Buffer | None, error: KafkaError | None) -> None:
        answers, version = self._answers, self._version
        assert answers is not None
        if body is None:
            answers.answered(None, error)
            return
        found = parse_one_fetched(body, 0, version)
        if found is not None:
            answers.answered_one(found, body)
            return
        try:
            answer, _ = decode(FetchResponse, version, body)
        except ProtocolError as broken:
            answers.answered(None, NetworkException(f"broker {self.leader_id} answered a fetch: {broken}"))
        else:
            answers.answered(answer, None)

    async def earliest_offset(self, key: PartitionKey, leader_epoch: int) -> int:
        """The log start offset of the leader. Raises KafkaError."""
        return await self._list_offsets(key, leader_epoch, EARLIEST)

    async def latest_offset(self, key: PartitionKey, leader_epoch: int) -> int:
        """The log end offset of the leader. Raises KafkaError."""
        return await self._list_offsets(key, leader_epoch, LATEST)

    async def _list_offsets(self, key: PartitionKey, leader_epoch: int, timestamp: int) -> int:
        wanted = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=key[1], current_leader_epoch=leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._broker_id,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=key[0], partitions=[wanted])],
        )
        answer = await self._connected().call(request, ListOffsetsResponse, timeout=self._timeout)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise error_class(found.error_code)(
                f"broker {self.leader_id} has no offset for {key[0]}-{key[1]}"
            )
        return found.offset

    def _connected(self) -> BrokerConnection:
        if self._connection is None or self._connection.closed:
            raise NetworkException(f"there is no connection to broker {self.leader_id}")
        return self._connection

    def close(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(reason)
