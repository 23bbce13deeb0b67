"""The coordinator at work: what is written when, what readers see, and what a restart makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.coordinator.transaction.stage import DATA, TransactionStage
from tidelog.coordinator.transaction.coordinator import Initialized
from tidelog.coordinator.transaction.markers import Marker, MarkerChannel, MarkerDone
from tidelog.coordinator.transaction.state import EPOCH_BUMP, NO_TIMEOUT, State
from tidelog.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
)
from tidelog.partitions import PartitionKey


class HeldMarkers:
    """Markers that go nowhere until the test lets them."""

    def __init__(self, inner: MarkerChannel) -> None:
        self.inner = inner
        self.held: list[tuple[Marker, list[PartitionKey], MarkerDone]] = []

    def write(self, marker: Marker, partitions: Iterable[PartitionKey], done: MarkerDone) -> None:
        self.held.append((marker, list(partitions), done))

    def cancel(self, done: MarkerDone) -> None:
        self.held = [held for held in self.held if held[2] != done]

    def let_go(self) -> None:
        held, self.held = self.held, []
        for marker, partitions, done in held:
            self.inner.write(marker, partitions, done)

    def refuse(self) -> None:
        held, self.held = self.held, []
        for _, partitions, done in held:
            for partition in partitions:
                done(partition, NotLeaderOrFollower("not now"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[TransactionStage]:
    stage = TransactionStage(tmp_path)
    stage.world.advance()
    yield stage
    stage.close()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[TransactionStage, Callable[[], HeldMarkers]]]:
    """A coordinator whose markers wait."""
    channels: list[HeldMarkers] = []

    def channel(inner: MarkerChannel) -> MarkerChannel:
        channels.append(HeldMarkers(inner))
        return channels[-1]

    stage = TransactionStage(tmp_path, channel=channel)
    stage.world.advance()
    yield stage, lambda: channels[-1]
    stage.close()


def begin(stage: TransactionStage, value: bytes = b"v", index: int = 0) -> tuple[int, int]:
    producer = stage.producer()
    assert stage.add(producer, [index]).kind is None
    assert stage.produce(producer, value, index=index).kind is None
    return producer


# -- a transaction from beginning to end


def test_records_are_read_committed_when_their_transaction_is(stage: TransactionStage) -> None:
    producer = begin(stage)
    assert stage.committed() == []
    assert stage.end(producer).kind is None
    stage.world.advance()
    assert stage.committed() == [b"v"]
    assert stage.is_stable(0)
    assert stage.known().state is State.COMPLETE_COMMIT


def test_records_of_an_aborted_transaction_are_never_read_committed(stage: TransactionStage) -> None:
    producer = begin(stage)
    assert stage.end(producer, commit=False).kind is None
    stage.world.advance()
    assert stage.committed() == []
    assert stage.is_stable(0)


def test_the_next_transaction_can_begin_in_the_turn_that_follows(stage: TransactionStage) -> None:
    producer = begin(stage)
    stage.end(producer)
    stage.world.advance()
    assert stage.add(producer, [0]).kind is None
    assert stage.produce(producer, b"w", sequence=1).kind is None


def test_the_newer_protocol_adds_partitions_with_the_produce_and_bumps_with_the_end(
    stage: TransactionStage,
) -> None:
    producer = stage.producer()
    assert stage.produce(producer, version=12).kind is None
    assert stage.known().partitions == {(DATA, 0)}
    answer = stage.end(producer, version=EPOCH_BUMP)
    assert answer.value == (producer[0], 1)
    stage.world.advance()
    assert stage.produce((producer[0], 1), b"w", version=12).kind is None
    assert stage.produce(producer, b"late", version=12, sequence=1).kind is InvalidProducerEpoch
    stage.end((producer[0], 1), version=EPOCH_BUMP)
    stage.world.advance()
    assert stage.committed() == [b"v", b"w"]


def test_a_partition_that_is_led_before_its_metadata_came_joins_no_transaction(
    stage: TransactionStage,
) -> None:
    producer = stage.producer()
    del stage.topics[DATA]
    stage.know_topics()
    assert stage.produce(producer, version=12).kind is UnknownTopicOrPartition
    assert stage.is_stable(0), "its marker would be left out, as that of a deleted partition"
    stage.topics[DATA] = len(stage.data)
    stage.know_topics()
    assert stage.produce(producer, version=12).kind is None
    stage.end(producer, version=EPOCH_BUMP)
    stage.world.advance()
    assert stage.committed() == [b"v"]


def test_an_id_that_nobody_initialized_is_refused(stage: TransactionStage) -> None:
    assert stage.add((1, 0)).kind is InvalidProducerIdMapping
    assert stage.end((1, 0)).kind is InvalidProducerIdMapping
    assert stage.produce((1, 0)).kind is InvalidProducerIdMapping


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_time_out_is_within_what_the_broker_allows(stage: TransactionStage, timeout_ms: int) -> None:
    assert stage.init(timeout_ms=timeout_ms).kind is InvalidTransactionTimeout


# -- verification


def test_a_partition_that_was_not_added_takes_no_batch(stage: TransactionStage) -> None:
    producer = begin(stage)
    assert stage.produce(producer, index=1, version=10).kind is InvalidTxnState
    assert stage.produce(producer, index=1, version=11).kind is TransactionAbortable
    assert stage.is_stable(1)


def test_a_late_batch_of_an_ended_transaction_does_not_open_another(stage: TransactionStage) -> None:
    producer = begin(stage)
    stage.end(producer)
    stage.world.advance()
    assert stage.produce(producer, b"late", sequence=1).kind is TransactionAbortable
    assert stage.is_stable(0)


def test_a_later_batch_does_not_overtake_one_that_is_being_verified(stage: TransactionStage) -> None:
    producer = stage.producer()
    assert stage.produce(producer, sequence=0).kind is TransactionAbortable
    stage.add(producer)
    assert stage.produce(producer, b"w", sequence=1).kind is OutOfOrderSequenceNumber
    assert stage.produce(producer, b"v", sequence=0).kind is None


def test_a_marker_takes_the_guard_of_what_was_verified_before_it(stage: TransactionStage) -> None:
    producer = stage.producer()
    stage.add(producer)
    producers = stage.data[0].leader_log().producers
    guard = producers.start_verification(*producer, 0, False, 0)
    stage.end(producer)
    stage.world.advance()
    with pytest.raises(InvalidTxnState):
        producers.check_verified(*producer, guard)


# -- fencing


def test_a_new_producer_aborts_what_the_one_before_left_open(stage: TransactionStage) -> None:
    old = begin(stage)
    assert stage.init().kind is ConcurrentTransactions
    stage.world.advance()
    new = stage.producer()
    assert new == (old[0], old[1] + 2)
    assert stage.end(old).kind is ProducerFenced
    assert stage.add(old).kind is ProducerFenced
    assert stage.produce(old, b"late", sequence=1).kind is InvalidProducerEpoch
    assert stage.committed() == []
    assert stage.is_stable(0)


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    stage: TransactionStage,
) -> None:
    producer = begin(stage)
    stage.world.advance(59.0)
    assert stage.known().state is State.ONGOING
    stage.world.advance(3.0)
    assert stage.known().state is State.COMPLETE_ABORT
    assert stage.is_stable(0)
    assert stage.end(producer).kind is ProducerFenced


def test_an_id_is_forgotten_when_nobody_used_it_for_long(stage: TransactionStage) -> None:
    stage.look_seldom()
    stage.producer("used")
    stage.producer("forgotten")
    stage.world.advance(6 * 86_400.0)
    stage.producer("used")
    stage.world.advance(86_400.0 + 3_600.0)
    assert list(stage.shard.transactions) == ["used"]
    stage.restart()
    stage.world.advance()
    assert list(stage.shard.transactions) == ["used"]


# -- markers


def test_an_end_is_answered_before_its_markers_are_written(
    held: tuple[TransactionStage, Callable[[], HeldMarkers]],
) -> None:
    stage, channel = held
    producer = begin(stage)
    assert stage.end(producer).kind is None
    assert stage.known().state is State.PREPARE_COMMIT
    assert stage.add(producer).kind is ConcurrentTransactions
    assert stage.init().kind is ConcurrentTransactions
    channel().let_go()
    stage.world.advance()
    assert stage.known().state is State.COMPLETE_COMMIT


def test_markers_that_cannot_be_written_are_tried_again(
    held: tuple[TransactionStage, Callable[[], HeldMarkers]],
) -> None:
    stage, channel = held
    stage.end(begin(stage))
    for _ in range(3):
        channel().refuse()
        stage.world.advance(1.0)
    channel().let_go()
    stage.world.advance()
    assert stage.known().state is State.COMPLETE_COMMIT
    assert stage.committed() == [b"v"]


def test_a_partition_that_was_deleted_needs_no_marker(
    held: tuple[TransactionStage, Callable[[], HeldMarkers]],
) -> None:
    stage, channel = held
    stage.end(begin(stage))
    channel().refuse()
    del stage.topics[DATA]
    stage.know_topics()
    stage.world.advance(1.0)
    assert stage.known().state is State.COMPLETE_COMMIT


def test_the_markers_of_one_turn_go_to_a_partition_together(stage: TransactionStage) -> None:
    producers = {name: stage.producer(name) for name in ("a", "b", "c")}
    for name, producer in producers.items():
        stage.add(producer, [0], transactional_id=name)
        stage.produce(producer, name.encode(), transactional_id=name)
    for name, producer in producers.items():
        stage.end(producer, transactional_id=name, commit=name != "b")
    stage.world.advance()
    assert stage.committed() == [b"a", b"c"]
    assert stage.is_stable(0)


def test_a_marker_of_a_coordinator_that_was_replaced_is_refused(stage: TransactionStage) -> None:
    producer = begin(stage)
    stage.restart()
    stage.world.advance()
    stage.end(producer)
    stage.world.advance()
    outcome: list[object] = []
    stage.coordinator.markers.write(
        Marker(*producer, 0, commit=True), [(DATA, 0)], lambda _, error: outcome.append(error)
    )
    stage.world.advance()
    assert isinstance(outcome[0], TransactionCoordinatorFenced)


# -- restarts


def test_a_coordinator_that_starts_completes_what_was_prepared(
    held: tuple[TransactionStage, Callable[[], HeldMarkers]],
) -> None:
    stage, channel = held
    producer = begin(stage)
    assert stage.end(producer).kind is None
    stage.restart()
    stage.world.advance()
    channel().let_go()
    stage.world.advance()
    assert stage.known().state is State.COMPLETE_COMMIT
    assert stage.committed() == [b"v"]


def test_what_is_open_stays_open_over_a_restart(stage: TransactionStage) -> None:
    producer = begin(stage)
    before = stage.known()
    stage.restart()
    stage.world.advance()
    assert stage.known() == before
    assert stage.produce(producer, b"w", sequence=1).kind is None
    assert stage.end(producer).kind is None
    stage.world.advance()
    assert stage.committed() == [b"v", b"w"]


# -- two-phase commits


def test_two_phase_commits_have_to_be_enabled(tmp_path: Path) -> None:
    stage = TransactionStage(tmp_path, settings={"transaction.two.phase.commit.enable": False})
    stage.world.advance()
    assert stage.init(two_phase=True).kind is TransactionalIdAuthorizationFailed
    stage.close()


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_outlasts_its_producer_its_time_and_its_coordinator(
    stage: TransactionStage, commit: bool
) -> None:
    stage.look_seldom()
    old = stage.producer(two_phase=True)
    assert stage.known().timeout_ms == NO_TIMEOUT
    stage.produce(old, version=12)
    stage.world.advance(30 * 86_400.0)
    stage.restart()
    stage.world.advance()
    answer = stage.init(two_phase=True, keep=True)
    assert answer.value == Initialized((old[0], old[1] + 1), old)  # type: ignore[arg-type]
    stage.restart()
    stage.world.advance()
    assert stage.end(old, version=EPOCH_BUMP).kind is ProducerFenced
    new = (old[0], old[1] + 1)
    assert stage.end(new, commit=commit, version=EPOCH_BUMP).value == (old[0], old[1] + 2)
    stage.world.advance()
    assert stage.committed() == ([b"v"] if commit else [])
    assert stage.is_stable(0)


def test_a_producer_that_does_not_keep_what_was_prepared_aborts_it(stage: TransactionStage) -> None:
    old = stage.producer(two_phase=True)
    stage.produce(old, version=12)
    stage.init(two_phase=True, keep=True)
    stage.producer(two_phase=True)
    assert stage.committed() == []
    assert stage.is_stable(0)
