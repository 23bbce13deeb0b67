"""The state machine of a transactional id: from a request and the present state to the next state.

Kafka's counterpart is TransactionMetadata. Nothing in this module writes or waits. A request that breaks a
rule raises its KafkaError. A step that needs a new producer id raises `NeedsProducerId`, and the caller
repeats it with one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tidelog.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)
from tidelog.partitions import PartitionKey

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
# A producer never gets the last epoch: the coordinator needs it to fence the producer.
MAX_EPOCH = 32767
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
# The timeout of a transaction in a two-phase commit: only its owner aborts it.
NO_TIMEOUT = 0x7FFFFFFF

# The transaction version of a client, from its requests: with 2 every end bumps the epoch.
CLASSIC = 0
EPOCH_BUMP = 2


class State(IntEnum):
    """The states, with their numbers in the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name in answers and tools."""
        return "".join(word.capitalize() for word in self.name.split("_"))


TITLES = {state.title: state for state in State}

ENDED = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

# The states from which each one may be reached. PrepareEpochFence is never written: it is the state of an id
# whose producer is being fenced until the abort of its transaction is in the log.
VALID_PREVIOUS: dict[State, frozenset[State]] = {
    State.EMPTY: ENDED,
    State.ONGOING: ENDED | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: ENDED | {State.ONGOING, State.PREPARE_EPOCH_FENCE},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: ENDED,
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
}


class NeedsProducerId(Exception):
    """The producer id has no epochs left: the step needs a new id."""


class IllegalTransition(Exception):
    """A forbidden transition, by a defect of this broker."""


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


class Metadata(NamedTuple):
    """The last record of a transactional id.

    The client uses `next_producer_id` and `next_producer_epoch` while the ongoing transaction still has older
    ones: after its epochs were exhausted, or after a prepared transaction was kept.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[PartitionKey] = frozenset()
    start_ms: int = NO_TIME
    last_update_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    client_version: int = CLASSIC

    @property
    def latest(self) -> ProducerIdAndEpoch:
        """The producer id and epoch of the current producer."""
        if self.state is State.ONGOING and self.next_producer_epoch != NO_EPOCH:
            return ProducerIdAndEpoch(self.next_producer_id, self.next_producer_epoch)
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    def is_latest(self, producer_id: int, epoch: int) -> bool:
        """Whether the current producer has this id and epoch."""
        if self.state is State.ONGOING and self.next_producer_epoch != NO_EPOCH:
            return epoch == self.next_producer_epoch and producer_id == self.next_producer_id
        return epoch == self.producer_epoch and producer_id == self.producer_id

    @property
    def following(self) -> ProducerIdAndEpoch:
        """The producer id and epoch of the next transaction, in a prepared state."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, self.next_producer_epoch)
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_kept(self) -> bool:
        """Whether a newer producer may only commit or abort the ongoing, prepared transaction."""
        return self.state is State.ONGOING and self.next_producer_epoch != NO_EPOCH

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT


class Transition(NamedTuple):
    """The state to write, and the previous epoch, which a retry of the same request may have."""

    metadata: Metadata
    last_producer_epoch: int = NO_EPOCH


class Transaction:
    """A transactional id: the state in its records, and the state that only this coordinator has.

    `pending` is the state of a record that is being written. No other step is decided until it is in the log.
    `last_producer_epoch` is not in the records, as in Kafka, so a new coordinator fences a retry of
    InitProducerId.
    """

    __slots__ = ("last_producer_epoch", "metadata", "pending", "transactional_id")

    def __init__(self, transactional_id: str, metadata: Metadata) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata
        self.last_producer_epoch = NO_EPOCH
        self.pending: State | None = None

    # -- InitProducerId ----------------------------------------------------------------------------

    def initialize(
        self,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        now_ms: int,
        *,
        keep_prepared: bool = False,
        new_producer_id: int = NO_PRODUCER_ID,
    ) -> Transition | None:
        """The state with a new epoch; None if the ongoing transaction has to be aborted first."""
        self._check_settled()
        self._check_expected(expected)
        known = self.metadata
        if known.state is State.ONGOING:
            if keep_prepared:
                return self._keep(expected, now_ms, new_producer_id)
            return None
        epoch = known.producer_epoch
        if is_exhausted(epoch) and (expected is None or expected.epoch == epoch):
            if new_producer_id == NO_PRODUCER_ID:
                raise NeedsProducerId
            last_epoch = NO_EPOCH if expected is None else epoch
            return self._to_empty(new_producer_id, 0, last_epoch, timeout_ms, now_ms)
        if expected is None:
            return self._to_empty(known.producer_id, epoch + 1, NO_EPOCH, timeout_ms, now_ms)
        if epoch == NO_EPOCH or expected.epoch == epoch:
            return self._to_empty(known.producer_id, epoch + 1, epoch, timeout_ms, now_ms)
        if expected.epoch == self.last_producer_epoch:
            # A retry: the client did not get the first answer. No other producer came in between,
            # or it would have cleared the last epoch.
            return self._to_empty(known.producer_id, epoch, self.last_producer_epoch, timeout_ms, now_ms)
        raise self._fenced(expected.epoch)

    def _check_expected(self, expected: ProducerIdAndEpoch | None) -> None:
        """Fence a producer that recovers with an id and epoch that are neither current nor the last ones."""
        known = self.metadata
        if (
            expected is None
            or known.producer_epoch == NO_EPOCH
            or expected.producer_id == known.latest.producer_id
            or (expected.producer_id == known.previous_producer_id and is_exhausted(expected.epoch))
        ):
            return
        raise self._fenced(expected.epoch)

    def _keep(self, expected: ProducerIdAndEpoch | None, now_ms: int, new_producer_id: int) -> Transition:
        """A new epoch for the client that decides on a prepared transaction.

        The transaction keeps its own epoch.
        """
        known = self.metadata
        latest = known.latest
        if expected is not None and expected.epoch != latest.epoch:
            raise self._fenced(expected.epoch)
        if is_exhausted(latest.epoch):
            if new_producer_id == NO_PRODUCER_ID:
                raise NeedsProducerId
            latest = ProducerIdAndEpoch(new_producer_id, -1)
        return self._transition(
            known._replace(
                next_producer_id=latest.producer_id,
                next_producer_epoch=latest.epoch + 1,
                last_update_ms=now_ms,
            ),
            NO_EPOCH,
        )

    def _to_empty(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> Transition:
        return self._transition(
            Metadata(
                producer_id=producer_id,
                producer_epoch=epoch,
                timeout_ms=timeout_ms,
                state=State.EMPTY,
                last_update_ms=now_ms,
                previous_producer_id=self.metadata.producer_id,
                client_version=self.metadata.client_version,
            ),
            last_epoch,
        )

    # -- AddPartitionsToTxn ------------------------------------------------------------------------

    def add_partitions(
        self,
        producer_id: int,
        epoch: int,
        partitions: frozenset[PartitionKey],
        client_version: int,
        now_ms: int,
    ) -> Transition | None:
        """The state with these partitions added; None if it has them already."""
        known = self.metadata
        # Checked first: after a change of the producer id the client may have the new one.
        self._check_settled()
        self._check_producer(producer_id, epoch)
        if known.is_kept:
            raise InvalidTxnState(
                f"the transaction of {self.transactional_id} is prepared: it can be ended and not added to"
            )
        if known.state is State.ONGOING and partitions <= known.partitions:
            return None
        return self._transition(
            Metadata(
                producer_id=known.producer_id,
                producer_epoch=known.producer_epoch,
                timeout_ms=known.timeout_ms,
                state=State.ONGOING,
                partitions=known.partitions | partitions if known.partitions else partitions,
                start_ms=known.start_ms if known.state is State.ONGOING else now_ms,
                last_update_ms=now_ms,
                previous_producer_id=known.producer_id,
                next_producer_id=known.next_producer_id,
                next_producer_epoch=known.next_producer_epoch,
                client_version=client_version,
            ),
            self.last_producer_epoch,
        )

    def verify_partitions(
        self, producer_id: int, epoch: int, partitions: frozenset[PartitionKey]
    ) -> dict[PartitionKey, KafkaError]:
        """The partitions that are not part of the transaction, with their errors."""
        self._check_producer(producer_id, epoch)
        if self.metadata.state in PREPARED:
            raise ConcurrentTransactions(f"a transaction of {self.transactional_id} is being completed")
        return {
            partition: TransactionAbortable(
                f"{partition[0]}-{partition[1]} is not part of the transaction of {self.transactional_id}"
            )
            for partition in partitions - self.metadata.partitions
        }

    def has_partition(self, producer_id: int, epoch: int, partition: PartitionKey) -> bool:
        """Whether a partition is part of the transaction of this producer."""
        known = self.metadata
        return (
            partition in known.partitions
            and known.state not in PREPARED
            and known.is_latest(producer_id, epoch)
        )

    def _check_producer(self, producer_id: int, epoch: int) -> None:
        known = self.metadata
        if known.is_latest(producer_id, epoch):
            return
        if producer_id not in (known.latest.producer_id, known.producer_id):
            raise self._wrong_id(producer_id)
        raise self._fenced(epoch)

    # -- EndTxn ------------------------------------------------------------------------------------

    def end(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        client_version: int,
        now_ms: int,
        new_producer_id: int = NO_PRODUCER_ID,
    ) -> Transition | None:
        """The prepared state for a commit or abort; None if the transaction has ended in this way already."""
        if client_version >= EPOCH_BUMP:
            return self._end_and_bump(producer_id, epoch, commit, now_ms, new_producer_id)
        self._check_producer(producer_id, epoch)
        self._check_settled()
        if self.metadata.state is State.ONGOING:
            return self._prepare(commit, CLASSIC, now_ms)
        self._check_repeated_end(commit)
        return None

    def _end_and_bump(
        self, producer_id: int, epoch: int, commit: bool, now_ms: int, new_producer_id: int
    ) -> Transition | None:
        self._check_settled()
        known = self.metadata
        latest = known.latest
        # A client that missed the answer to its last EndTxn still has the id before the new one.
        over_new_id = (
            known.previous_producer_id == producer_id
            and epoch == LAST_CLIENT_EPOCH
            and known.producer_epoch == 0
        )
        if producer_id not in (latest.producer_id, known.producer_id) and not over_new_id:
            raise self._wrong_id(producer_id)
        # The present epoch ends the present transaction; the epoch before is a retry of the last end.
        is_repeated = (
            known.state in ENDED
            and known.state is not State.EMPTY
            and (over_new_id or (producer_id == known.producer_id and epoch + 1 == known.producer_epoch))
        )
        if not is_repeated and (producer_id, epoch) != latest:
            raise self._fenced(epoch)
        if is_repeated:
            self._check_repeated_end(commit)
            return None
        if commit and known.state is not State.ONGOING:
            raise self._nothing_to(commit)
        # A client may not know whether a partition was added: it may abort an empty transaction.
        return self._prepare(commit, EPOCH_BUMP, now_ms, new_producer_id=new_producer_id)

    def _check_repeated_end(self, commit: bool) -> None:
        if self.metadata.state is not (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
            raise self._nothing_to(commit)

    def fence(self, now_ms: int, server_version: int = EPOCH_BUMP) -> Transition:
        """The prepared abort of the ongoing transaction, with a new epoch that fences its producer."""
        self._check_settled()
        if self.metadata.state is not State.ONGOING:
            raise self._nothing_to(False)
        return self._prepare(False, server_version, now_ms, is_fence=True)

    def _prepare(
        self,
        commit: bool,
        version: int,
        now_ms: int,
        *,
        new_producer_id: int = NO_PRODUCER_ID,
        is_fence: bool = False,
    ) -> Transition:
        """PrepareCommit or PrepareAbort.

        Markers have the producer id of the records and the epoch of this state, which with version 2 is above
        every epoch that a client has got.
        """
        known = self.metadata
        latest = known.latest
        next_id, next_epoch = NO_PRODUCER_ID, NO_EPOCH
        bump = version >= EPOCH_BUMP or is_fence
        if latest.producer_id != known.producer_id:
            # The id changes: the old id is fenced with its last epoch, the client continues with the new one.
            epoch = known.producer_epoch + 1 if bump else known.producer_epoch
            next_id, next_epoch = latest.producer_id, latest.epoch + 1 if bump else latest.epoch
            if bump and is_exhausted(latest.epoch) and not is_fence:
                if new_producer_id == NO_PRODUCER_ID:
                    raise NeedsProducerId
                next_id, next_epoch = new_producer_id, 0
        else:
            epoch = latest.epoch
            if bump and not is_fence and is_exhausted(epoch):
                if new_producer_id == NO_PRODUCER_ID:
                    raise NeedsProducerId
                next_id, next_epoch = new_producer_id, 0
            if bump:
                epoch += 1
        return self._transition(
            Metadata(
                producer_id=known.producer_id,
                producer_epoch=epoch,
                timeout_ms=known.timeout_ms,
                state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
                partitions=known.partitions,
                start_ms=known.start_ms if known.state is State.ONGOING else now_ms,
                last_update_ms=now_ms,
                previous_producer_id=known.producer_id,
                next_producer_id=next_id,
                next_producer_epoch=next_epoch,
                client_version=version,
            ),
            NO_EPOCH if is_fence or not bump else latest.epoch,
        )

    # -- after the end -----------------------------------------------------------------------------

    def complete(self, now_ms: int) -> Transition:
        """The completed state, after all markers are written, with the next id and epoch of the producer."""
        known = self.metadata
        producer_id, epoch = known.producer_id, known.producer_epoch
        if known.next_producer_id != NO_PRODUCER_ID:
            producer_id = known.next_producer_id
            epoch = known.next_producer_epoch if known.next_producer_epoch != NO_EPOCH else 0
        return self._transition(
            Metadata(
                producer_id=producer_id,
                producer_epoch=epoch,
                timeout_ms=known.timeout_ms,
                state=State.COMPLETE_COMMIT if known.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
                start_ms=known.start_ms,
                last_update_ms=now_ms,
                previous_producer_id=known.producer_id,
                client_version=known.client_version,
            ),
            self.last_producer_epoch,
        )

    def is_timed_out(self, now_ms: int) -> bool:
        known = self.metadata
        return (
            known.state is State.ONGOING
            and self.pending is None
            and not known.is_two_phase
            and known.start_ms + known.timeout_ms < now_ms
        )

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        known = self.metadata
        return (
            known.state in ENDED and self.pending is None and known.last_update_ms <= now_ms - expiration_ms
        )

    # -- the pieces --------------------------------------------------------------------------------

    def _check_settled(self) -> None:
        """Raise ConcurrentTransactions while a step or the markers are being written. The client retries."""
        if self.pending is not None:
            raise ConcurrentTransactions(f"{self.transactional_id} is changing to {self.pending.title}")
        if self.metadata.state in PREPARED:
            raise ConcurrentTransactions(f"a transaction of {self.transactional_id} is being completed")

    def _transition(self, metadata: Metadata, last_producer_epoch: int) -> Transition:
        check_transition(self.metadata, metadata)
        return Transition(metadata, last_producer_epoch)

    def _fenced(self, epoch: int) -> ProducerFenced:
        return ProducerFenced(
            f"the producer of {self.transactional_id} has epoch {epoch}, the latest is "
            f"{self.metadata.latest.epoch}"
        )

    def _wrong_id(self, producer_id: int) -> InvalidProducerIdMapping:
        return InvalidProducerIdMapping(
            f"{self.transactional_id} has the producer id {self.metadata.latest.producer_id}, "
            f"not {producer_id}"
        )

    def _nothing_to(self, commit: bool) -> InvalidTxnState:
        verb = "commit" if commit else "abort"
        return InvalidTxnState(
            f"{self.transactional_id} is {self.metadata.state.title}: there is nothing to {verb}"
        )


def is_exhausted(epoch: int) -> bool:
    """Whether a producer id has no higher epoch left."""
    return epoch >= LAST_CLIENT_EPOCH


def check_transition(before: Metadata, after: Metadata) -> None:
    """Check the rules of every step."""
    if before.state not in VALID_PREVIOUS[after.state]:
        raise IllegalTransition(f"{before.state.title} does not go to {after.state.title}")
    if after.producer_id < 0 or not 0 <= after.producer_epoch <= MAX_EPOCH:
        raise IllegalTransition(f"producer {after.producer_id} cannot have epoch {after.producer_epoch}")
    if after.producer_id == before.producer_id and after.producer_epoch < before.producer_epoch:
        raise IllegalTransition(f"the epoch falls from {before.producer_epoch} to {after.producer_epoch}")
    if after.state is State.ONGOING and not before.partitions <= after.partitions:
        raise IllegalTransition("a partition left the transaction before its end")
    if after.state in PREPARED and after.partitions != before.partitions:
        raise IllegalTransition("the partitions of a transaction changed with its end")
    if after.state in ENDED and after.partitions:
        raise IllegalTransition(f"{after.state.title} has partitions")
