"""Transactions and producers: list, describe, abort, fence.

Requests about a transactional id go to its coordinator, requests about a partition's producers to its leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import RETRIED, Deadline, Outcomes, by_topic
from tidelog.clients.admin.results import Results, error_from, raise_for, settled
from tidelog.clients.network import TRANSACTION
from tidelog.errors import (
    ConcurrentTransactions,
    KafkaError,
    TransactionalIdNotFound,
    UnknownServerError,
    UnsupportedVersion,
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

FENCE_TIMEOUT_MS = 30_000
SEARCHED_AT_ONCE = 500
"""The partitions in one request of a search for hanging transactions."""


@dataclass(slots=True, frozen=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(slots=True, frozen=True)
class TransactionDescription:
    """A transactional id. The start time is None without an open transaction."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_start_time_ms: int | None
    partitions: list[PartitionKey]


@dataclass(slots=True, frozen=True)
class ProducerState:
    """A producer in a partition. The coordinator epoch is -1 before the first transaction ends."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: int | None


@dataclass(slots=True, frozen=True)
class HangingTransaction:
    """A transaction that is open in a partition, but unknown to its coordinator."""

    partition: PartitionKey
    producer: ProducerState


@dataclass(slots=True, frozen=True)
class AbortTransactionSpec:
    """A producer's open transaction in one partition, from the result of `describe_producers`."""

    partition: PartitionKey
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = 0


@dataclass(slots=True, frozen=True)
class FencedProducer:
    producer_id: int
    producer_epoch: int


async def list_transactions(
    self: AsyncAdmin,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    duration_ms: int | None = None,
    transactional_id_pattern: str | None = None,
    timeout: float | None = None,
) -> list[TransactionListing]:
    """The transactional ids of all brokers, by state, producer, pattern or duration if given."""
    deadline = self.driver.deadline(timeout)
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if duration_ms is None else duration_ms,
        transactional_id_pattern=transactional_id_pattern,
    )
    found: list[TransactionListing] = []
    for node in await self.driver.nodes(deadline):
        found += await _transactions_of(self, node, request, deadline)
    return sorted(found, key=lambda listing: listing.transactional_id)


async def describe_transactions(
    self: AsyncAdmin, transactional_ids: Iterable[str], *, partial: bool = False, timeout: float | None = None
) -> Results[str, TransactionDescription]:
    """Describe transactional ids, with the partitions of their open transactions."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int, ids: list[str]) -> Outcomes[str, TransactionDescription]:
        request = DescribeTransactionsRequest(transactional_ids=ids)
        answer = await self.driver.call(node, request, DescribeTransactionsResponse, deadline)
        return {
            found.transactional_id: _undescribed(found) or _described(found, node)
            for found in answer.transaction_states
        }

    outcomes = await self.driver.by_coordinator(transactional_ids, deadline, ask, kind=TRANSACTION)
    return settled(outcomes, partial)


async def describe_producers(
    self: AsyncAdmin,
    partitions: Iterable[PartitionKey],
    *,
    broker_id: int | None = None,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, list[ProducerState]]:
    """The producer states of partitions, at their leaders or at the replicas of one broker."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int, wanted: list[PartitionKey]) -> Outcomes[PartitionKey, list[ProducerState]]:
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(wanted).items()
            ]
        )
        answer = await self.driver.call(node, request, DescribeProducersResponse, deadline)
        return {
            (topic.name, found.partition_index): error_from(
                found.error_code, found.error_message, f"partition {topic.name}-{found.partition_index}"
            )
            or [_producer(producer) for producer in found.active_producers]
            for topic in answer.topics
            for found in topic.partitions
        }

    if broker_id is None:
        return settled(await self.driver.by_leader(partitions, deadline, ask), partial)
    await self.driver.known(broker_id, deadline)
    return settled(await self.driver.guarded(ask, broker_id, list(partitions)), partial)


async def find_hanging_transactions(
    self: AsyncAdmin,
    partitions: Iterable[PartitionKey],
    *,
    before_ms: int | None = None,
    broker_id: int | None = None,
    partial: bool = False,
    timeout: float | None = None,
) -> list[HangingTransaction]:
    """The transactions that are open in partitions, but that no coordinator knows.

    Consumers with read_committed wait for their end for ever. `before_ms` leaves out transactions with a
    younger record, `broker_id` asks the replicas of one broker, and `partial` leaves out partitions that
    cannot be described. `timeout` is that of each request.
    """
    keys = list(partitions)
    found: list[HangingTransaction] = []
    for start in range(0, len(keys), SEARCHED_AT_ONCE):
        some = keys[start : start + SEARCHED_AT_ONCE]
        described = await self.describe_producers(some, broker_id=broker_id, partial=partial, timeout=timeout)
        found += [
            HangingTransaction(partition, producer)
            for partition, producers in sorted(described.items())
            for producer in producers
            if producer.current_transaction_start_offset is not None
            and (before_ms is None or producer.last_timestamp < before_ms)
        ]
    known = await _known_partitions(self, {each.producer.producer_id for each in found}, timeout)
    return [each for each in found if (each.producer.producer_id, each.partition) not in known]


