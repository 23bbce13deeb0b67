"""The administrator's questions and commands about transactions, blocking: list, describe, producers, abort.

Transactional ids are asked about at their coordinator, producers of a partition at its leader.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tidelog.clients.admin import Admin, Node, error_from, error_of
from tidelog.clients.admin_coordinators import PASSING, PAUSE_SECONDS, TRANSACTION_KEY, Coordinators
from tidelog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    KafkaError,
    TransactionalIdNotFound,
    UnknownServerError,
    UnsupportedVersion,
    error_class,
    error_name,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tidelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

ANY_DURATION = -1
FENCE_TIMEOUT_MS = 30_000


@dataclass(slots=True, frozen=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(slots=True, frozen=True)
class TransactionDescription:
    """A transactional id; its start is None while no transaction is open."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: list[PartitionKey]


@dataclass(slots=True, frozen=True)
class ProducerState:
    """A producer that a partition remembers; the coordinator's epoch is -1 before a transaction ended."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int | None


class TransactionAdmin:
    """`TransactionAdmin(admin).list_transactions()`."""

    def __init__(self, admin: Admin, *, timeout: float = 30.0) -> None:
        self._admin = admin
        self._timeout = timeout
        self._coordinators = Coordinators(admin, TRANSACTION_KEY, timeout=timeout)

    def list_transactions(
        self,
        *,
        producer_ids: Iterable[int] = (),
        duration_ms: int = ANY_DURATION,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all brokers, of some producers or open for longer than a time alone."""
        request = ListTransactionsRequest(
            producer_id_filters=list(producer_ids),
            duration_filter=duration_ms,
            transactional_id_pattern=pattern,
        )
        return [listing for node in self._admin.nodes() for listing in self._listed(node, request)]

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription | KafkaError]:
        return self._coordinators.settle(transactional_ids, self._describe)

    def producers(
        self, partitions: Collection[PartitionKey], broker: int | None = None
    ) -> dict[PartitionKey, list[ProducerState] | KafkaError]:
        """The producers that each partition remembers: at its leader, or at a broker that has a replica."""
        found: dict[PartitionKey, list[ProducerState] | KafkaError] = {}
        by_node: dict[Node, list[PartitionKey]] = {}
        for partition, node in self._replicas(partitions, broker).items():
            if isinstance(node, Node):
                by_node.setdefault(node, []).append(partition)
            else:
                found[partition] = node
        for node, wanted in by_node.items():
            topics = [
                DescribeProducersRequest.TopicRequest(
                    name=topic, partition_indexes=sorted(index for name, index in wanted if name == topic)
                )
                for topic in sorted({name for name, _ in wanted})
            ]
            answer = self._admin.call_node(
                node, DescribeProducersRequest(topics=topics), DescribeProducersResponse
            )
            for described in answer.topics:
                for result in described.partitions:
                    error = error_from(result.error_code, result.error_message)
                    states = [_producer(producer) for producer in result.active_producers]
                    found[described.name, result.partition_index] = states if error is None else error
        return found

    def abort(
        self, partition: PartitionKey, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """End a producer's open transaction in one partition, past its coordinator: for one that hangs."""
        leader = self._admin.leaders([partition])[partition]
        if isinstance(leader, KafkaError):
            raise leader
        topic, index = partition
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
            coordinator_epoch=coordinator_epoch,
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        answer = self._admin.call_node(leader, request, WriteTxnMarkersResponse)
        codes = [
            result.error_code
            for marked in answer.markers
            for written in marked.topics
            for result in written.partitions
            if (written.name, result.partition_index) == partition
        ]
        if not codes:
            raise UnknownServerError(f"the leader of {topic}-{index} gave no answer for it")
        if codes[0]:
            raise error_class(codes[0])(
                f"{error_name(codes[0])} for producer {producer_id} with epoch {producer_epoch}, "
                f"coordinator epoch {coordinator_epoch}, in {topic}-{index}"
            )

    def terminate(self, transactional_id: str) -> None:
        """End the open transaction of a transactional id by fencing its producer, as a new one would."""

        def fence(node: Node, ids: list[str]) -> dict[str, int | KafkaError]:
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS
            )
            answer = self._admin.call_node(node, request, InitProducerIdResponse)
            error = error_of(answer.error_code)
            return {transactional_id: answer.producer_id if error is None else error}

        # The coordinator ends the transaction first, and says so until it has.
        self._coordinators.settle_one(transactional_id, fence, again=(*PASSING, ConcurrentTransactions))

    def _listed(self, node: Node, request: ListTransactionsRequest) -> list[TransactionListing]:
        version = self._admin.connection_to(node).version_for(ListTransactionsRequest)
        needed = 2 if request.transactional_id_pattern else 1 if request.duration_filter >= 0 else 0
        if version < needed:
            raise UnsupportedVersion(
                f"the broker {node.host}:{node.port} lists transactions at version {version}, which cannot "
                "choose them by duration (1) or pattern (2)"
            )
        deadline = time.monotonic() + self._timeout
        while True:
            answer = self._admin.call_node(node, request, ListTransactionsResponse)
            error = error_of(answer.error_code)
            if error is None:
                return [
                    TransactionListing(
                        state.transactional_id, state.producer_id, state.transaction_state, node.id
                    )
                    for state in answer.transaction_states
                ]
            if not isinstance(error, CoordinatorLoadInProgress) or time.monotonic() > deadline:
                raise error
            time.sleep(PAUSE_SECONDS)

    def _describe(self, node: Node, ids: list[str]) -> dict[str, TransactionDescription | KafkaError]:
        request = DescribeTransactionsRequest(transactional_ids=ids)
        found: dict[str, TransactionDescription | KafkaError] = {}
        for state in self._admin.call_node(node, request, DescribeTransactionsResponse).transaction_states:
            error = error_of(state.error_code)
            if isinstance(error, TransactionalIdNotFound):
                error = TransactionalIdNotFound(f"transactional id {state.transactional_id!r} was not found")
            found[state.transactional_id] = error or TransactionDescription(
                state.transactional_id,
                node.id,
                state.transaction_state,
                state.producer_id,
                state.producer_epoch,
                state.transaction_timeout_ms,
                None if state.transaction_start_time_ms < 0 else state.transaction_start_time_ms,
                [(topic.topic, index) for topic in state.topics for index in topic.partitions],
            )
        return found

    def _replicas(
        self, partitions: Collection[PartitionKey], broker: int | None
    ) -> dict[PartitionKey, Node | KafkaError]:
        if broker is None:
            return self._admin.leaders(partitions)
        for node in self._admin.nodes():
            if node.id == broker:
                return dict.fromkeys(partitions, node)
        raise ValueError(f"broker {broker} is not in the cluster")


def _producer(producer: DescribeProducersResponse.ProducerState) -> ProducerState:
    start = producer.current_txn_start_offset
    return ProducerState(
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        producer.last_timestamp,
        max(-1, producer.coordinator_epoch),
        None if start < 0 else start,
    )
