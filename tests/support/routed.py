"""Plain requests to a cluster: each goes to the leader or coordinator that has to answer it.

Nothing is remembered between requests except connections: leaders and coordinators may move at any time.
An answer such as NOT_COORDINATOR reaches the caller, who asks again.
"""

from __future__ import annotations

import socket

from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tidelog.protocol.message import Message
from tidelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tidelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest
from tidelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from tidelog.protocol.messages.end_txn import EndTxnRequest
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest
from tidelog.protocol.messages.leave_group import LeaveGroupRequest
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest
from tidelog.protocol.messages.produce import ProduceRequest
from tidelog.protocol.messages.sync_group import SyncGroupRequest
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

Address = tuple[str, int]
GROUP, TRANSACTION = 0, 1


def connect(bootstrap: str, *, timeout: float = 10.0, client_id: str | None = "raw") -> RawConnection:
    """A connection to the broker, or to the cluster if `bootstrap` has several addresses."""
    if "," in bootstrap:
        return RoutedConnection(bootstrap, timeout=timeout, client_id=client_id)
    return RawConnection(bootstrap, timeout=timeout, client_id=client_id)


class RoutedConnection(RawConnection):
    """`call` and `ask` as of a RawConnection. Raises ConnectionClosed while no broker can answer."""

    def __init__(self, bootstrap: str, *, timeout: float = 10.0, client_id: str | None = "raw") -> None:
        self.timeout = timeout
        self.client_id = client_id
        self._bootstrap = [_address(text) for text in bootstrap.split(",")]
        self._connections: dict[Address, RawConnection] = {}

    def call(self, request: Message, version: int, timeout: float | None = None) -> Message:
        if isinstance(request, ListOffsetsRequest):
            return self._list_offsets(request, version, timeout)
        return self._call(self._address_for(request), request, version, timeout)

    def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def _call(self, address: Address, request: Message, version: int, timeout: float | None) -> Message:
        try:
            connection = self._connections.get(address)
            if connection is None:
                connection = RawConnection(address, timeout=self.timeout, client_id=self.client_id)
                self._connections[address] = connection
            return connection.call(request, version, timeout)
        except (ConnectionClosed, NoAnswer, OSError):
            self._forget(address)
            raise

    def _forget(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def _list_offsets(self, request: ListOffsetsRequest, version: int, timeout: float | None) -> Message:
        """Ask the leader of each partition. The answer has one entry for each topic."""
        answer = ListOffsetsResponse(topics=[])
        for topic in request.topics:
            found = ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=[])
            for partition in topic.partitions:
                single = ListOffsetsRequest(
                    replica_id=request.replica_id,
                    isolation_level=request.isolation_level,
                    topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic.name, partitions=[partition])],
                )
                address = self._leader(topic.name, partition.partition_index)
                part = self._call(address, single, version, timeout)
                assert isinstance(part, ListOffsetsResponse)
                found.partitions += part.topics[0].partitions
            answer.topics.append(found)
        return answer

    def _address_for(self, request: Message) -> Address:
        if isinstance(request, ProduceRequest):
            topic = request.topic_data[0]
            return self._leader(topic.name, topic.partition_data[0].index)
        if isinstance(request, FetchRequest):
            wanted = request.topics[0]
            return self._leader(wanted.topic, wanted.partitions[0].partition)
        group = _group_of(request)
        if group is not None:
            return self._coordinator(GROUP, group)
        transactional_id = _transactional_id_of(request)
        if transactional_id is not None:
            return self._coordinator(TRANSACTION, transactional_id)
        return self._any()

    def _any(self) -> Address:
        """The first broker that accepts connections."""
        for address in [*self._connections, *self._bootstrap]:
            try:
                with socket.create_connection(address, self.timeout):
                    return address
            except OSError:
                self._forget(address)
        raise ConnectionClosed("no broker accepts connections")

    def _leader(self, topic: str, partition: int) -> Address:
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
        answer = self._call(self._any(), request, 9, None)
        assert isinstance(answer, MetadataResponse)
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for found in answer.topics[0].partitions:
            if found.partition_index == partition and found.leader_id in addresses:
                return addresses[found.leader_id]
        raise ConnectionClosed(f"{topic}-{partition} has no leader")

    def _coordinator(self, kind: int, key: str) -> Address:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        answer = self._call(self._any(), request, 4, None)
        assert isinstance(answer, FindCoordinatorResponse)
        (found,) = answer.coordinators
        if found.error_code:
            raise ConnectionClosed(f"{key} has no coordinator: error {found.error_code}")
        return found.host, found.port


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _group_of(request: Message) -> str | None:
    match request:
        case OffsetFetchRequest():
            return request.groups[0].group_id if request.groups else request.group_id
        case DescribeGroupsRequest():
            return request.groups[0]
        case ConsumerGroupDescribeRequest():
            return request.group_ids[0]
        case (
            OffsetCommitRequest()
            | TxnOffsetCommitRequest()
            | JoinGroupRequest()
            | SyncGroupRequest()
            | HeartbeatRequest()
            | LeaveGroupRequest()
            | ConsumerGroupHeartbeatRequest()
        ):
            return request.group_id
    return None


def _transactional_id_of(request: Message) -> str | None:
    match request:
        case AddPartitionsToTxnRequest():
            return request.v3_and_below_transactional_id or request.transactions[0].transactional_id
        case DescribeTransactionsRequest():
            return request.transactional_ids[0]
        case InitProducerIdRequest() | AddOffsetsToTxnRequest() | EndTxnRequest():
            return request.transactional_id
    return None
