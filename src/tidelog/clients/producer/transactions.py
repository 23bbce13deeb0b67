"""TransactionManager: the transactions of a producer.

In version 1, the producer adds each partition at the coordinator before it writes. In version 2, with the
feature transaction.version=2, the writes add it. After an abortable error the transaction has to be aborted.
A fatal error ends the producer, for example when another producer with the same id has fenced it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.errors import (
    CommitFailedException,
    IllegalStateException,
    TimeoutException,
    TransactionAbortedException,
)
from tidelog.clients.network import GROUP, TRANSACTION, NetworkClient
from tidelog.clients.offsets import ConsumerGroupMetadata, OffsetAndMetadata, epoch_number
from tidelog.clients.producer.accumulator import PartitionQueue, RecordAccumulator
from tidelog.clients.producer.sequences import Sequences
from tidelog.clients.producer.transaction_values import PreparedTxnState, State
from tidelog.clients.settings import ProducerSettings
from tidelog.errors import (
    ClusterAuthorizationFailed,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    NotCoordinator,
    OperationNotAttempted,
    ProducerFenced,
    RequestTimedOut,
    TransactionalIdAuthorizationFailed,
    UnknownMemberId,
    UnknownProducerId,
    UnsupportedVersion,
    error_class,
)
from tidelog.protocol.message import Message
from tidelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

log = logging.getLogger("tidelog.clients")

R = TypeVar("R", bound=Message)

FEATURE = "transaction.version"
LAST_CLIENT_ADD_PARTITIONS = 3  # later versions are for requests between brokers
TWO_PHASE_INIT = 6
TIME_OUT_NEVER = 2**31 - 1

LOOK_UP_AGAIN = (NotCoordinator, CoordinatorNotAvailable, NetworkException, RequestTimedOut)
TRY_AGAIN = (CoordinatorLoadInProgress, ConcurrentTransactions)
FENCED = (ProducerFenced, InvalidProducerEpoch)
FATAL = (
    ProducerFenced, ClusterAuthorizationFailed, TransactionalIdAuthorizationFailed, InvalidTxnState,
    UnsupportedVersion,
)  # fmt: skip
LOST_ITS_GROUP = (UnknownMemberId, IllegalGeneration, FencedInstanceId)


class TransactionManager:
    """The transactions of a producer. Runs on the loop; `flush` waits until every batch has ended."""

    def __init__(
        self,
        client: NetworkClient,
        accumulator: RecordAccumulator,
        settings: ProducerSettings,
        flush: Callable[[], Awaitable[None]],
        wake: Callable[[], None],
        abort_waiting: Callable[[KafkaError], None],
    ) -> None:
        assert settings.transactional_id is not None
        self.id = settings.transactional_id
        self.state = State.UNINITIALIZED
        self.error: KafkaError | None = None
        self.version_2 = False
        self.sequences = Sequences(transactional=True, abort=self._abortable)
        self.completing = False
        self._client = client
        self._accumulator = accumulator
        self._settings = settings
        self._flush = flush
        self._wake = wake
        self._abort_waiting = abort_waiting
        self._added: set[PartitionQueue] = set()
        self._to_add: set[PartitionQueue] = set()
        self._adding: asyncio.Task[None] | None = None
        self._started = False
        self._offsets_missing = False
        self._bump_after_abort = False
        self._limit = settings.max_block_ms / 1000

    @property
    def failed(self) -> bool:
        return self.state is State.FATAL

    @property
    def refusing(self) -> KafkaError | None:
        """The error because of which waiting batches are not sent; None without an error."""
        if self.state in (State.FATAL, State.ABORTABLE):
            return self.error
        if self.state is State.ABORTING:
            return self.error or TransactionAbortedException(
                "the transaction was aborted before the record was sent"
            )
        return None

    # Calls of the user

    def check_sending(self) -> None:
        """Raises unless records may be sent now."""
        if self.state is State.IN_TRANSACTION:
            return
        self._check_error()
        raise self._misplaced("send")

    async def init(self) -> None:
        """Get a producer id. Fences other producers of the transactional id, and ends their transaction."""
        self._require(State.UNINITIALIZED, State.INITIALIZING, call="init_transactions")
        self.state = State.INITIALIZING
        async with self._in_time("init_transactions"):
            await self._init_producer_id()
        self.state = State.READY

    def begin(self) -> None:
        self._require(State.READY, call="begin_transaction")
        self.state = State.IN_TRANSACTION
        self.error = None
        self._started = self._offsets_missing = False
        self._added.clear()
        self._to_add.clear()

    async def send_offsets(
        self, offsets: Mapping[tuple[str, int], OffsetAndMetadata], member: ConsumerGroupMetadata
    ) -> None:
        """Commit a consumer's offsets with the transaction."""
        self._require(State.IN_TRANSACTION, call="send_offsets_to_transaction")
        if not offsets:
            return
        # An earlier request may have arrived although its response is missing.
        self._started = self._offsets_missing = True
        async with self._in_time("send_offsets_to_transaction"):
            if not self.version_2:
                await self._coordinate(
                    lambda connection: (self._add_offsets(member.group_id), None), AddOffsetsToTxnResponse
                )
            await self._commit_offsets(offsets, member)
        self._offsets_missing = False

    async def commit(self) -> None:
        """Write waiting records, and commit."""
        self._require(State.IN_TRANSACTION, State.PREPARED, State.COMMITTING, call="commit_transaction")
        self._require_offsets("commit_transaction")
        self.state = State.COMMITTING
        await self._end(commit=True)

    async def abort(self) -> None:
        """Drop waiting records, and abort."""
        self._require(
            State.IN_TRANSACTION, State.PREPARED, State.ABORTABLE, State.ABORTING, call="abort_transaction"
        )
        self.state = State.ABORTING
        await self._end(commit=False)

    async def prepare(self) -> PreparedTxnState:
        """Write waiting records, so that any process can commit or abort."""
        self._require(State.IN_TRANSACTION, call="prepare_transaction")
        self._require_offsets("prepare_transaction")
        async with self._in_time("prepare_transaction"):
            await self._write_everything()
        self.state = State.PREPARED
        return PreparedTxnState(self.id, self.sequences.producer_id, self.sequences.epoch)

    async def complete(self, handle: PreparedTxnState, *, commit: bool) -> None:
        """Commit or abort a prepared transaction, of this or another process."""
        if handle.transactional_id != self.id:
            raise IllegalStateException(
                f"the transaction was prepared by {handle.transactional_id!r}, this producer is {self.id!r}"
            )
        own = (handle.producer_id, handle.epoch) == (self.sequences.producer_id, self.sequences.epoch)
        if self.state is State.PREPARED and own:
            await (self.commit() if commit else self.abort())
            return
        self._require(State.UNINITIALIZED, call="complete_transaction")
        async with self._in_time("complete_transaction"):
            producer_id, epoch = await self._take_over(handle)
            await self._coordinate(
                lambda connection: (EndTxnRequest(
                    transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, committed=commit
                ), None),
                EndTxnResponse,
            )  # fmt: skip

    @property
    def needs_init(self) -> bool:
        return self.state in (State.UNINITIALIZED, State.INITIALIZING)

    async def abort_if_possible(self, timeout: float | None = None) -> None:
        """Abort after an error. A failure of the abort is logged: the user gets the first error."""
        if self.state in (State.IN_TRANSACTION, State.ABORTABLE, State.COMMITTING):
            if self.state is State.COMMITTING:
                return  # it may be committed: another commit finds out
            try:
                async with asyncio.timeout(timeout):
                    await self.abort()
            except (KafkaError, TimeoutError) as error:
                reason = str(error) or f"no answer within {timeout} s"
                log.warning("transactional.id=%s: the transaction could not be aborted: %s", self.id, reason)

    @property
    def has_open_transaction(self) -> bool:
        return self.state in (State.IN_TRANSACTION, State.COMMITTING, State.ABORTABLE, State.ABORTING)

    # Calls of the sender

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether a partition was added to the transaction. Adds it if not."""
        if queue in self._added:
            return True
        if self.version_2:
            self._added.add(queue)
            self._started = True
            return True
        self._to_add.add(queue)
        if self._adding is None:
            self._adding = asyncio.get_running_loop().create_task(
                self._add_partitions(), name="add partitions"
            )
        return False

    def batch_failed(self, error: KafkaError) -> None:
        """Fail the transaction after a batch was given up."""
        if isinstance(error, InvalidProducerEpoch):
            # Fenced or expired: the abort finds out from the coordinator.
            error = InvalidProducerEpoch(
                f"transactional.id={self.id}: the transaction took longer than transaction.timeout.ms="
                f"{self._settings.transaction_timeout_ms}, or another producer took over: {error}"
            )
        if isinstance(error, (*FATAL, InvalidProducerIdMapping)):
            self._fatal(error)
        elif self.state is not State.ABORTING:
            self._abortable(error)

    # Steps

    def _require(self, *states: State, call: str) -> None:
        if self.state in states:
            return
        if not (call == "abort_transaction" and self.state is State.ABORTABLE):
            self._check_error()
        raise self._misplaced(call)

    def _misplaced(self, call: str) -> IllegalStateException:
        """The error of a call in the wrong state, with the call that is expected."""
        return IllegalStateException(f"transactional.id={self.id}: {call} does not fit: {self.state.value}")

    def _require_offsets(self, call: str) -> None:
        """Raises if offsets are missing: records must not be committed without their input offsets."""
        if self._offsets_missing:
            raise IllegalStateException(
                f"transactional.id={self.id}: {call} does not fit, send_offsets_to_transaction was not done "
                "in time; call it again, or abort"
            )

    def _check_error(self) -> None:
        if self.error is not None and self.state in (State.FATAL, State.ABORTABLE):
            raise self.error

    def _fatal(self, error: KafkaError) -> None:
        if self.state is not State.FATAL:
            log.error("transactional.id=%s: %s", self.id, error)
        self.state, self.error = State.FATAL, error
        self._wake()

    def _abortable(self, error: KafkaError) -> None:
        if self.state in (State.IN_TRANSACTION, State.COMMITTING, State.PREPARED):
            self.state, self.error = State.ABORTABLE, error
            self._bump_after_abort = True
            self._wake()

    def _in_time(self, call: str) -> _InTime:
        return _InTime(f"transactional.id={self.id}: {call}", self._limit)

    async def _write_everything(self) -> None:
        self.completing = True
        self._wake()
        try:
            await self._flush()
        finally:
            self.completing = False
        self._check_error()

    async def _end(self, *, commit: bool) -> None:
        async with self._in_time("commit_transaction" if commit else "abort_transaction"):
            if commit:
                await self._write_everything()
            else:
                await self._drop_everything()
            if self._started:
                await self._end_at_coordinator(commit)
            if self._bump_after_abort and not commit and not self.version_2:
                await self._init_producer_id(bump=True)
        self._bump_after_abort = False
        self.state, self.error = State.READY, None
        self._added.clear()

    async def _drop_everything(self) -> None:
        self.completing = True
        try:
            queues = list(self._accumulator.queues.values())
            if any(batch.has_sequence for queue in queues for batch in list(queue.batches)):
                # Sequence numbers that were assigned and never written would leave a gap.
                self._bump_after_abort = True
            error = self.refusing
            if error is not None:
                self._abort_waiting(error)
            if self._adding is not None:
                await asyncio.wait((self._adding,))
            self._wake()
            await self._flush()
        finally:
            self.completing = False

    async def _end_at_coordinator(self, commit: bool) -> None:
        answer = await self._coordinate(
            lambda connection: (
                EndTxnRequest(
                    transactional_id=self.id,
                    producer_id=self.sequences.producer_id,
                    producer_epoch=self.sequences.epoch,
                    committed=commit,
                ),
                connection.version_for(EndTxnRequest, at_most=None if self.version_2 else 4),
            ),
            EndTxnResponse,
        )
        if answer.producer_id != -1:
            self.sequences.take_id(answer.producer_id, answer.producer_epoch)

    async def _init_producer_id(self, *, bump: bool = False) -> None:
        two_phase = self._settings.transaction_two_phase_commit_enable

        def request(connection: AsyncConnection) -> tuple[Message, int]:
            self.version_2 = connection.features.get(FEATURE, 0) >= 2
            version = connection.version_for(InitProducerIdRequest)
            if two_phase and version < TWO_PHASE_INIT:
                log.warning(
                    "the broker does not serve two-phase commit: it aborts a prepared transaction after "
                    "transaction.timeout.ms"
                )
            made = InitProducerIdRequest(
                transactional_id=self.id,
                transaction_timeout_ms=self._settings.transaction_timeout_ms,
                enable_2pc=two_phase and version >= TWO_PHASE_INIT,
            )
            if made.enable_2pc:
                made.transaction_timeout_ms = TIME_OUT_NEVER
            if bump and version >= 3:
                made.producer_id, made.producer_epoch = self.sequences.producer_id, self.sequences.epoch
            return made, version

        answer = await self._coordinate(request, InitProducerIdResponse)
        self.sequences.take_id(answer.producer_id, answer.producer_epoch)

    async def _take_over(self, handle: PreparedTxnState) -> tuple[int, int]:
        """The producer id and epoch that end a prepared transaction."""
        node = await self._client.coordinator(TRANSACTION, self.id)
        connection = await self._client.connection(node)
        self.version_2 = connection.features.get(FEATURE, 0) >= 2
        two_phase = self._settings.transaction_two_phase_commit_enable
        if not two_phase or connection.version_for(InitProducerIdRequest) < TWO_PHASE_INIT:
            return handle.producer_id, handle.epoch
        request = InitProducerIdRequest(
            transactional_id=self.id,
            transaction_timeout_ms=TIME_OUT_NEVER,
            enable_2pc=True,
            keep_prepared_txn=True,
        )
        try:
            answer = await self._coordinate(
                lambda _: (request, TWO_PHASE_INIT), InitProducerIdResponse, taken_in=False
            )
        except UnsupportedVersion:
            # The broker knows this version but not two-phase commit: use the ids of the prepared state.
            return handle.producer_id, handle.epoch
        open_one = (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
        if open_one != (handle.producer_id, handle.epoch):
            raise IllegalStateException(
                f"transactional.id={self.id}: the transaction that was prepared is not open any more"
            )
        return answer.producer_id, answer.producer_epoch

    async def _add_partitions(self) -> None:
        try:
            while self._to_add and self.state in (State.IN_TRANSACTION, State.COMMITTING):
                adding, self._to_add = self._to_add, set()
                topics: dict[str, list[int]] = {}
                for queue in adding:
                    topics.setdefault(queue.topic, []).append(queue.partition)
                request = AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.id,
                    v3_and_below_producer_id=self.sequences.producer_id,
                    v3_and_below_producer_epoch=self.sequences.epoch,
                    v3_and_below_topics=[
                        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=partitions)
                        for name, partitions in topics.items()
                    ],
                )

                def versioned(connection: AsyncConnection, request: Message = request) -> tuple[Message, int]:
                    return request, connection.version_for(
                        AddPartitionsToTxnRequest, at_most=LAST_CLIENT_ADD_PARTITIONS
                    )

                self._started = True
                await self._coordinate(versioned, AddPartitionsToTxnResponse)
                self._added |= adding
                self._wake()
        except KafkaError as error:
            self.batch_failed(error)
        finally:
            self._adding = None
            self._wake()

    def _add_offsets(self, group_id: str) -> Message:
        return AddOffsetsToTxnRequest(
            transactional_id=self.id,
            producer_id=self.sequences.producer_id,
            producer_epoch=self.sequences.epoch,
            group_id=group_id,
        )

    async def _commit_offsets(
        self, offsets: Mapping[tuple[str, int], OffsetAndMetadata], member: ConsumerGroupMetadata
    ) -> None:
        topics: dict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), entry in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=entry.offset,
                    committed_leader_epoch=epoch_number(entry.leader_epoch),
                    committed_metadata=entry.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=member.group_id,
            producer_id=self.sequences.producer_id,
            producer_epoch=self.sequences.epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )

        def versioned(connection: AsyncConnection) -> tuple[Message, int]:
            at_most = None if self.version_2 else 4
            return request, connection.version_for(TxnOffsetCommitRequest, at_most=at_most)

        await self._coordinate(versioned, TxnOffsetCommitResponse, kind=GROUP, key=member.group_id)

    async def _coordinate(
        self,
        request_for: Callable[[AsyncConnection], tuple[Message, int | None]],
        answer: type[R],
        *,
        kind: int = TRANSACTION,
        key: str | None = None,
        taken_in: bool = True,
    ) -> R:
        """Send a request to a coordinator, with retries. Abortable and fatal errors change the state."""
        name = self.id if key is None else key
        attempt = 0
        while True:
            try:
                node = await self._client.coordinator(kind, name)
                connection = await self._client.connection(node)
                request, version = request_for(connection)
                found = await connection.call(request, answer, version=version)
                _raise_first_error(found)
                return found
            except LOOK_UP_AGAIN as error:
                self._client.forget_coordinator(kind, name)
                log.debug("the coordinator of %s: %s", name, error)
            except TRY_AGAIN:
                pass
            except KafkaError as error:
                if not taken_in and not error.retriable:
                    raise
                if not error.retriable or isinstance(error, TimeoutException):
                    raise self._noted(error, name) from None
            await asyncio.sleep(min(self._client.retry_backoff.delay(attempt), 0.02 if attempt < 5 else 1.0))
            attempt += 1

    def _noted(self, error: KafkaError, name: str) -> KafkaError:
        """The error for the user, after the change of the state."""
        if isinstance(error, FENCED):
            error = ProducerFenced(f"another producer with transactional.id={self.id} took over: {error}")
        elif isinstance(error, LOST_ITS_GROUP):
            error = CommitFailedException(
                f"the offsets of group {name!r} came too late, it has other members now: {error}"
            )
        lost = isinstance(error, UnknownProducerId | InvalidProducerIdMapping)
        if isinstance(error, FATAL) or (lost and self.state is State.ABORTING):
            self._fatal(error)
        else:
            self._abortable(error)
        return error


class _InTime:
    """`async with`: raises TimeoutException after max.block.ms; the call may be repeated."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._timer = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timer.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            await self._timer.__aexit__(kind, error, trace)  # type: ignore[arg-type]  # as it was given
        except TimeoutError:
            raise TimeoutException(
                f"{self._what}: not done within max.block.ms={round(self._seconds * 1000)}; call it again"
            ) from None


def _raise_first_error(answer: Message) -> None:
    """Raise the first error code in a response of a coordinator."""
    codes = [getattr(answer, "error_code", 0)]
    if isinstance(answer, AddPartitionsToTxnResponse):
        codes += [
            result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
    elif isinstance(answer, TxnOffsetCommitResponse):
        codes += [entry.error_code for topic in answer.topics for entry in topic.partitions]
    for code in codes:
        if code and code != OperationNotAttempted.code:  # another partition has the reason
            kind = error_class(code)
            raise kind(f"{type(answer).__name__.removesuffix('Response')}: {kind()}")
