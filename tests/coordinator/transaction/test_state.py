"""What each request does to a transactional id, rule by rule, without a log or a clock."""

from __future__ import annotations

import pytest

from tidelog.coordinator.transaction.state import (
    CLASSIC,
    EPOCH_BUMP,
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    NO_EPOCH,
    NO_TIMEOUT,
    IllegalTransition,
    Metadata,
    NeedsProducerId,
    ProducerIdAndEpoch,
    State,
    Transaction,
    Transition,
    check_transition,
)
from tidelog.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)

T0, T1 = ("t", 0), ("t", 1)
FIRST, SECOND = frozenset({T0}), frozenset({T1})
BOTH = FIRST | SECOND
PRODUCER = 7


def transaction(state: State = State.EMPTY, epoch: int = 3, timeout_ms: int = 60_000) -> Transaction:
    partitions = (
        frozenset({T0})
        if state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
        else frozenset()
    )
    return Transaction("id", Metadata(PRODUCER, epoch, timeout_ms, state, partitions, 100, 100))


def follow(transaction: Transaction, transition: Transition | None) -> Metadata:
    """The transition is in the log."""
    assert transition is not None
    transaction.metadata = transition.metadata
    transaction.last_producer_epoch = transition.last_producer_epoch
    return transition.metadata


def end(
    transaction: Transaction, epoch: int, *, commit: bool = True, version: int = EPOCH_BUMP, **more: int
) -> Metadata:
    return follow(
        transaction,
        transaction.end(
            more.pop("producer_id", PRODUCER),
            epoch,
            commit=commit,
            client_version=version,
            now_ms=200,
            **more,
        ),
    )


# -- InitProducerId


def test_a_new_id_begins_with_epoch_0() -> None:
    new = Transaction("id", Metadata(PRODUCER, NO_EPOCH, 60_000, State.EMPTY))
    after = follow(new, new.initialize(60_000, None, 1))
    assert after.latest == (PRODUCER, 0)
    assert after.state is State.EMPTY


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_a_producer_that_comes_anew_raises_the_epoch(state: State) -> None:
    known = transaction(state)
    after = follow(known, known.initialize(30_000, None, 1))
    assert (after.latest, after.state, after.timeout_ms) == ((PRODUCER, 4), State.EMPTY, 30_000)


def test_an_open_transaction_is_to_be_aborted_first() -> None:
    assert transaction(State.ONGOING).initialize(60_000, None, 1) is None


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_a_transaction_that_is_being_completed_is_waited_for(state: State) -> None:
    with pytest.raises(ConcurrentTransactions):
        transaction(state).initialize(60_000, ProducerIdAndEpoch(99, 1), 1)


def test_a_step_that_is_not_yet_in_the_log_is_waited_for() -> None:
    known = transaction()
    known.pending = State.EMPTY
    with pytest.raises(ConcurrentTransactions):
        known.initialize(60_000, None, 1)


def test_a_producer_that_recovers_names_the_epoch_it_had() -> None:
    known = transaction()
    assert follow(known, known.initialize(60_000, ProducerIdAndEpoch(PRODUCER, 3), 1)).producer_epoch == 4


def test_the_same_recovery_again_gets_the_same_epoch() -> None:
    known = transaction()
    follow(known, known.initialize(60_000, ProducerIdAndEpoch(PRODUCER, 3), 1))
    assert follow(known, known.initialize(60_000, ProducerIdAndEpoch(PRODUCER, 3), 2)).producer_epoch == 4


def test_a_recovery_after_another_producer_came_is_fenced() -> None:
    known = transaction()
    follow(known, known.initialize(60_000, ProducerIdAndEpoch(PRODUCER, 3), 1))
    follow(known, known.initialize(60_000, None, 2))
    for epoch in (3, 4):
        with pytest.raises(ProducerFenced):
            known.initialize(60_000, ProducerIdAndEpoch(PRODUCER, epoch), 3)


def test_a_recovery_with_another_id_is_fenced() -> None:
    with pytest.raises(ProducerFenced):
        transaction().initialize(60_000, ProducerIdAndEpoch(PRODUCER + 1, 3), 1)


def test_used_up_epochs_bring_a_new_producer_id() -> None:
    known = transaction(epoch=LAST_CLIENT_EPOCH)
    with pytest.raises(NeedsProducerId):
        known.initialize(60_000, None, 1)
    after = follow(known, known.initialize(60_000, None, 1, new_producer_id=8))
    assert (after.latest, after.previous_producer_id) == ((8, 0), PRODUCER)


