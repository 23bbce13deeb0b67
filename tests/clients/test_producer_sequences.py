"""Sequence numbers: which batches of a partition may be on their way at the same time."""

from __future__ import annotations

import threading

from tidelog.clients.producer.accumulator import PartitionQueue
from tidelog.clients.producer.batch import ProducerBatch
from tidelog.clients.producer.sequences import Sequences


def new_batch(queue: PartitionQueue) -> ProducerBatch:
    return ProducerBatch(1000, queue, 0.0, 0, threading.Lock())


def test_no_more_batches_wait_for_an_answer_than_a_broker_remembers() -> None:
    """The sixth could be written by a new leader while the first is on its way to the old one. If the first
    were then sent again, it would look to the broker like a gap."""
    sequences, queue = Sequences(transactional=False), PartitionQueue("t", 0)
    sequences.take_id(7, 0)
    first = new_batch(queue)
    sequences.number(first)
    sequences.written(first, base_offset=0)
    sent = []
    for _ in range(5):
        batch = new_batch(queue)
        assert sequences.may_send(queue, batch)
        sequences.number(batch)
        sent.append(batch)
    sixth = new_batch(queue)
    assert not sequences.may_send(queue, sixth)
    assert sequences.may_send(queue, sent[0]), "the first may be sent again"
    sequences.written(sent[0], base_offset=1)
    assert sequences.may_send(queue, sixth)
