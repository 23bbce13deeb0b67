"""TransactionCoordinator: the transactional ids in this broker's partitions of `__transaction_state`.

The state machine decides each step on the state in the log. The step is written, and answered when it is
committed. EndTxn is answered when the transaction is prepared. Markers and completion follow, with retries
until they are written, also after a restart. Markers are sent when the prepared state is committed, so that
nothing can undo it. Readers get the committed state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from tidelog.clock import Scheduler, TimerHandle
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.coordinator.runtime import CoordinatorRuntime, NewRecord
from tidelog.coordinator.transaction.completion import Completion
from tidelog.coordinator.transaction.markers import MarkerChannel
from tidelog.coordinator.transaction.records import encode_key, encode_value
from tidelog.coordinator.transaction.settings import TransactionSettings
from tidelog.coordinator.transaction.shard import TransactionShard
from tidelog.coordinator.transaction.state import (
    CLASSIC,
    EPOCH_BUMP,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT,
    PREPARED,
    Metadata,
    NeedsProducerId,
    ProducerIdAndEpoch,
    State,
    Transaction,
    Transition,
)
from tidelog.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    KafkaError,
    TransactionalIdAuthorizationFailed,
    TransactionalIdNotFound,
)
from tidelog.partitions import PartitionKey

log = logging.getLogger("tidelog.coordinator.transaction")

TOPIC = "__transaction_state"
# The most tombstones of expired ids that are written together.
EXPIRED_TOGETHER = 500

Failed = Callable[[KafkaError], None]


class ProducerIdSource(Protocol):
    def request(self, done: Callable[[int], None], failed: Failed) -> None:
        """Call `done` with a new producer id, at once if the present block has one."""


class Initialized(NamedTuple):
    """The answer to InitProducerId. `ongoing` is the prepared transaction that was kept."""

    producer: ProducerIdAndEpoch
    ongoing: ProducerIdAndEpoch | None = None


class TransactionCoordinator:
    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        scheduler: Scheduler,
        settings: TransactionSettings,
        producer_ids: ProducerIdSource,
        markers: MarkerChannel,
        local_markers: MarkerChannel | None = None,
    ) -> None:
        """`local_markers`, by default `markers`, writes the markers of other coordinators."""
        self.settings = settings
        self.markers = markers
        self.local_markers = markers if local_markers is None else local_markers
        self.metadata = metadata
        self.scheduler = scheduler
        self._producer_ids = producer_ids
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TOPIC,
            replicas,
            metadata,
            scheduler,
            lambda partition, epoch: TransactionShard(partition, epoch, self._loaded, self._unloaded),
            append_timeout_ms=lambda: settings.append_timeout_ms,
            load_buffer_size=settings.load_buffer_size,
        )
        # Transactions that are prepared and not complete, by transactional id.
        self.completions: dict[str, Completion] = {}
        # The number of transactions that were aborted after their timeout.
        self.timed_out = 0
        self._is_started = False
        self._timers: list[TimerHandle] = []

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Complete the transactions that were prepared before the start, and start the timers."""
        self._is_started = True
        for shard in self.runtime.shards():
            self._resume(shard)
        self._every(lambda: self.settings.abort_interval_ms, self.abort_timed_out)
        self._every(lambda: self.settings.remove_expired_interval_ms, self.remove_expired)

    def _every(self, interval_ms: Callable[[], int], work: Callable[[], None]) -> None:
        slot = len(self._timers)

        def due() -> None:
            work()
            self._timers[slot] = self.scheduler.schedule(interval_ms() / 1000, due)

        self._timers.append(self.scheduler.schedule(interval_ms() / 1000, due))

    def close(self) -> None:
        self._is_started = False
        for timer in self._timers:
            timer.cancel()
        for completion in list(self.completions.values()):
            completion.cancel()
        self.runtime.close()

    def _loaded(self, shard: TransactionShard) -> None:
        if self._is_started:
            self._resume(shard)

    def _unloaded(self, shard: TransactionShard) -> None:
        """Stop the completions of a shard: another broker completes its transactions."""
        for completion in [each for each in self.completions.values() if each.shard is shard]:
            completion.cancel()

    def _resume(self, shard: TransactionShard) -> None:
        for transaction in list(shard.transactions.values()):
            if transaction.metadata.state in PREPARED and transaction.pending is None:
                self.complete(shard, transaction, is_committed=False)

    # -- finding -----------------------------------------------------------------------------------

    def partition_for(self, transactional_id: str) -> int:
        """The partition of an id. Raises NotCoordinator if this broker does not know the topic yet."""
        return self.runtime.partition_for(transactional_id)

    def _run(
        self, transactional_id: str, operation: Callable[[TransactionShard], None], failed: Failed
    ) -> None:
        """Call `operation` with the state of an id; its KafkaError goes to `failed`."""
        if not transactional_id:
            failed(InvalidRequest("the transactional id is empty"))
            return

        def decide(shard: TransactionShard) -> None:
            try:
                operation(shard)
            except KafkaError as error:
                failed(error)

        try:
            partition = self.partition_for(transactional_id)
        except KafkaError as error:
            failed(error)
            return
        self.runtime.run(partition, decide, failed)

    def _known(self, shard: TransactionShard, transactional_id: str) -> Transaction:
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            raise InvalidProducerIdMapping(f"no producer of {transactional_id} is known")
        return transaction

    # -- InitProducerId ----------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        done: Callable[[Initialized], None],
        failed: Failed,
        *,
        enable_two_phase: bool = False,
        keep_prepared: bool = False,
        new_producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Give the producer of an id a new epoch; a producer with an older epoch is fenced."""
        if transactional_id and enable_two_phase and not self.settings.two_phase_commit_enable:
            failed(TransactionalIdAuthorizationFailed("transaction.two.phase.commit.enable is false"))
            return
        if transactional_id and not enable_two_phase and not 0 < timeout_ms <= self.settings.max_timeout_ms:
            failed(
                InvalidTransactionTimeout(
                    f"{timeout_ms} ms is not within 1 to transaction.max.timeout.ms="
                    f"{self.settings.max_timeout_ms}"
                )
            )
            return

        def again(producer_id: int) -> None:
            self.init_producer_id(
                transactional_id,
                timeout_ms,
                expected,
                done,
                failed,
                enable_two_phase=enable_two_phase,
                keep_prepared=keep_prepared,
                new_producer_id=producer_id,
            )

        def decide(shard: TransactionShard) -> None:
            resolved = NO_TIMEOUT if enable_two_phase else timeout_ms
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                if new_producer_id == NO_PRODUCER_ID:
                    raise NeedsProducerId
                transaction = Transaction(
                    transactional_id, Metadata(new_producer_id, NO_EPOCH, resolved, State.EMPTY)
                )
                shard.transactions[transactional_id] = transaction
            self._initialize(
                shard, transaction, resolved, expected, keep_prepared, new_producer_id, done, failed
            )

        def decide_or_get_id(shard: TransactionShard) -> None:
            try:
                decide(shard)
            except NeedsProducerId:
                self._producer_ids.request(again, failed)

        self._run(transactional_id, decide_or_get_id, failed)

    def _initialize(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        keep_prepared: bool,
        new_producer_id: int,
        done: Callable[[Initialized], None],
        failed: Failed,
    ) -> None:
        before = transaction.metadata
        transition = transaction.initialize(
            timeout_ms,
            expected,
            self.scheduler.clock.ms(),
            keep_prepared=keep_prepared,
            new_producer_id=new_producer_id,
        )
        if transition is None:
            # The client retries until the transaction of its predecessor is aborted.
            self._fence(
                shard,
                transaction,
                lambda: failed(ConcurrentTransactions("the transaction under way is being aborted")),
                failed,
            )
            return

        def written() -> None:
            after = transition.metadata
            ongoing = None
            if after.is_kept:
                ongoing = ProducerIdAndEpoch(after.producer_id, after.producer_epoch)
            done(Initialized(after.latest, ongoing))

        def not_written(error: KafkaError) -> None:
            if before.producer_epoch == NO_EPOCH and transaction.metadata is before:
                shard.transactions.pop(transaction.transactional_id, None)
            failed(error)

        self._write(shard, transaction, transition, written, not_written)

    def _fence(
        self, shard: TransactionShard, transaction: Transaction, done: Callable[[], None], failed: Failed
    ) -> None:
        version = EPOCH_BUMP if self.settings.transaction_version >= EPOCH_BUMP else CLASSIC
        transition = transaction.fence(self.scheduler.clock.ms(), version)
        self._prepare(shard, transaction, transition, done, failed)

    # -- partitions --------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[PartitionKey],
        client_version: int,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        def decide(shard: TransactionShard) -> None:
            transaction = self._known(shard, transactional_id)
            transition = transaction.add_partitions(
                producer_id, epoch, partitions, client_version, self.scheduler.clock.ms()
            )
            if transition is None:
                self.runtime.when_committed(shard.partition, done)
            else:
                self._write(shard, transaction, transition, lambda: done(None), done)

        self._run(transactional_id, decide, done)

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[PartitionKey],
        done: Callable[[dict[PartitionKey, KafkaError]], None],
    ) -> None:
        """Find the partitions that are not part of the ongoing transaction, with their errors.

        The check uses the committed state: if the record of a partition were lost, it would never get a
        marker.
        """

        def decide(shard: TransactionShard) -> None:
            known = self._committed(shard, transactional_id)
            done(known.verify_partitions(producer_id, epoch, partitions))

        self._run(transactional_id, decide, lambda error: done(dict.fromkeys(partitions, error)))

    def is_part_now(
        self, transactional_id: str, producer_id: int, epoch: int, partition: PartitionKey
    ) -> bool:
        """Whether a partition is certainly part of the ongoing transaction, without a wait.

        If False, use `verify_partitions`, which waits or returns the error.
        """
        try:
            shard = self.runtime.settled(self.partition_for(transactional_id))
            return shard is not None and self._committed(shard, transactional_id).has_partition(
                producer_id, epoch, partition
            )
        except KafkaError:
            return False

    def writes_now(self, transactional_id: str) -> bool:
        """Whether a step would be written and committed in this turn of the loop."""
        try:
            return self.runtime.commits_now(self.partition_for(transactional_id))
        except KafkaError:
            return False

    def _committed(self, shard: TransactionShard, transactional_id: str) -> Transaction:
        """The committed state of an id, for readers."""
        if shard.journal.is_empty:
            return self._known(shard, transactional_id)
        shard.journal.check_readable()
        shard.journal.settle()
        metadata = shard.committed(transactional_id)
        if metadata is None:
            raise InvalidProducerIdMapping(f"no producer of {transactional_id} is known")
        return Transaction(transactional_id, metadata)

    # -- EndTxn ------------------------------------------------------------------------------------

    def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        client_version: int,
        done: Callable[[ProducerIdAndEpoch], None],
        failed: Failed,
        new_producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """End a transaction; answers with the producer id and epoch of the next one, when it is prepared."""

        def again(producer_id_to_take: int) -> None:
            self.end_transaction(
                transactional_id,
                producer_id,
                epoch,
                commit=commit,
                client_version=client_version,
                done=done,
                failed=failed,
                new_producer_id=producer_id_to_take,
            )

        def decide(shard: TransactionShard) -> None:
            transaction = self._known(shard, transactional_id)
            now_ms = self.scheduler.clock.ms()
            try:
                transition = transaction.end(
                    producer_id,
                    epoch,
                    commit=commit,
                    client_version=client_version,
                    now_ms=now_ms,
                    new_producer_id=new_producer_id,
                )
            except NeedsProducerId:
                self._producer_ids.request(again, failed)
                return
            if transition is None:
                latest = transaction.metadata.latest
                self.runtime.when_committed(
                    shard.partition, lambda error: done(latest) if error is None else failed(error)
                )
                return
            following = transition.metadata.following
            self._prepare(shard, transaction, transition, lambda: done(following), failed)

        self._run(transactional_id, decide, failed)

    def _prepare(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        transition: Transition,
        done: Callable[[], None],
        failed: Failed,
    ) -> None:
        def written() -> None:
            done()
            self.complete(shard, transaction)

        def not_written(error: KafkaError) -> None:
            failed(error)
            if transaction.metadata.state in PREPARED:
                # The record is in the log. The transaction ends in this way when the replicas have it.
                self.complete(shard, transaction, is_committed=False)

        self._write(shard, transaction, transition, written, not_written)

    def complete(
        self, shard: TransactionShard, transaction: Transaction, *, is_committed: bool = True
    ) -> None:
        if shard.is_unloaded:
            return
        completion = Completion(self, shard, transaction)
        before = self.completions.get(transaction.transactional_id)
        if before is not None:
            before.cancel()
        self.completions[transaction.transactional_id] = completion
        completion.start(is_committed=is_committed)

    # -- writing -----------------------------------------------------------------------------------

    def _write(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        transition: Transition,
        done: Callable[[], None],
        failed: Failed,
    ) -> None:
        if self.runtime.commits_now(shard.partition) and self.write_now(shard, transaction, transition):
            done()
            return
        transactional_id, metadata = transaction.transactional_id, transition.metadata
        transaction.pending = metadata.state

        def written(error: KafkaError | None) -> None:
            transaction.pending = None
            if error is not None:
                failed(error)
                return
            transaction.last_producer_epoch = transition.last_producer_epoch
            done()

        value = encode_value(metadata, self.settings.value_version)
        record = NewRecord(encode_key(transactional_id), value)
        self.runtime.append(
            shard.partition, [record], written, lambda hosted: hosted.take(transactional_id, metadata)
        )

    def write_now(self, shard: TransactionShard, transaction: Transaction, transition: Transition) -> bool:
        """Write and commit a step.

        Call it only if `runtime.commits_now`; returns False if nothing was written.
        """
        transactional_id, metadata = transaction.transactional_id, transition.metadata
        key, value = encode_key(transactional_id), encode_value(metadata, self.settings.value_version)
        if not self.runtime.append_now(shard.partition, key, value, metadata.last_update_ms):
            return False
        shard.take(transactional_id, metadata)
        transaction.last_producer_epoch = transition.last_producer_epoch
        return True

    def write_completion(
        self, shard: TransactionShard, transaction: Transaction, done: Callable[[], None], failed: Failed
    ) -> None:
        """Write the completion after all markers are written."""

        def decide(_: TransactionShard) -> None:
            transition = transaction.complete(self.scheduler.clock.ms())
            self._write(shard, transaction, transition, done, failed)

        self.runtime.run(shard.partition, decide, failed)

    # -- time --------------------------------------------------------------------------------------

    def abort_timed_out(self) -> None:
        """Abort transactions that exceed their timeout, and fence their producers."""
        now_ms = self.scheduler.clock.ms()
        for shard in list(self.runtime.shards()):
            overdue = [found for found in shard.ongoing.values() if found.is_timed_out(now_ms)]
            for transaction in overdue:
                self._abort_overdue(shard, transaction)

    def _abort_overdue(self, shard: TransactionShard, transaction: Transaction) -> None:
        transactional_id = transaction.transactional_id

        def failed(error: KafkaError) -> None:
            log.warning(
                "the transaction of %s that timed out is not aborted yet: %s", transactional_id, error
            )

        def decide(_: TransactionShard) -> None:
            if transaction.is_timed_out(self.scheduler.clock.ms()):
                log.info("the transaction of %s timed out and is aborted", transactional_id)
                self.timed_out += 1
                self._fence(shard, transaction, lambda: None, failed)

        self.runtime.run(shard.partition, decide, failed)

    def remove_expired(self) -> None:
        """Delete ids that were not used for `transactional.id.expiration.ms`."""
        for shard in list(self.runtime.shards()):
            self._remove_expired_of(shard)

    def _remove_expired_of(self, shard: TransactionShard) -> None:
        now_ms, expiration_ms = self.scheduler.clock.ms(), self.settings.id_expiration_ms
        expired = []
        for transaction in shard.transactions.values():
            if transaction.is_expired(now_ms, expiration_ms):
                expired.append(transaction)
                if len(expired) == EXPIRED_TOGETHER:
                    # The next tombstones follow when these are written.
                    self.scheduler.schedule(0.0, lambda: self._remove_expired_of(shard))
                    break
        if not expired or shard.is_unloaded:
            return
        for transaction in expired:
            transaction.pending = State.DEAD

        def written(error: KafkaError | None) -> None:
            for transaction in expired:
                transaction.pending = None
            if error is not None:
                log.warning("%d transactional ids could not be removed yet: %s", len(expired), error)

        records = [NewRecord(encode_key(transaction.transactional_id), None) for transaction in expired]
        self.runtime.append(shard.partition, records, written)

    # -- descriptions ------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Metadata:
        """The committed state of an id.

        Raises a KafkaError if it is unknown or its partition is not loaded.
        """
        if not transactional_id:
            raise InvalidRequest("the transactional id is empty")
        metadata = self.runtime.committed_for(transactional_id).committed(transactional_id)
        if metadata is None:
            raise TransactionalIdNotFound(f"no producer of {transactional_id} is known")
        return metadata

    def transactions(self) -> Iterator[tuple[str, Metadata]]:
        """All transactional ids of this broker, with their committed state."""
        for shard in self.runtime.shards():
            yield from shard.all_committed()