async def _known_partitions(
    self: AsyncAdmin, producer_ids: set[int], timeout: float | None
) -> set[tuple[int, PartitionKey]]:
    """The partitions in the open transactions of producers, as the coordinators know them."""
    if not producer_ids:
        return set()
    listed = await self.list_transactions(producer_ids=sorted(producer_ids), timeout=timeout)
    ids = {each.transactional_id: each.producer_id for each in listed if each.producer_id in producer_ids}
    described = await self.describe_transactions(list(ids), partial=True, timeout=timeout)
    for error in described.errors.values():
        if not isinstance(error, TransactionalIdNotFound):
            raise error
    return {(ids[name], key) for name, transaction in described.items() for key in transaction.partitions}


async def abort_transaction(
    self: AsyncAdmin, spec: AbortTransactionSpec, *, timeout: float | None = None
) -> None:
    """Abort a hanging transaction in one partition, without its coordinator."""
    deadline = self.driver.deadline(timeout)
    topic, index = spec.partition
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=spec.producer_id,
        producer_epoch=spec.producer_epoch,
        transaction_result=False,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
        coordinator_epoch=spec.coordinator_epoch,
    )

    async def ask(node: int, wanted: list[PartitionKey]) -> Outcomes[PartitionKey, None]:
        answer = await self.driver.call(
            node, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, deadline
        )
        what = (
            f"producer {spec.producer_id} with epoch {spec.producer_epoch}, "
            f"coordinator epoch {spec.coordinator_epoch}, in {topic}-{index}"
        )
        for marked in answer.markers:
            for written in marked.topics:
                for result in written.partitions:
                    if (written.name, result.partition_index) == spec.partition:
                        reason = f"{error_name(result.error_code)} for {what}"
                        return {spec.partition: error_from(result.error_code, reason, what)}
        raise UnknownServerError(f"the leader of {topic}-{index} gave no answer for {what}")

    settled(await self.driver.by_leader([spec.partition], deadline, ask), partial=False)


async def force_terminate_transaction(
    self: AsyncAdmin, transactional_id: str, *, timeout: float | None = None
) -> None:
    """Abort the open transaction of a transactional id by fencing its producer."""
    await fence_producers(self, [transactional_id], timeout=timeout)


async def fence_producers(
    self: AsyncAdmin, transactional_ids: Iterable[str], *, partial: bool = False, timeout: float | None = None
) -> Results[str, FencedProducer]:
    """Fence the producers of transactional ids, as new producers with these ids would."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int, ids: list[str]) -> Outcomes[str, FencedProducer]:
        outcomes: Outcomes[str, FencedProducer] = {}
        for transactional_id in ids:
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS
            )
            answer = await self.driver.call(node, request, InitProducerIdResponse, deadline)
            outcomes[transactional_id] = error_from(
                answer.error_code, None, f"transactional id {transactional_id!r}"
            ) or FencedProducer(answer.producer_id, answer.producer_epoch)
        return outcomes

    # The coordinator first ends the transaction, and answers CONCURRENT_TRANSACTIONS until then.
    again = (*RETRIED, ConcurrentTransactions)
    outcomes = await self.driver.by_coordinator(
        transactional_ids, deadline, ask, kind=TRANSACTION, again=again
    )
    return settled(outcomes, partial)


async def _transactions_of(
    self: AsyncAdmin, node: int, request: ListTransactionsRequest, deadline: Deadline
) -> list[TransactionListing]:
    connection = await self.driver.client.connection(node, timeout=deadline.left)
    version = connection.version_for(ListTransactionsRequest)
    needed = 2 if request.transactional_id_pattern else 1 if request.duration_filter >= 0 else 0
    if version < needed:
        raise UnsupportedVersion(
            f"the broker {connection.node.address} lists transactions at version {version}, which "
            "cannot choose them by duration (1) or pattern (2)"
        )

    async def ask() -> list[TransactionListing]:
        answer = await self.driver.call(node, request, ListTransactionsResponse, deadline)
        raise_for(answer.error_code, None, f"transactions of broker {node}")
        return [
            TransactionListing(state.transactional_id, state.producer_id, state.transaction_state, node)
            for state in answer.transaction_states
        ]

    return await self.driver.retrying(deadline, "list_transactions", ask)


def _undescribed(found: DescribeTransactionsResponse.TransactionState) -> KafkaError | None:
    """The error of a transactional id that could not be described."""
    what = f"transactional id {found.transactional_id!r}"
    if found.error_code == TransactionalIdNotFound.code:
        return TransactionalIdNotFound(f"{what} was not found")
    return error_from(found.error_code, None, what)


def _described(found: DescribeTransactionsResponse.TransactionState, node: int) -> TransactionDescription:
    return TransactionDescription(
        found.transactional_id,
        node,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        None if found.transaction_start_time_ms < 0 else found.transaction_start_time_ms,
        [(topic.topic, index) for topic in found.topics for index in topic.partitions],
    )


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
