"""Reads the log of an adopted partition: producer ids in use, last leader epoch and timestamp type.

The log has the epochs and sequences of old producers. If a new producer got the id of an old one, its first
batches would count as duplicates. So new ids come after the highest id in the logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog.protocol.messages.transaction_records import TransactionLogValue
from tidelog.protocol.wire import ProtocolError
from tidelog.records.batch import MAGIC, BatchHeader, crc_is_valid, read_header, read_records
from tidelog.records.legacy import is_log_append_time, iter_entries
from tidelog.storage.checkpoints import LEADER_EPOCHS, CorruptCheckpoint, decode_epochs
from tidelog.storage.disk import RealDisk
from tidelog.storage.log_segment import LOG, SNAPSHOT
from tidelog.storage.producer_state_manager import CorruptSnapshot, decode_snapshot

NO_PRODUCER = -1


def last_epoch(folder: Path) -> int:
    """The newest leader epoch of a partition, from its checkpoint or, without one, from the batches."""
    path = folder / LEADER_EPOCHS
    try:
        epochs = decode_epochs(str(path), path.read_bytes())
    except (OSError, CorruptCheckpoint):
        epochs = []
    if epochs:
        return max(epoch for epoch, _ in epochs)
    newest = 0
    for segment in _segments(folder):
        for data, position, header in _batches(segment):
            if header.partition_leader_epoch > newest and crc_is_valid(data, position, header):
                newest = header.partition_leader_epoch
    return newest


def highest_producer_id(folder: Path, limit: int, *, clean: bool) -> int:
    """The highest producer id below `limit` in the log of a partition, -1 if there is none.

    A snapshot has the producers of all batches before it. The broker writes one with every new segment and at
    a clean stop. So batches are read only after an unclean stop, in the last segment.
    """
    highest, known_to = NO_PRODUCER, -1
    for path in folder.glob("*" + SNAPSHOT):
        try:
            entries = decode_snapshot(path.read_bytes())
        except (CorruptSnapshot, OSError):
            continue
        known_to = max(known_to, int(path.stem))
        ids = (entry.producer_id for entry in entries)
        highest = max([highest, *(found for found in ids if found < limit)])
    if clean and known_to >= 0:
        return highest
    segments = _segments(folder)
    first = max((at for at, path in enumerate(segments) if int(path.stem) <= known_to), default=0)
    for segment in segments[first:]:
        for data, position, header in _batches(segment):
            if highest < header.producer_id < limit and crc_is_valid(data, position, header):
                highest = header.producer_id
    return highest


def highest_transactional_id(folder: Path, limit: int) -> int:
    """The highest id below `limit` of a transactional producer, in a partition of `__transaction_state`."""
    highest = NO_PRODUCER
    for segment in _segments(folder):
        for data, position, header in _batches(segment):
            if header.is_control or not crc_is_valid(data, position, header):
                continue
            for record in read_records(data, position, header=header):
                found = _transaction_producer(record.value)
                if highest < found < limit:
                    highest = found
    return highest


def _transaction_producer(value: bytes | None) -> int:
    if value is None or len(value) < 2:
        return NO_PRODUCER
    version = int.from_bytes(value[:2], "big")
    if version > 1:
        return NO_PRODUCER
    try:
        state = TransactionLogValue.decode(value[2:], version)
    except ProtocolError:
        return NO_PRODUCER
    return max(state.producer_id, state.next_producer_id)


def _segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*" + LOG) if path.stem.isdigit())


def stamps_appends(folder: Path) -> bool:
    """Whether the newest records have LogAppendTime."""
    for segment in reversed(_segments(folder)):
        with _mapped(segment) as data:
            first = next(iter_entries(data), None)
            if first is not None and first.magic == MAGIC:
                return read_header(data).is_log_append_time
            if first is not None:
                return is_log_append_time(data, first)
    return False


def _batches(segment: Path) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """The complete batches before the first damaged byte, where recovery will truncate.

    Skips messages of older formats: they have neither producers nor epochs.
    """
    with _mapped(segment) as data:
        for entry in iter_entries(data):
            if entry.magic == MAGIC:
                yield data, entry.position, read_header(data, entry.position)


@contextmanager
def _mapped(segment: Path) -> Iterator[memoryview]:
    with memoryview(RealDisk().map(str(segment))) as data:
        yield data
