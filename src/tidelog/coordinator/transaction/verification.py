"""TransactionVerification: checks that a partition is part of a transaction before its first batch (KIP-890).

An older client has added the partition with AddPartitionsToTxn, and the coordinator confirms it. For a newer
client, the broker adds the partition itself. Later batches need no check, because the log has the transaction
then. The result is the guard of the append (Verification in storage/producer_state_manager.py). The
coordinator may be on another broker (`RemoteVerification`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.coordinator.transaction.markers import GROUP_TOPIC
from tidelog.coordinator.transaction.state import EPOCH_BUMP
from tidelog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from tidelog.partitions import PartitionKey
from tidelog.storage.producer_state_manager import Verification

if TYPE_CHECKING:
    from tidelog.coordinator.transaction.remote_verification import RemoteVerification

# Versions from which on a request adds the partition, and its client knows TRANSACTION_ABORTABLE.
PRODUCE_ADDS, PRODUCE_KNOWS_ABORTABLE = 12, 11
OFFSETS_ADD, OFFSETS_KNOW_ABORTABLE = 5, 4

Errors = dict[Partition, KafkaError]
Guards = dict[Partition, Verification]


class TransactionVerification:
    """`remote` asks coordinators on other brokers. Without it, this broker coordinates every id."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        replicas: ReplicaManager,
        remote: RemoteVerification | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._replicas = replicas
        self._remote = remote
        self._settings = coordinator.settings
        self._scheduler = coordinator.scheduler

    # -- Produce -----------------------------------------------------------------------------------

    def check_produce(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        sequences: Mapping[Partition, int],
        version: int,
        done: Callable[[Errors, Guards], None],
    ) -> None:
        """Verify or add the partitions of a produce request, with the base sequence of each.

        `done` is called with the errors of partitions that must not be appended to, and the guards of others.
        """
        adds = version >= PRODUCE_ADDS
        if not adds and not self._settings.partition_verification_enable:
            done({}, {})
            return
        began_ms = self._scheduler.clock.ms()

        def checked(errors: Errors, guards: Guards) -> None:
            if adds and any(isinstance(error, ConcurrentTransactions) for error in errors.values()):
                # The previous transaction is nearly complete, and a wait costs less than a retry.
                waited_ms = self._scheduler.clock.ms() - began_ms
                if waited_ms < self._settings.add_partitions_retry_max_ms:
                    self._scheduler.schedule(self._settings.add_partitions_retry_ms / 1000, ask)
                    return
            done({at: _for_producers(error, adds) for at, error in errors.items()}, guards)

        def ask() -> None:
            self._ask(
                transactional_id,
                producer_id,
                epoch,
                sequences,
                adds,
                version >= PRODUCE_KNOWS_ABORTABLE,
                checked,
            )

        ask()

    def is_verified_now(
        self, transactional_id: str, producer_id: int, epoch: int, partition: Partition
    ) -> bool:
        """Whether the transaction certainly has a partition that an older client has added, without a wait.

        If False, use `check_produce`, which waits or returns the error.
        """
        wanted = (partition.topic, partition.index)
        return self._settings.partition_verification_enable and self._coordinator.is_part_now(
            transactional_id, producer_id, epoch, wanted
        )

    def guard_now(
        self, transactional_id: str, producer_id: int, epoch: int, sequence: int, partition: Partition
    ) -> Verification | None:
        """The guard of one append whose partition the broker adds, if it is available without a wait.

        If it is None, use `check_produce`, which waits or returns the error.
        """
        if not self._coordinator.writes_now(transactional_id):
            return None
        found: Guards = {}

        def checked(errors: Errors, guards: Guards) -> None:
            if not errors:
                found.update(guards)

        self._ask(transactional_id, producer_id, epoch, {partition: sequence}, True, True, checked)
        return found.get(partition)

    # -- TxnOffsetCommit ---------------------------------------------------------------------------

    def check_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partition: int,
        *,
        version: int,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """Verify or add the partition of `__consumer_offsets` with a group's offsets."""
        adds = version >= OFFSETS_ADD
        if not adds and not self._settings.partition_verification_enable:
            done(None)
            return
        try:
            target = self._replicas.partition(GROUP_TOPIC, partition)
        except KafkaError as error:
            done(error)
            return
        self._ask(
            transactional_id,
            producer_id,
            producer_epoch,
            {target: 0},
            adds,
            version >= OFFSETS_KNOW_ABORTABLE,
            lambda errors, _: done(_for_offsets(errors.get(target))),
        )

    # -- asking the coordinator --------------------------------------------------------------------

    def _ask(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        sequences: Mapping[Partition, int],
        adds: bool,
        knows_abortable: bool,
        done: Callable[[Errors, Guards], None],
    ) -> None:
        errors: Errors = {}
        guards: Guards = {}
        now_ms = self._scheduler.clock.ms()
        for partition, sequence in sequences.items():
            try:
                producers = partition.leader_log().producers
                guard = producers.start_verification(producer_id, epoch, sequence, adds, now_ms)
            except KafkaError as error:
                errors[partition] = error
                continue
            if guard is not None:
                guards[partition] = guard
        if not guards:
            done(errors, guards)
            return
        keys = frozenset((partition.topic, partition.index) for partition in guards)

        def on_answer(refused: dict[PartitionKey, KafkaError]) -> None:
            for partition in guards:
                error = refused.get((partition.topic, partition.index))
                if error is not None:
                    errors[partition] = _for_clients(error, knows_abortable)
            done(errors, guards)

        if self._remote is not None:
            try:
                coordinator_partition = self._coordinator.partition_for(transactional_id)
            except KafkaError as error:
                on_answer(dict.fromkeys(keys, CoordinatorNotAvailable(error.message)))
                return
            if not self._coordinator.runtime.is_led_here(coordinator_partition):
                self._remote.check(
                    coordinator_partition,
                    transactional_id,
                    producer_id,
                    epoch,
                    keys,
                    adds=adds,
                    done=on_answer,
                )
                return
        if adds:
            # Check the metadata like a coordinator on another broker: at the end of the transaction, a
            # partition that is not in the metadata counts as deleted. LeaderAndIsr comes before the metadata.
            find = self._coordinator.metadata.find_partition
            if any(find(*key) is None for key in keys):
                unknown = UnknownTopicOrPartition("this broker does not know all of the partitions yet")
                on_answer(dict.fromkeys(keys, unknown))
                return
            self._coordinator.add_partitions(
                transactional_id,
                producer_id,
                epoch,
                keys,
                EPOCH_BUMP,
                lambda error: on_answer({} if error is None else dict.fromkeys(keys, error)),
            )
        else:
            self._coordinator.verify_partitions(transactional_id, producer_id, epoch, keys, on_answer)


def _for_clients(error: KafkaError, knows_abortable: bool) -> KafkaError:
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(error.message)
    if isinstance(error, TransactionAbortable) and not knows_abortable:
        return InvalidTxnState(error.message)
    return error


def _for_producers(error: KafkaError, adds: bool) -> KafkaError:
    """The error for a producer. Coordinator errors become one with which it retries the batch."""
    passing = isinstance(
        error, CoordinatorLoadInProgress | CoordinatorNotAvailable | NetworkException | NotCoordinator
    )
    if passing or (isinstance(error, ConcurrentTransactions) and not adds):
        return NotEnoughReplicas(f"the transaction could not be verified yet: {error.message}")
    return error


def _for_offsets(error: KafkaError | None) -> KafkaError | None:
    """The error for a commit of offsets: older clients retry while a coordinator loads, but not
    NetworkException.
    """
    if isinstance(error, NetworkException):
        return CoordinatorLoadInProgress(error.message)
    return error
