"""The life of a transactional id as a pure state machine: what is asked and known in, the next state out.

Nothing here writes or waits. A rule that is broken raises Kafka's error for it; a step that needs a producer
id which nobody has reserved yet raises `NeedsProducerId` and is asked again with one.
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
# A producer never gets the last epoch, so that the coordinator can always fence it with one more.
MAX_EPOCH = 32767
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
# The time-out of a transaction that takes part in a two-phase commit: nobody aborts it but its owner.
NO_TIMEOUT = 0x7FFFFFFF

# What a client's requests show of the transaction protocol it speaks: with 2 every end bumps the epoch.
CLASSIC = 0
EPOCH_BUMP = 2


class State(IntEnum):
    """The states, with the numbers that stand in the records."""

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
        """The name that people and tools know."""
        return "".join(word.capitalize() for word in self.name.split("_"))


TITLES = {state.title: state for state in State}

ENDED = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

# From which states each one may be reached. PrepareEpochFence is never written: it is the state of an id
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
    """The epochs of the producer id are used up: the step needs a new id."""


class IllegalTransition(Exception):
    """A step between two states that must not follow each other: a defect of ours, never a client's fault."""


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


class Metadata(NamedTuple):
    """What the last record of a transactional id says.

    `next_producer_id` and `next_producer_epoch` are what the client has been told to use from now on while
    the transaction under way still has the older ones: after an epoch ran out, or over a kept prepared one.
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
        """The id and epoch that the rightful producer has."""
        if self.state is State.ONGOING and self.next_producer_epoch != NO_EPOCH:
            return ProducerIdAndEpoch(self.next_producer_id, self.next_producer_epoch)
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_kept(self) -> bool:
        """Whether a newer producer holds the transaction under way, to decide on it and nothing else."""
        return self.state is State.ONGOING and self.next_producer_epoch != NO_EPOCH

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT


class Transition(NamedTuple):
    """The state to write, and the epoch before it that a retry of the same request may still name."""

    metadata: Metadata
    last_producer_epoch: int = NO_EPOCH


class Transaction:
    """A transactional id: what its records say, and what only the present coordinator knows of it.

    `pending` is the state of a record that is on its way into the log: until it is there, nothing else is
    decided. `last_producer_epoch` is not in the records, as in Kafka: a retry of InitProducerId that meets a
    new coordinator is fenced.
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
        """The state under a new epoch; None where the transaction under way has to be aborted first."""
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
            # The same request again: its first answer did not arrive. No other producer came in between,
            # or it would have cleared the last epoch.
            return self._to_empty(known.producer_id, epoch, self.last_producer_epoch, timeout_ms, now_ms)
        raise self._fenced(expected.epoch)

    def _check_expected(self, expected: ProducerIdAndEpoch | None) -> None:
        """A producer that recovers names what it had: fence it unless that is, or just was, right."""
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
        """A new epoch to decide with, over a transaction that goes on under the one it was written with."""
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
        """The transaction with these partitions; None where it has them already."""
        known = self.metadata
        # First of all: over a change of the producer id the client may know the new one already.
        self._check_settled()
        self._check_producer(producer_id, epoch)
        if known.is_kept:
            raise InvalidTxnState(
                f"the transaction of {self.transactional_id} is prepared: it can be ended and not added to"
            )
        if known.state is State.ONGOING and partitions <= known.partitions:
            return None
        return self._transition(
            known._replace(
                state=State.ONGOING,
                partitions=known.partitions | partitions,
                start_ms=known.start_ms if known.state is State.ONGOING else now_ms,
                last_update_ms=now_ms,
                previous_producer_id=known.producer_id,
                client_version=client_version,
            ),
            self.last_producer_epoch,
        )

    def verify_partitions(
        self, producer_id: int, epoch: int, partitions: frozenset[PartitionKey]
    ) -> dict[PartitionKey, KafkaError]:
        """Those of the partitions that the transaction does not have, with the error to tell."""
        self._check_producer(producer_id, epoch)
        if self.metadata.state in PREPARED:
            raise ConcurrentTransactions(f"a transaction of {self.transactional_id} is being completed")
        return {
            partition: TransactionAbortable(
                f"{partition[0]}-{partition[1]} is not part of the transaction of {self.transactional_id}"
            )
            for partition in partitions - self.metadata.partitions
        }

    def _check_producer(self, producer_id: int, epoch: int) -> None:
        latest = self.metadata.latest
        if producer_id != latest.producer_id and producer_id != self.metadata.producer_id:
            raise self._wrong_id(producer_id)
        if (producer_id, epoch) != latest:
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
        """The transaction about to be committed or aborted; None where it is so already."""
        if client_version >= EPOCH_BUMP:
            return self._end_and_bump(producer_id, epoch, commit, now_ms, new_producer_id)
        known = self.metadata
        latest = known.latest
        if producer_id not in (latest.producer_id, known.producer_id):
            raise self._wrong_id(producer_id)
        if (producer_id, epoch) != latest:
            raise self._fenced(epoch)
        self._check_settled()
        if known.state is State.ONGOING:
            return self._prepare(commit, CLASSIC, now_ms)
        self._check_repeated_end(commit)
        return None

    def _end_and_bump(
        self, producer_id: int, epoch: int, commit: bool, now_ms: int, new_producer_id: int
    ) -> Transition | None:
        self._check_settled()
        known = self.metadata
        latest = known.latest
        # What the client knows where the answer to its last EndTxn, which gave it a new id, was lost.
        over_new_id = (
            known.previous_producer_id == producer_id
            and epoch == LAST_CLIENT_EPOCH
            and known.producer_epoch == 0
        )
        if producer_id not in (latest.producer_id, known.producer_id) and not over_new_id:
            raise self._wrong_id(producer_id)
        # The present epoch ends the present transaction, the one before it repeats the end of the last one.
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
        # A client may not know whether a partition was added: it may abort also where there is nothing.
        return self._prepare(commit, EPOCH_BUMP, now_ms, new_producer_id=new_producer_id)

    def _check_repeated_end(self, commit: bool) -> None:
        if self.metadata.state is not (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
            raise self._nothing_to(commit)

    def fence(self, now_ms: int, server_version: int = EPOCH_BUMP) -> Transition:
        """The transaction under way about to be aborted, and its producer left behind with an old epoch."""
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

        Markers bear the producer id that the records were written with, and the epoch of this state, which
        with version 2 is above every epoch that a client was told.
        """
        known = self.metadata
        latest = known.latest
        next_id, next_epoch = NO_PRODUCER_ID, NO_EPOCH
        bump = version >= EPOCH_BUMP or is_fence
        if latest.producer_id != known.producer_id:
            # Kept over a change of the id: the old id is fenced with its last epoch, the new one goes on.
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
            known._replace(
                producer_epoch=epoch,
                state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
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
        """Every marker is written: the transaction is over, and the producer has its next id and epoch."""
        known = self.metadata
        producer_id, epoch = known.producer_id, known.producer_epoch
        if known.next_producer_id != NO_PRODUCER_ID:
            producer_id = known.next_producer_id
            epoch = known.next_producer_epoch if known.next_producer_epoch != NO_EPOCH else 0
        return self._transition(
            known._replace(
                producer_id=producer_id,
                producer_epoch=epoch,
                state=State.COMPLETE_COMMIT if known.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
                partitions=frozenset(),
                last_update_ms=now_ms,
                previous_producer_id=known.producer_id,
                next_producer_id=NO_PRODUCER_ID,
                next_producer_epoch=NO_EPOCH,
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
        """Until a step is in the log, and an end has its markers, the client has to come again."""
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
    """Whether a producer with this epoch can get no higher one under the same id."""
    return epoch >= LAST_CLIENT_EPOCH


def check_transition(before: Metadata, after: Metadata) -> None:
    """What holds for every step, whoever asked for it."""
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
