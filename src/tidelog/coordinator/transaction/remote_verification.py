"""RemoteVerification: asks the coordinator of a transaction on another broker about its partitions (KIP-890).

Kafka's counterpart is AddPartitionsToTxnManager. It sends AddPartitionsToTxn, which verifies the partitions
of a transaction or adds them. Each broker has one request in flight; later transactions share the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.transport import EndpointOf, Transport
from tidelog.coordinator.transaction.broker_link import BrokerLink
from tidelog.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    RequestTimedOut,
    UnsupportedVersion,
    error_class,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

log = logging.getLogger("tidelog.coordinator.transaction")

TOPIC = "__transaction_state"

# The versions with several transactions in a request; 5 adds TRANSACTION_ABORTABLE.
VERSIONS = (5, 4)

Errors = dict[PartitionKey, KafkaError]
Verified = Callable[[Errors], None]
"""Called with the partitions that are not part of the transaction, and their errors."""

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction


class _PendingCheck:
    """The partitions of one transaction that wait for an answer."""

    __slots__ = ("adds", "done", "epoch", "partitions", "producer_id")

    def __init__(
        self, producer_id: int, epoch: int, partitions: frozenset[PartitionKey], adds: bool, done: Verified
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.partitions = partitions
        self.adds = adds
        self.done = done

    def fail(self, error: KafkaError) -> None:
        self.done(dict.fromkeys(self.partitions, error))


class RemoteVerification:
    def __init__(
        self,
        metadata: MetadataCache,
        transport: Transport,
        endpoint_of: EndpointOf,
        timeout_ms: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._transport = transport
        self._endpoint_of = endpoint_of
        self._timeout_ms = timeout_ms
        self._queues: dict[int, _BrokerQueue] = {}

    def check(
        self,
        coordinator_partition: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[PartitionKey],
        *,
        adds: bool,
        done: Verified,
    ) -> None:
        """Add partitions to a transaction, or verify that it has them.

        `coordinator_partition` is the partition of `__transaction_state` with the id.
        """
        pending = _PendingCheck(producer_id, epoch, partitions, adds, done)
        state = self._metadata.snapshot.partition(TOPIC, coordinator_partition)
        if state is None or self._endpoint_of(state.leader) is None:
            pending.fail(CoordinatorNotAvailable(f"the coordinator of {transactional_id} is not known"))
            return
        queue = self._queues.get(state.leader)
        if queue is None:
            link = BrokerLink(state.leader, self._endpoint_of, self._transport, self._timeout_ms)
            queue = self._queues[state.leader] = _BrokerQueue(link)
        queue.add(transactional_id, pending)

    def close(self) -> None:
        """Answer all waiting checks with an error, so that the clients retry."""
        for queue in self._queues.values():
            queue.close()


class _BrokerQueue:
    """The transactions of one coordinator, with one request in flight."""

    __slots__ = ("_link", "_task", "_waiting")

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self._waiting: dict[str, _PendingCheck] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, transactional_id: str, check: _PendingCheck) -> None:
        before = self._waiting.get(transactional_id)
        if before is not None:
            if before.epoch > check.epoch:
                check.fail(InvalidProducerEpoch(f"a newer producer of {transactional_id} is waiting"))
                return
            del self._waiting[transactional_id]
            if before.epoch < check.epoch:
                before.fail(InvalidProducerEpoch(f"a newer producer of {transactional_id} came"))
            else:  # most likely the client tries again
                before.fail(NetworkException(f"{transactional_id} was verified again meanwhile"))
        self._waiting[transactional_id] = check
        if self._task is None:
            # The task begins after this turn of the loop, and so sends all transactions of the turn together.
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._fail(self._take(), NetworkException("this broker stops"))
        self._link.close("this broker stops")

    def _take(self) -> dict[str, _PendingCheck]:
        checks, self._waiting = self._waiting, {}
        return checks

    def _fail(self, checks: dict[str, _PendingCheck], error: KafkaError) -> None:
        for check in checks.values():
            check.fail(error)

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await self._send(self._take())
        finally:
            self._task = None

    async def _send(self, checks: dict[str, _PendingCheck]) -> None:
        try:
            answer = await self._call(_request(checks))
        except asyncio.CancelledError:
            self._fail(checks, NetworkException("this broker stops"))
            raise
        except UnsupportedVersion as error:
            # An older broker cannot verify. As in Kafka, the batches are appended without a verification.
            log.warning("broker %d cannot verify transactions: %s", self._link.broker_id, error)
            for check in checks.values():
                check.done({})
        except (NetworkException, RequestTimedOut) as error:
            log.warning("transactions could not be verified by broker %d: %s", self._link.broker_id, error)
            self._fail(checks, NetworkException(error.message))
        except KafkaError as error:
            log.error("broker %d refused to verify transactions: %s", self._link.broker_id, error)
            self._fail(checks, error)
        except Exception:
            log.exception("transactions could not be verified by broker %d", self._link.broker_id)
            self._fail(checks, NetworkException("the verification failed"))
        else:
            self._answered(checks, answer)

    async def _call(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        for version in VERSIONS[:-1]:
            try:
                return await self._link.call(request, AddPartitionsToTxnResponse, version=version)
            except UnsupportedVersion:
                continue
        return await self._link.call(request, AddPartitionsToTxnResponse, version=VERSIONS[-1])

    def _answered(self, checks: dict[str, _PendingCheck], answer: AddPartitionsToTxnResponse) -> None:
        if answer.error_code:
            error = error_class(answer.error_code)("the coordinator refused to verify transactions")
            log.error("broker %d: %s", self._link.broker_id, error)
            if isinstance(error, ClusterAuthorizationFailed):
                error = InvalidTxnState(error.message)  # it is the broker that may not, not the client
            self._fail(checks, error)
            return
        results = {result.transactional_id: result for result in answer.results_by_transaction}
        for transactional_id, check in checks.items():
            result = results.get(transactional_id)
            if result is None:
                check.fail(NetworkException(f"the coordinator did not answer for {transactional_id}"))
            else:
                check.done(_errors(result))


def _request(checks: dict[str, _PendingCheck]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            _Transaction(
                transactional_id=transactional_id,
                producer_id=check.producer_id,
                producer_epoch=check.epoch,
                verify_only=not check.adds,
                topics=_topics(check.partitions),
            )
            for transactional_id, check in checks.items()
        ]
    )


def _topics(partitions: frozenset[PartitionKey]) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
        for topic, indexes in topics.items()
    ]


def _errors(result: AddPartitionsToTxnResponse.AddPartitionsToTxnResult) -> Errors:
    return {
        (topic.name, partition.partition_index): error_class(partition.partition_error_code)(
            f"the coordinator of {result.transactional_id} refused the partition"
        )
        for topic in result.topic_results
        for partition in topic.results_by_partition
        if partition.partition_error_code
    }
