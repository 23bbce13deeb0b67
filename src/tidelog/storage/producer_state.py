"""What a log remembers of its producers: sequences, epochs, the last batches, transactions under way.

Batches from clients are checked here before they are written: a repeated one is recognised, a gap or
an old epoch is refused. The state is kept in snapshots of Kafka's format, one per segment, so that after a
restart only the batches behind the newest snapshot have to be read again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from tidelog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from tidelog.records.batch import TRANSACTIONAL_FLAG
from tidelog.records.check import CheckedBatch
from tidelog.records.loops import LAST_SEQUENCE, NO_PRODUCER_EPOCH, BatchMetadata, ProducerEntry, crc

__all__ = ["AppendOrigin", "BatchMetadata", "ProducerEntry", "ProducerStates", "Verification"]

EPOCH_BUMP = 2  # the version of transactions from which on every end raises the epoch

NEVER = (1 << 63) - 1  # above every offset
WAS_UNKNOWN = b""  # instead of a producer's state
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version, CRC of all that follows it, number of producers
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
SNAPSHOT_VERSION = 1


class CorruptSnapshot(ValueError):
    """A snapshot file that cannot be believed."""


class AppendOrigin(IntEnum):
    CLIENT = 0
    COORDINATOR = 1
    REPLICATION = 2


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Verification:
    """That the coordinator is asked whether a producer's transaction has this partition.

    It is the guard of the first append: a marker that comes in between takes it away, so that a batch that
    was verified for one transaction never begins another. While it is there, sequences above the lowest that
    was seen are refused: the lower one is still to come.
    """

    __slots__ = ("adds_partitions", "epoch", "lowest_sequence", "timestamp")

    def __init__(self, sequence: int, epoch: int, adds_partitions: bool, timestamp: int) -> None:
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.adds_partitions = adds_partitions
        self.timestamp = timestamp

    def saw(self, sequence: int, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


def _in_sequence(last: int, following: int) -> bool:
    return following == (last + 1) & LAST_SEQUENCE


class ProducerStates:
    """The producers of one log, up to its end."""

    __slots__ = (
        "_expiration_ms",
        "entries",
        "first_unstable",
        "ongoing",
        "unreplicated",
        "verifications",
    )

    def __init__(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms
        self.entries: dict[int, ProducerEntry] = {}
        # The first offset of each open transaction by its producer id, in the order of these offsets.
        self.ongoing: dict[int, int] = {}
        # The first and last offset of transactions that ended above the high watermark.
        self.unreplicated: list[tuple[int, int]] = []
        # Where the first of all these begins; NEVER without any.
        self.first_unstable = NEVER
        self.verifications: dict[int, Verification] = {}  # by producer id; in no snapshot

    def set_expiration(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms

    # -- checks and changes by appends

    def find_duplicate(self, batch: CheckedBatch) -> BatchMetadata | None:
        """The first arrival of a client's batch that came before, where it is among the last five."""
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return None
        return entry.find_duplicate(batch.producer_epoch, batch.base_sequence, batch.last_offset_delta)

    def check(self, producer_id: int, epoch: int, first_sequence: int, origin: AppendOrigin) -> None:
        """Refuse a batch that does not continue what its producer wrote; it is no duplicate."""
        entry = self.entries.get(producer_id)
        if entry is None or origin is AppendOrigin.REPLICATION:
            if self.verifications and origin is AppendOrigin.CLIENT:
                self._check_verified_sequence(producer_id, first_sequence)
            return
        if epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} has epoch {epoch}, the last epoch it wrote with is {entry.epoch}"
            )
        if origin is not AppendOrigin.CLIENT:
            return
        if self.verifications:
            self._check_verified_sequence(producer_id, first_sequence)
        if epoch != entry.epoch:
            if first_sequence != 0 and entry.epoch != NO_PRODUCER_EPOCH:
                raise OutOfOrderSequenceNumber(
                    f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence} instead of 0"
                )
        elif entry.epoch != NO_PRODUCER_EPOCH and not _in_sequence(entry.last_sequence, first_sequence):
            raise OutOfOrderSequenceNumber(
                f"producer {producer_id} sent sequence {first_sequence} after {entry.last_sequence}"
            )

    def _check_verified_sequence(self, producer_id: int, first_sequence: int) -> None:
        """While the first batch of a transaction is being verified, a later one must not overtake it."""
        verification = self.verifications.get(producer_id)
        if verification is None:
            return
        entry = self.entries.get(producer_id)
        if verification.adds_partitions and first_sequence != 0 and (entry is None or not entry.batches):
            raise OutOfOrderSequenceNumber(
                f"producer {producer_id} is not known here and begins with sequence {first_sequence}, not 0"
            )
        if first_sequence > verification.lowest_sequence:
            raise OutOfOrderSequenceNumber(
                f"producer {producer_id} sent sequence {first_sequence} before "
                f"{verification.lowest_sequence} was written"
            )

    def has_ongoing(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this producer and epoch is open here."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.epoch == epoch and entry.transaction_start is not None

    def begins_transaction(self, batch: CheckedBatch) -> bool:
        """Whether a transactional batch is the first of a transaction here."""
        entry = self.entries.get(batch.producer_id)
        if entry is not None and entry.awaits(batch):
            return False
        return not self.has_ongoing(batch.producer_id, batch.producer_epoch)

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, adds_partitions: bool, now_ms: int
    ) -> Verification | None:
        """The guard for the first batch of a transaction; None where it is open here already."""
        self.check_epoch(producer_id, epoch)
        if self.has_ongoing(producer_id, epoch):
            return None
        verification = self.verifications.get(producer_id)
        if verification is None:
            verification = Verification(sequence, epoch, adds_partitions, now_ms)
            self.verifications[producer_id] = verification
        else:
            verification.saw(sequence, epoch)
        return verification

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} has epoch {epoch}, the last epoch it wrote with is {entry.epoch}"
            )

    def check_verified(self, producer_id: int, epoch: int, guard: Verification | None) -> None:
        """Refuse a batch that would open a transaction which its coordinator does not know to be open."""
        verification = self.verifications.get(producer_id)
        if verification is None or verification is not guard:
            raise InvalidTxnState(
                f"no transaction of producer {producer_id} with epoch {epoch} is known to be open here"
            )

    def end_verification(self, producer_id: int, marker_epoch: int | None = None) -> None:
        """A batch or a marker was written. The next transaction may have begun to be verified already, where
        its epoch is that of the marker: then its guard stays."""
        verification = self.verifications.get(producer_id)
        if verification is not None and not (
            verification.adds_partitions and marker_epoch == verification.epoch
        ):
            del self.verifications[producer_id]

    def check_transactional(self, producer_id: int, transactional: bool) -> None:
        entry = self.entries.get(producer_id)
        if entry is not None and entry.transaction_start is not None and not transactional:
            raise InvalidTxnState(f"producer {producer_id} wrote a plain batch inside its transaction")

    def append(self, batch: CheckedBatch, first_offset: int, last_offset: int) -> bytes:
        """Note a batch, of which nothing may be written yet; `restore` takes it back, given the result."""
        producer_id = batch.producer_id
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, batch.producer_epoch)
            entry.append(batch, last_offset)
            before = WAS_UNKNOWN
        else:
            before = entry.append(batch, last_offset)
        if batch.attributes & TRANSACTIONAL_FLAG:
            if entry.transaction_start is None:
                entry.transaction_start = self.ongoing[producer_id] = first_offset
                self._transactions_changed()
            if self.verifications:
                self.end_verification(producer_id)
        return before

    def check_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        origin: AppendOrigin,
        transaction_version: int = 0,
    ) -> None:
        entry = self.entries.get(producer_id)
        if entry is None or origin is AppendOrigin.REPLICATION:
            return
        if transaction_version >= EPOCH_BUMP and epoch == entry.epoch and entry.transaction_start is not None:
            # Every end has an epoch above that of its records: this one is late, of the transaction before.
            raise InvalidProducerEpoch(
                f"the marker of producer {producer_id} has epoch {epoch}, that of an open transaction"
            )
        if epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"the marker of producer {producer_id} has epoch {epoch}, its last epoch is {entry.epoch}"
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"the marker of producer {producer_id} has coordinator epoch {coordinator_epoch}, "
                f"a marker with {entry.coordinator_epoch} was written before"
            )

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, aborted: bool, offset: int, timestamp: int
    ) -> CompletedTransaction | None:
        """The end of a transaction; None when nothing was written in it here."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        start = entry.end_transaction(epoch, coordinator_epoch, timestamp)
        if start is None:
            return None
        return CompletedTransaction(producer_id, start, offset, aborted)

    def stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once `completed` is over: where the next open transaction begins."""
        for producer_id, first_offset in self.ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTransaction) -> None:
        self.ongoing.pop(completed.producer_id, None)
        self.unreplicated.append((completed.first_offset, completed.last_offset))
        self._transactions_changed()

    def restore(self, producer_id: int, before: bytes) -> None:
        """Take back what an append that never reached the file has changed; the last one first."""
        self.ongoing.pop(producer_id, None)
        if before == WAS_UNKNOWN:
            self.entries.pop(producer_id, None)
        else:
            entry = self.entries[producer_id]
            entry.restore(before)
            if entry.transaction_start is not None:
                self.ongoing[producer_id] = entry.transaction_start
        self._sort_ongoing()

    # -- transactions and the high watermark

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Transactions that ended below the high watermark hold back no reader any more."""
        self.unreplicated = [range_ for range_ in self.unreplicated if range_[1] >= high_watermark]
        self._transactions_changed()

    def _transactions_changed(self) -> None:
        self.first_unstable = next(iter(self.ongoing.values()), NEVER)
        for start, _ in self.unreplicated:
            self.first_unstable = min(self.first_unstable, start)

    # -- life time

    def remove_expired(self, now_ms: int) -> int:
        expired = [pid for pid, entry in self.entries.items() if self._is_expired(entry, now_ms)]
        for producer_id in expired:
            del self.entries[producer_id]
        for producer_id, verification in list(self.verifications.items()):
            if now_ms - verification.timestamp >= self._expiration_ms:
                del self.verifications[producer_id]
        return len(expired)

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.transaction_start is None and now_ms - entry.last_timestamp >= self._expiration_ms

    def log_start_moved(self, log_start_offset: int) -> None:
        """Batches below the log start are gone, and so are transactions that ended there."""
        self.high_watermark_moved(log_start_offset)  # it lies at the log start or behind

    def clear(self) -> None:
        self.entries.clear()
        self.verifications.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.first_unstable = NEVER

    # -- snapshots

    def load(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        self.clear()
        for entry in entries:
            if not self._is_expired(entry, now_ms):
                self.entries[entry.producer_id] = entry
                if entry.transaction_start is not None:
                    self.ongoing[entry.producer_id] = entry.transaction_start
        self._sort_ongoing()

    def _sort_ongoing(self) -> None:
        self.ongoing = dict(sorted(self.ongoing.items(), key=lambda item: item[1]))
        self._transactions_changed()

    def encode_snapshot(self) -> bytes:
        return encode_snapshot(self.entries.values())


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    rows = [
        _SNAPSHOT_ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.batches[-1].offset_delta if entry.batches else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            -1 if entry.transaction_start is None else entry.transaction_start,
        )
        for entry in entries
    ]
    body = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">hI", SNAPSHOT_VERSION, crc(body, 0, len(body))) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few for a snapshot")
    version, checksum, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"version {version}, only version {SNAPSHOT_VERSION} is known")
    if checksum != crc(data, 6, len(data)):
        raise CorruptSnapshot("its CRC does not match")
    if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptSnapshot(f"{count} producers do not fit its {len(data)} bytes")
    entries = []
    for row in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction_start = row
        entry = ProducerEntry(producer_id, epoch)
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        if offset >= 0:
            entry.note(sequence, offset, delta, timestamp)
        if transaction_start >= 0:
            entry.transaction_start = transaction_start
        entries.append(entry)
    return entries
