"""What a log's producer state asks of the first batch of a transaction, and of markers that come late."""

from __future__ import annotations

import pytest

from tests.storage.helpers import batch
from tidelog.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequenceNumber
from tidelog.records.batch import EndTransactionMarker
from tidelog.records.check import CheckedBatch
from tidelog.storage.producer_state_manager import AppendOrigin, ProducerStateManager

PRODUCER, EPOCH = 7, 3
CLASSIC, EPOCH_BUMP = 0, 2


@pytest.fixture
def producers() -> ProducerStateManager:
    return ProducerStateManager(86_400_000)


def write(
    producers: ProducerStateManager, offset: int, *, epoch: int = EPOCH, transactional: bool = True
) -> None:
    data = batch(producer=(PRODUCER, epoch, offset), timestamp=1_000, transactional=transactional)
    producers.append(CheckedBatch.of(memoryview(data)), offset, offset)


def end(producers: ProducerStateManager, offset: int, *, epoch: int = EPOCH) -> None:
    producers.end_transaction(PRODUCER, epoch, EndTransactionMarker(True, 0), offset, 1_000)


def test_the_guard_of_a_verification_lets_its_batch_in(producers: ProducerStateManager) -> None:
    guard = producers.start_verification(PRODUCER, EPOCH, 0, False, 0)
    producers.check_verified(PRODUCER, EPOCH, guard)


def test_without_a_guard_no_batch_opens_a_transaction(producers: ProducerStateManager) -> None:
    with pytest.raises(InvalidTxnState):
        producers.check_verified(PRODUCER, EPOCH, None)


def test_an_open_transaction_needs_no_guard(producers: ProducerStateManager) -> None:
    write(producers, 0)
    assert producers.start_verification(PRODUCER, EPOCH, 1, False, 0) is None


def test_a_guard_is_good_for_one_transaction(producers: ProducerStateManager) -> None:
    guard = producers.start_verification(PRODUCER, EPOCH, 0, False, 0)
    end(producers, 0)
    producers.start_verification(PRODUCER, EPOCH, 0, False, 0)
    with pytest.raises(InvalidTxnState):
        producers.check_verified(PRODUCER, EPOCH, guard)


def test_a_marker_leaves_the_guard_of_the_transaction_that_follows_it(
    producers: ProducerStateManager,
) -> None:
    write(producers, 0)
    guard = producers.start_verification(PRODUCER, EPOCH + 1, 0, True, 0)
    end(producers, 1, epoch=EPOCH + 1)
    producers.check_verified(PRODUCER, EPOCH + 1, guard)


def test_an_old_epoch_is_told_before_anybody_is_asked(producers: ProducerStateManager) -> None:
    write(producers, 0)
    with pytest.raises(InvalidProducerEpoch):
        producers.start_verification(PRODUCER, EPOCH - 1, 1, False, 0)


def test_a_producer_that_adds_partitions_begins_with_sequence_0(producers: ProducerStateManager) -> None:
    producers.start_verification(PRODUCER, EPOCH, 5, True, 0)
    with pytest.raises(OutOfOrderSequenceNumber):
        producers.check(PRODUCER, EPOCH, 5, AppendOrigin.CLIENT)


def test_while_a_sequence_is_being_verified_no_later_one_is_written(producers: ProducerStateManager) -> None:
    producers.start_verification(PRODUCER, EPOCH, 5, False, 0)
    with pytest.raises(OutOfOrderSequenceNumber):
        producers.check(PRODUCER, EPOCH, 6, AppendOrigin.CLIENT)
    producers.start_verification(PRODUCER, EPOCH, 4, False, 0)
    with pytest.raises(OutOfOrderSequenceNumber):
        producers.check(PRODUCER, EPOCH, 5, AppendOrigin.CLIENT)
    producers.check(PRODUCER, EPOCH, 4, AppendOrigin.CLIENT)


def test_a_verification_that_led_to_nothing_is_forgotten_in_time(producers: ProducerStateManager) -> None:
    producers.start_verification(PRODUCER, EPOCH, 0, False, 0)
    producers.remove_expired(86_400_000)
    assert producers.verifications == {}


def test_a_late_marker_of_the_newer_protocol_does_not_end_the_next_transaction(
    producers: ProducerStateManager,
) -> None:
    write(producers, 0)
    with pytest.raises(InvalidProducerEpoch):
        producers.check_marker(PRODUCER, EPOCH, 0, EPOCH_BUMP)
    producers.check_marker(PRODUCER, EPOCH, 0, CLASSIC)
    producers.check_marker(PRODUCER, EPOCH + 1, 0, EPOCH_BUMP)


def test_the_same_marker_again_is_right_where_nothing_is_open(producers: ProducerStateManager) -> None:
    write(producers, 0)
    end(producers, 1, epoch=EPOCH + 1)
    producers.check_marker(PRODUCER, EPOCH + 1, 0, EPOCH_BUMP)
