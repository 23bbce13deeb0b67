"""Producers are held to their sequences and epochs, and remembered in Kafka's snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.helpers import NOW, append, batch, config, end_transaction, open_log
from tidelog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from tidelog.storage.producer_state_manager import (
    BatchMetadata,
    CorruptSnapshot,
    ProducerEntry,
    decode_snapshot,
    encode_snapshot,
)

LAST_SEQUENCE = (1 << 31) - 1


def test_the_last_five_batches_are_answered_with_their_first_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(0, 14, 2):
        append(log, batch(2, producer=(1, 0, sequence)))
    for sequence in range(4, 14, 2):
        result = append(log, batch(2, producer=(1, 0, sequence)))
        assert (result.base_offset, result.last_offset) == (sequence, sequence + 1)
    assert log.log_end_offset == 14
    with pytest.raises(OutOfOrderSequenceNumber):
        append(log, batch(2, producer=(1, 0, 2)))


def test_a_gap_in_the_sequence_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(2, producer=(1, 0, 0)))
    for sequence in (1, 3, 100):
        with pytest.raises(OutOfOrderSequenceNumber):
            append(log, batch(2, producer=(1, 0, sequence)))
    append(log, batch(2, producer=(1, 0, 2)))


def test_an_unknown_producer_may_begin_with_any_sequence(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(1, producer=(1, 0, 77)))
    append(log, batch(1, producer=(1, 0, 78)))


def test_a_new_epoch_begins_with_sequence_zero_and_an_old_one_is_fenced(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(1, producer=(1, 3, 0)))
    with pytest.raises(OutOfOrderSequenceNumber):
        append(log, batch(1, producer=(1, 4, 1)))
    append(log, batch(1, producer=(1, 4, 0)))
    with pytest.raises(InvalidProducerEpoch):
        append(log, batch(1, producer=(1, 3, 1)))


def test_sequences_go_on_with_zero_after_the_greatest(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(2, producer=(1, 0, LAST_SEQUENCE - 1)))
    append(log, batch(2, producer=(1, 0, 0)))
    append(log, batch(2, producer=(2, 0, LAST_SEQUENCE)))
    append(log, batch(2, producer=(2, 0, 1)))
    assert append(log, batch(2, producer=(2, 0, LAST_SEQUENCE))).base_offset == 4


def test_a_plain_batch_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(1, producer=(1, 0, 0), transactional=True))
    with pytest.raises(InvalidTxnState):
        append(log, batch(1, producer=(1, 0, 1)))
    end_transaction(log, 1, commit=True)
    append(log, batch(1, producer=(1, 0, 1)))


def test_markers_of_old_coordinators_and_epochs_are_fenced(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(1, producer=(1, 5, 0), transactional=True))
    end_transaction(log, 1, commit=True, epoch=5, coordinator_epoch=8)
    with pytest.raises(TransactionCoordinatorFenced):
        end_transaction(log, 1, commit=True, epoch=5, coordinator_epoch=7)
    with pytest.raises(InvalidProducerEpoch):
        end_transaction(log, 1, commit=True, epoch=4, coordinator_epoch=9)
    assert log.log_end_offset == 2


def test_producers_that_are_silent_for_long_are_forgotten_unless_in_a_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(producer_id_expiration_ms=1000))
    append(log, batch(1, producer=(1, 0, 0)))
    append(log, batch(1, producer=(2, 0, 0), transactional=True))
    assert log.remove_expired_producers(NOW + 999) == 0
    assert log.remove_expired_producers(NOW + 1000) == 1
    assert list(log.producers.entries) == [2]


def test_state_is_rebuilt_from_batches_when_snapshots_are_gone(tmp_path: Path) -> None:
    settings_ = config(segment_bytes=300)
    log = open_log(tmp_path, settings_)
    for sequence in range(20):
        append(log, batch(1, producer=(sequence % 3, 0, sequence // 3)))
    before = {pid: (entry.epoch, entry.batches[-1]) for pid, entry in log.producers.entries.items()}
    log.close(NOW)
    for damage in (b"", b"garbage that is longer than a header", None):
        for path in tmp_path.glob("*.snapshot"):
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage)
        again = open_log(tmp_path, settings_, clean=damage is not None)
        assert {pid: (e.epoch, e.batches[-1]) for pid, e in again.producers.entries.items()} == before


entries = st.builds(
    lambda pid, epoch, sequence, offset, delta, timestamp, coordinator, start: make_entry(
        pid, epoch, BatchMetadata(sequence, offset, delta, timestamp), coordinator, start
    ),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 15) - 1),
    st.integers(0, LAST_SEQUENCE),
    st.integers(0, (1 << 62)),
    st.integers(0, 1000),
    st.integers(-1, (1 << 62)),
    st.integers(-1, 1000),
    st.none() | st.integers(0, 1 << 62),
)


def make_entry(
    pid: int, epoch: int, last: BatchMetadata, coordinator: int, start: int | None
) -> ProducerEntry:
    entry = ProducerEntry(pid, epoch)
    entry.note(*last)
    entry.coordinator_epoch = coordinator
    entry.transaction_start = start
    return entry


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(entries, max_size=5))
def test_snapshots_are_read_back_as_written(written: list[ProducerEntry]) -> None:
    data = encode_snapshot(written)
    assert len(data) == 10 + 46 * len(written)
    assert encode_snapshot(decode_snapshot(data)) == data


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(entries, min_size=1, max_size=3), st.data())
def test_a_damaged_snapshot_is_never_believed(written: list[ProducerEntry], data: st.DataObject) -> None:
    snapshot = bytearray(encode_snapshot(written))
    at = data.draw(st.integers(0, len(snapshot) - 1))
    snapshot[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(snapshot))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(encode_snapshot(written)[:at])
