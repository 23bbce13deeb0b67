"""What is remembered of a producer is the same in both twins, whatever it does."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from tests.records.build import NOW, record
from tests.records.conftest import compiled, pure
from tests.support.scale import scale
from tidelog.records._pure_check import CheckedBatch
from tidelog.records._pure_producer import LAST_SEQUENCE, ProducerEntry
from tidelog.records.batch import build_batch


def batch(sequence: int, epoch: int = 0, count: int = 1, transactional: bool = False) -> CheckedBatch:
    data = build_batch(
        [record(at, NOW + sequence % 1000) for at in range(count)],
        producer_id=7,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return CheckedBatch.of(memoryview(bytearray(data)))


def seen(entry: ProducerEntry) -> tuple[object, ...]:
    return (
        entry.producer_id, entry.epoch, entry.batches, entry.last_sequence, entry.last_offset,
        entry.last_timestamp, entry.coordinator_epoch, entry.transaction_start,
    )  # fmt: skip


def test_the_next_sequence_of_the_same_epoch_is_awaited(twin: SimpleNamespace) -> None:
    entry = twin.ProducerEntry(7, 3)
    assert not entry.awaits(batch(0, 3))  # nothing is known of it yet
    entry.append(batch(LAST_SEQUENCE - 2, 3, 3), 2)
    assert entry.last_sequence == LAST_SEQUENCE
    assert entry.awaits(batch(0, 3))
    assert not entry.awaits(batch(1, 3))
    assert not entry.awaits(batch(0, 4))
    assert not entry.awaits(batch(0, 3, transactional=True))
    entry.transaction_start = 3
    assert not entry.awaits(batch(0, 3))
    assert entry.awaits(batch(0, 3, transactional=True))


def test_the_first_batch_of_a_transaction_has_the_next_sequence(twin: SimpleNamespace) -> None:
    entry = twin.ProducerEntry(7, 3)
    first = batch(0, 3, transactional=True)
    assert entry.awaits_first(first)  # a marker has begun the epoch
    assert not entry.awaits_first(batch(1, 3, transactional=True))
    assert not entry.awaits_first(batch(0, 4, transactional=True))
    assert not entry.awaits_first(batch(0, 3))
    entry.append(first, 0)
    entry.transaction_start = 0
    assert not entry.awaits_first(batch(1, 3, transactional=True))
    entry.end_transaction(3, 0, NOW)
    assert entry.awaits_first(batch(1, 3, transactional=True))
    assert not entry.awaits_first(first)


def test_the_last_five_batches_of_an_epoch_are_known(twin: SimpleNamespace) -> None:
    entry = twin.ProducerEntry(7, 0)
    for sequence in range(0, 14, 2):
        entry.append(batch(sequence, count=2), sequence + 1)
    assert [known.last_offset for known in entry.batches] == [5, 7, 9, 11, 13]
    assert entry.find_duplicate(0, 4, 1).first_offset == 4
    for epoch, first, delta in ((0, 2, 1), (1, 4, 1), (0, 4, 0), (0, 5, 1)):
        assert entry.find_duplicate(epoch, first, delta) is None
    entry.append(batch(0, 1), 14)
    assert [known.last_offset for known in entry.batches] == [14]
    assert entry.find_duplicate(0, 12, 1) is None


def test_what_is_no_batch_is_refused(twin: SimpleNamespace) -> None:
    entry = twin.ProducerEntry(7, 0)
    for wrong in ((1, 2), 5, None):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            entry.append(wrong, 0)
    with pytest.raises(ValueError):
        entry.restore(b"")


def test_twins_agree_and_every_append_can_be_taken_back() -> None:
    rng = random.Random(5)
    for _ in range(scale(200, 5000)):
        twins = [pure().ProducerEntry(7, 0), compiled().ProducerEntry(7, 0)]
        states: list[list[bytes]] = []
        past = []
        epoch = sequence = 0
        for offset in range(rng.randrange(30)):
            chance = rng.random()
            if chance < 0.2 and states:
                for entry, state in zip(twins, states.pop(), strict=True):
                    entry.restore(state)
                assert seen(twins[0]) == past.pop()
                continue
            if chance < 0.3:
                epoch, sequence = epoch + 1, 0
            elif chance < 0.4:
                sequence = rng.choice((LAST_SEQUENCE, LAST_SEQUENCE - 1, 9))
            count = rng.randrange(1, 4)
            added = batch(sequence, epoch, count, rng.random() < 0.3)
            assert twins[0].awaits(added) is twins[1].awaits(added)
            past.append(seen(twins[0]))
            states.append([entry.append(added, offset * 10 + count - 1) for entry in twins])
            if rng.random() < 0.3:
                start = rng.choice((None, offset))
                for entry in twins:
                    entry.transaction_start = start
                states.clear()
                past.clear()
            sequence = (sequence + count) & LAST_SEQUENCE
            found = [entry.find_duplicate(epoch, added.base_sequence, count - 1) for entry in twins]
            assert found[0] == found[1] is not None
            assert seen(twins[0]) == seen(twins[1])