def test_a_recovery_over_used_up_epochs_may_be_repeated() -> None:
    known = transaction(epoch=LAST_CLIENT_EPOCH)
    had = ProducerIdAndEpoch(PRODUCER, LAST_CLIENT_EPOCH)
    follow(known, known.initialize(60_000, had, 1, new_producer_id=8))
    assert follow(known, known.initialize(60_000, had, 2)).latest == (8, 0)


# -- AddPartitionsToTxn


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(state: State) -> None:
    known = transaction(state)
    after = follow(known, known.add_partitions(PRODUCER, 3, SECOND, CLASSIC, 500))
    assert (after.state, after.partitions, after.start_ms) == (State.ONGOING, SECOND, 500)


def test_later_partitions_leave_its_beginning_as_it_is() -> None:
    known = transaction(State.ONGOING)
    after = follow(known, known.add_partitions(PRODUCER, 3, SECOND, CLASSIC, 500))
    assert (after.partitions, after.start_ms) == (BOTH, 100)


def test_a_partition_that_is_there_changes_nothing() -> None:
    assert transaction(State.ONGOING).add_partitions(PRODUCER, 3, FIRST, CLASSIC, 500) is None


@pytest.mark.parametrize(
    ("producer_id", "epoch", "error"),
    [
        (PRODUCER + 1, 3, InvalidProducerIdMapping),
        (PRODUCER, 2, ProducerFenced),
        (PRODUCER, 4, ProducerFenced),
    ],
)
def test_partitions_of_another_producer_are_refused(
    producer_id: int, epoch: int, error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        transaction().add_partitions(producer_id, epoch, FIRST, CLASSIC, 500)


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_partitions_wait_for_the_transaction_before(state: State) -> None:
    with pytest.raises(ConcurrentTransactions):
        transaction(state).add_partitions(PRODUCER, 3, FIRST, CLASSIC, 500)


def test_verification_names_the_partitions_that_are_missing() -> None:
    errors = transaction(State.ONGOING).verify_partitions(PRODUCER, 3, BOTH)
    assert list(errors) == [T1]
    assert isinstance(errors[T1], TransactionAbortable)


@pytest.mark.parametrize(
    ("state", "epoch", "error"),
    [(State.ONGOING, 2, ProducerFenced), (State.PREPARE_COMMIT, 3, ConcurrentTransactions)],
)
def test_verification_fails_for_an_old_epoch_or_an_ending_transaction(
    state: State, epoch: int, error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        transaction(state).verify_partitions(PRODUCER, epoch, FIRST)


# -- EndTxn, the older protocol


@pytest.mark.parametrize(
    ("commit", "prepared", "complete"),
    [
        (True, State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
        (False, State.PREPARE_ABORT, State.COMPLETE_ABORT),
    ],
)
def test_an_end_is_prepared_and_completed_with_the_epoch_as_it_was(
    commit: bool, prepared: State, complete: State
) -> None:
    known = transaction(State.ONGOING)
    after = end(known, 3, commit=commit, version=CLASSIC)
    assert (after.state, after.producer_epoch, after.partitions) == (prepared, 3, FIRST)
    after = follow(known, known.complete(300))
    assert (after.state, after.producer_epoch, after.partitions) == (complete, 3, frozenset())


def test_the_same_end_again_is_right_and_the_other_one_wrong() -> None:
    known = transaction(State.COMPLETE_COMMIT)
    assert known.end(PRODUCER, 3, commit=True, client_version=CLASSIC, now_ms=1) is None
    with pytest.raises(InvalidTxnState):
        known.end(PRODUCER, 3, commit=False, client_version=CLASSIC, now_ms=1)


@pytest.mark.parametrize("commit", [True, False])
def test_where_nothing_began_the_older_protocol_ends_nothing(commit: bool) -> None:
    with pytest.raises(InvalidTxnState):
        transaction().end(PRODUCER, 3, commit=commit, client_version=CLASSIC, now_ms=1)


@pytest.mark.parametrize("version", [CLASSIC, EPOCH_BUMP])
@pytest.mark.parametrize(
    ("producer_id", "epoch", "error"),
    [
        (PRODUCER + 1, 3, InvalidProducerIdMapping),
        (PRODUCER, 2, ProducerFenced),
        (PRODUCER, 4, ProducerFenced),
    ],
)
def test_another_producer_ends_nothing(
    version: int, producer_id: int, epoch: int, error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        transaction(State.ONGOING).end(producer_id, epoch, commit=True, client_version=version, now_ms=1)


# -- EndTxn, the newer protocol


def test_every_end_raises_the_epoch() -> None:
    known = transaction(State.ONGOING)
    assert end(known, 3).producer_epoch == 4
    assert follow(known, known.complete(300)).latest == (PRODUCER, 4)


def test_a_repeated_end_with_the_epoch_before_is_right_once_it_is_complete() -> None:
    known = transaction(State.ONGOING)
    end(known, 3)
    with pytest.raises(ConcurrentTransactions):
        known.end(PRODUCER, 3, commit=True, client_version=EPOCH_BUMP, now_ms=1)
    follow(known, known.complete(300))
    assert known.end(PRODUCER, 3, commit=True, client_version=EPOCH_BUMP, now_ms=1) is None
    with pytest.raises(InvalidTxnState):
        known.end(PRODUCER, 3, commit=False, client_version=EPOCH_BUMP, now_ms=1)


def test_a_delayed_end_does_not_end_the_next_transaction() -> None:
    known = transaction(State.ONGOING)
    end(known, 3)
    follow(known, known.complete(300))
    follow(known, known.add_partitions(PRODUCER, 4, SECOND, EPOCH_BUMP, 400))
    with pytest.raises(ProducerFenced):
        known.end(PRODUCER, 3, commit=True, client_version=EPOCH_BUMP, now_ms=500)


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_an_abort_of_nothing_raises_the_epoch_too(state: State) -> None:
    known = transaction(state)
    after = end(known, 3, commit=False)
    assert (after.state, after.producer_epoch, after.start_ms) == (State.PREPARE_ABORT, 4, 200)


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_there_is_no_commit_of_nothing(state: State) -> None:
    with pytest.raises(InvalidTxnState):
        transaction(state).end(PRODUCER, 3, commit=True, client_version=EPOCH_BUMP, now_ms=1)


def test_the_last_epoch_of_an_id_goes_into_the_markers_and_the_client_gets_a_new_id() -> None:
    known = transaction(State.ONGOING, epoch=LAST_CLIENT_EPOCH)
    with pytest.raises(NeedsProducerId):
        known.end(PRODUCER, LAST_CLIENT_EPOCH, commit=True, client_version=EPOCH_BUMP, now_ms=1)
    after = end(known, LAST_CLIENT_EPOCH, new_producer_id=8)
    assert (after.producer_id, after.producer_epoch, after.next_producer_id) == (PRODUCER, MAX_EPOCH, 8)
    after = follow(known, known.complete(300))
    assert (after.latest, after.previous_producer_id) == ((8, 0), PRODUCER)
    # The client did not get the answer and knows the old id alone.
    assert known.end(PRODUCER, LAST_CLIENT_EPOCH, commit=True, client_version=EPOCH_BUMP, now_ms=1) is None


# -- fencing and time


def test_a_fenced_transaction_is_aborted_with_an_epoch_that_no_client_has() -> None:
    known = transaction(State.ONGOING, epoch=LAST_CLIENT_EPOCH)
    after = follow(known, known.fence(200))
    assert (after.state, after.producer_epoch) == (State.PREPARE_ABORT, MAX_EPOCH)
    assert follow(known, known.complete(300)).latest == (PRODUCER, MAX_EPOCH)
    assert follow(known, known.initialize(60_000, None, 400, new_producer_id=8)).latest == (8, 0)


def test_a_transaction_is_overdue_when_its_time_is_over() -> None:
    known = transaction(State.ONGOING)
    assert not known.is_timed_out(60_100)
    assert known.is_timed_out(60_101)
    known.pending = State.PREPARE_COMMIT
    assert not known.is_timed_out(60_101)


def test_a_two_phase_transaction_is_never_overdue() -> None:
    assert not transaction(State.ONGOING, timeout_ms=NO_TIMEOUT).is_timed_out(1 << 60)


@pytest.mark.parametrize(
    ("state", "expires"),
    [(state, state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)) for state in State],
)
def test_only_an_id_without_a_transaction_expires(state: State, expires: bool) -> None:
    assert transaction(state).is_expired(1_100, 1_000) is expires
    assert not transaction(state).is_expired(1_099, 1_000)


# -- two-phase commits


def kept() -> Transaction:
    """A transaction of epoch 3 that its producer prepared, and a newer one with epoch 4 over it."""
    known = transaction(State.ONGOING, timeout_ms=NO_TIMEOUT)
    follow(known, known.initialize(NO_TIMEOUT, None, 200, keep_prepared=True))
    return known


def test_a_prepared_transaction_is_kept_under_the_epoch_it_was_written_with() -> None:
    after = kept().metadata
    assert (after.state, after.partitions, after.producer_epoch) == (State.ONGOING, FIRST, 3)
    assert after.latest == (PRODUCER, 4)
    assert after.is_kept


@pytest.mark.parametrize("commit", [True, False])
def test_who_keeps_a_prepared_transaction_decides_on_it(commit: bool) -> None:
    known = kept()
    after = end(known, 4, commit=commit)
    # The marker is above every epoch that was given out, so that it fences them all.
    assert (after.producer_epoch, after.partitions) == (5, FIRST)
    assert follow(known, known.complete(300)).latest == (PRODUCER, 5)


def test_the_producer_that_prepared_it_is_fenced() -> None:
    known = kept()
    for version in (CLASSIC, EPOCH_BUMP):
        with pytest.raises(ProducerFenced):
            known.end(PRODUCER, 3, commit=True, client_version=version, now_ms=1)
    with pytest.raises(ProducerFenced):
        known.add_partitions(PRODUCER, 3, SECOND, EPOCH_BUMP, 1)


def test_a_kept_transaction_takes_no_more_partitions() -> None:
    with pytest.raises(InvalidTxnState):
        kept().add_partitions(PRODUCER, 4, SECOND, EPOCH_BUMP, 1)


def test_it_can_be_kept_again_and_again() -> None:
    known = kept()
    follow(known, known.initialize(NO_TIMEOUT, None, 300, keep_prepared=True))
    assert (known.metadata.producer_epoch, known.metadata.latest) == (3, (PRODUCER, 5))
    with pytest.raises(ProducerFenced):
        known.end(PRODUCER, 4, commit=True, client_version=EPOCH_BUMP, now_ms=1)
    assert end(known, 5).producer_epoch == 6


def test_it_can_be_kept_over_used_up_epochs() -> None:
    known = transaction(State.ONGOING, epoch=LAST_CLIENT_EPOCH, timeout_ms=NO_TIMEOUT)
    with pytest.raises(NeedsProducerId):
        known.initialize(NO_TIMEOUT, None, 1, keep_prepared=True)
    follow(known, known.initialize(NO_TIMEOUT, None, 1, keep_prepared=True, new_producer_id=8))
    assert known.metadata.latest == (8, 0)
    after = end(known, 0, producer_id=8)
    assert (after.producer_id, after.producer_epoch) == (PRODUCER, MAX_EPOCH)
    assert follow(known, known.complete(300)).latest == (8, 1)
    assert known.end(8, 0, commit=True, client_version=EPOCH_BUMP, now_ms=1) is None


def test_a_producer_that_does_not_keep_it_aborts_it() -> None:
    known = kept()
    assert known.initialize(60_000, None, 300) is None
    assert follow(known, known.fence(300)).producer_epoch == 5


def test_where_nothing_is_open_there_is_nothing_to_keep() -> None:
    known = transaction(State.COMPLETE_COMMIT)
    after = follow(known, known.initialize(NO_TIMEOUT, None, 1, keep_prepared=True))
    assert (after.latest, after.is_kept) == ((PRODUCER, 4), False)


# -- what holds for every step


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (State.EMPTY, State.PREPARE_COMMIT),
        (State.ONGOING, State.EMPTY),
        (State.ONGOING, State.COMPLETE_COMMIT),
        (State.PREPARE_COMMIT, State.COMPLETE_ABORT),
        (State.PREPARE_COMMIT, State.PREPARE_ABORT),
        (State.PREPARE_ABORT, State.ONGOING),
        (State.COMPLETE_COMMIT, State.COMPLETE_ABORT),
    ],
)
def test_some_states_never_follow_each_other(before: State, after: State) -> None:
    with pytest.raises(IllegalTransition):
        check_transition(transaction(before).metadata, transaction(after).metadata)


def test_an_epoch_never_falls() -> None:
    known = transaction().metadata
    with pytest.raises(IllegalTransition):
        check_transition(known, known._replace(producer_epoch=2))
