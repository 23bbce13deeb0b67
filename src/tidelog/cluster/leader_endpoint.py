"""LeaderEndPoint: the requests of a replica fetcher to the broker that leads its partitions."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.cluster.transport import BrokerConnection, EndpointOf, Transport
from tidelog.errors import KafkaError, NetworkException, error_class
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.offset_specs import EARLIEST, LATEST

WITHOUT_TOPIC_IDS = 12
"""The newest version of Fetch with topic names."""
WITH_REPLICA_STATE = 15
"""The oldest version of Fetch with the broker epoch of the follower."""


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

    def fetch(
        self,
        request: FetchRequest,
        done: Callable[[FetchResponse | None, KafkaError | None], None],
        *,
        topic_ids: bool,
    ) -> None:
        """Send a fetch as this broker; `done` gets the answer or the error.

        Raises KafkaError if the fetch cannot be sent.
        """
        connection = self._connected()
        version = self._fetch_versions.get(topic_ids)
        if version is None:
            version = connection.version_for(FetchRequest, at_most=None if topic_ids else WITHOUT_TOPIC_IDS)
            self._fetch_versions[topic_ids] = version
        if version >= WITH_REPLICA_STATE:
            request.replica_state = FetchRequest.ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            )
        else:
            request.replica_id = self._broker_id
        connection.ask(request, FetchResponse, done, version=version, timeout=self._timeout)

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
