"""What only the logs of an adopted partition tell: producer ids in use, last leader epoch, kind of timestamp.

Old producers are still known to the logs by id, epoch and sequence. A new producer that were given one of
those ids would have its first records taken for duplicates, so the ids given from now on come after them.
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
from tidelog.storage.producer_state import CorruptSnapshot, decode_snapshot
from tidelog.storage.segment import LOG, SNAPSHOT

NO_PRODUCER = -1


def last_epoch(folder: Path) -> int:
    """The newest leader epoch of a partition; where a crash left no checkpoint of it, the batches tell."""
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
    """The highest id below `limit` that the partition's log remembers, -1 where it knows of no producer.

    Snapshots hold what came before them: one is written with every new segment and at a clean stop, so
    batches are looked at only in the last segment of a log that was not stopped cleanly.
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
    """The same of the ids that belong to transactional ids, from a partition of `__transaction_state`."""
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
    """Whether the broker gave the newest records their timestamps."""
    for segment in reversed(_segments(folder)):
        with _mapped(segment) as data:
            first = next(iter_entries(data), None)
            if first is not None and first.magic == MAGIC:
                return read_header(data).is_log_append_time
            if first is not None:
                return is_log_append_time(data, first)
    return False


def _batches(segment: Path) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """Every whole batch up to the first place that makes no sense, where recovery will cut.

    Messages of older formats, which may stand between them, know neither producers nor epochs.
    """
    with _mapped(segment) as data:
        for entry in iter_entries(data):
            if entry.magic == MAGIC:
                yield data, entry.position, read_header(data, entry.position)


@contextmanager
def _mapped(segment: Path) -> Iterator[memoryview]:
    with memoryview(RealDisk().map(str(segment))) as data:
        yield data
