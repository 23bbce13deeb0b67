"""Requests by hand to several brokers: each goes to the leader of its partition or to its coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.own_cluster import broker_count
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.wait import eventually
from tidelog.protocol.message import Message
from tidelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tidelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest
from tidelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from tidelog.protocol.messages.end_txn import EndTxnRequest
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest
from tidelog.protocol.messages.produce import ProduceRequest

GROUP, TRANSACTION = 0, 1
ROUTING_SECONDS = 20.0


def leader_address(bootstrap: str, topic: str, partition: int = 0) -> str:
    """The HOST:PORT of the broker that leads a partition, once there is one."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )

    def found() -> str | None:
        with RawConnection(bootstrap) as connection:
            answer = connection.ask(request, MetadataResponse, 9)
        nodes = {node.node_id: f"{node.host}:{node.port}" for node in answer.brokers}
        leaders = {each.partition_index: each.leader_id for each in answer.topics[0].partitions}
        return nodes.get(leaders.get(partition, -1))

    return eventually(found, f"{topic}-{partition} has a leader", ROUTING_SECONDS)


def coordinator_address(bootstrap: str, key: str, key_type: int = GROUP) -> str:
    """The HOST:PORT of the coordinator of a group or of a transactional id, once there is one."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])

    def found() -> str | None:
        with RawConnection(bootstrap) as connection:
            (answer,) = connection.ask(request, FindCoordinatorResponse, 4).coordinators
        return None if answer.error_code else f"{answer.host}:{answer.port}"

    return eventually(found, f"{key} has a coordinator", ROUTING_SECONDS)


def coordinators_named(bootstrap: str, group: str, seconds: float = 1.0) -> set[str]:
    """The addresses that the brokers which answer in time name as the coordinator of a group."""
    request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[group])
    named = set()
    for address in bootstrap.split(","):
        with suppress(ConnectionClosed, NoAnswer, OSError), RawConnection(address, timeout=seconds) as broker:
            (found,) = broker.ask(request, FindCoordinatorResponse, 4).coordinators
            if not found.error_code:
                named.add(f"{found.host}:{found.port}")
    return named


class RoutedConnection(RawConnection):
    """Sends each request to the broker that answers it: a leader, a coordinator, or any broker.

    `bootstrap` may name several brokers; those that are down are passed over. A request that is about several
    partitions or groups goes to the broker of the first one.
    """

    def __init__(self, bootstrap: str, *, client_id: str | None = "raw", timeout: float = 10.0) -> None:
        self._bootstrap = bootstrap.split(",")
        self.client_id = client_id
        self.timeout = timeout
        self._connections: dict[str, RawConnection] = {}
        self._answering: RawConnection | None = None
        self._any()

    def send(self, request: Message, version: int) -> int:
        with self._forgotten_if_lost():
            self._answering = self._connection_for(request)
            return self._answering.send(request, version)

    def receive(self, request: type[Message], version: int, timeout: float | None = None) -> Message:
        assert self._answering is not None
        with self._forgotten_if_lost():
            return self._answering.receive(request, version, timeout)

    @contextmanager
    def _forgotten_if_lost(self) -> Iterator[None]:
        """After a lost connection the next request looks for a broker anew."""
        try:
            yield
        except (ConnectionClosed, NoAnswer, OSError):
            self.close()
            raise

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection_for(self, request: Message) -> RawConnection:
        if isinstance(request, ProduceRequest):
            data = request.topic_data[0]
            return self._leader(data.name, data.partition_data[0].index)
        if isinstance(request, FetchRequest | ListOffsetsRequest):
            topic = request.topics[0]
            if isinstance(topic, FetchRequest.FetchTopic):
                return self._leader(topic.topic, topic.partitions[0].partition)
            return self._leader(topic.name, topic.partitions[0].partition_index)
        key = _coordinated_by(request)
        return self._any() if key is None else self._coordinator(*key)

    def _leader(self, topic: str, partition: int) -> RawConnection:
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        any_broker = self._any()
        answer = any_broker.ask(request, MetadataResponse, 9)
        nodes = {node.node_id: f"{node.host}:{node.port}" for node in answer.brokers}
        leaders = {each.partition_index: each.leader_id for each in answer.topics[0].partitions}
        address = nodes.get(leaders.get(partition, -1))
        # Any other broker says what is wrong with the partition.
        return any_broker if address is None else self._to(address)

    def _coordinator(self, key_type: int, key: str) -> RawConnection:
        any_broker = self._any()
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        (found,) = any_broker.ask(request, FindCoordinatorResponse, 4).coordinators
        return any_broker if found.error_code else self._to(f"{found.host}:{found.port}")

    def _any(self) -> RawConnection:
        problem: OSError | None = None
        for address in self._bootstrap:
            try:
                return self._to(address)
            except OSError as error:
                problem = error
        assert problem is not None
        raise problem

    def _to(self, address: str) -> RawConnection:
        if address not in self._connections:
            self._connections[address] = RawConnection(
                address, client_id=self.client_id, timeout=self.timeout
            )
        return self._connections[address]


def _coordinated_by(request: Message) -> tuple[int, str] | None:
    """The key type and the key of a request that a coordinator answers."""
    match request:
        case AddPartitionsToTxnRequest():
            transactions = request.transactions
            name = transactions[0].transactional_id if transactions else request.v3_and_below_transactional_id
            return TRANSACTION, name
        case DescribeTransactionsRequest():
            return TRANSACTION, request.transactional_ids[0]
        case InitProducerIdRequest() | EndTxnRequest() | AddOffsetsToTxnRequest():
            return TRANSACTION, request.transactional_id or ""
        case OffsetFetchRequest():
            return GROUP, request.groups[0].group_id if request.groups else request.group_id
        case DescribeGroupsRequest():
            return GROUP, request.groups[0]
        case ConsumerGroupDescribeRequest():
            return GROUP, request.group_ids[0]
    group = getattr(request, "group_id", None)
    return None if group is None else (GROUP, str(group))


def routed_connection(
    bootstrap: str, *, client_id: str | None = "raw", timeout: float = 10.0
) -> RawConnection:
    """A connection for requests by hand: to the one broker, or to the right one of several."""
    kind = RoutedConnection if broker_count() > 1 or "," in bootstrap else RawConnection
    return kind(bootstrap, client_id=client_id, timeout=timeout)
