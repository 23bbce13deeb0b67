"""ProducerStateManager: the producers of a log, with their epochs, sequences, last batches and open
transactions.

It checks batches of clients before they are written: recognises duplicates, and refuses gaps in the sequence
and old epochs. Each segment has a snapshot of the state in Kafka's format, so a restart reads only the
batches after the newest snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

from tidelog.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    RetriableError,
    TransactionCoordinatorFenced,
)
from tidelog.records.batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    EndTransactionMarker,
    read_header,
    read_marker,
)
from tidelog.records.check import CheckedBatch
from tidelog.records.loops import (
    LAST_SEQUENCE,
    NO_PRODUCER_EPOCH,
    REMEMBERED_BATCHES,
    BatchMetadata,
    ProducerEntry,
    crc,
)
from tidelog.storage.marker import Marker
from tidelog.storage.refused_batches import HALF, RefusedBatches, Sequences
from tidelog.storage.transaction_index import AbortedTransaction

__all__ = ["AppendOrigin", "BatchMetadata", "ProducerEntry", "ProducerStateManager", "Verification"]

EPOCH_BUMP = 2  # the transaction version in which every commit and abort raises the epoch (KIP-890)

NEVER = (1 << 63) - 1  # above every offset
WAS_UNKNOWN = b""  # the state of a producer before its first batch
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version, CRC of all that follows it, number of producers
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
SNAPSHOT_VERSION = 1


class CorruptSnapshot(ValueError):
    """A snapshot file that is torn or malformed."""


class AppendOrigin(IntEnum):
    CLIENT = 0
    COORDINATOR = 1


class Verification:
    """The guard of a partition while the coordinator verifies that a transaction includes it (KIP-890).

    Kafka's counterpart is VerificationGuard. The first append of the transaction needs it. A marker removes
    it, so that a batch verified for one transaction never begins another. While the guard exists, only the
    lowest sequence seen may be appended, so that no later batch overtakes it.
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


class ProducerStateManager:
    """The producers of one log, up to its end."""

    __slots__ = (
        "_expiration_ms",
        "_searched",
        "_snapshot_offset",
        "entries",
        "first_unstable",
        "ongoing",
        "refused",
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
        # The lowest first offset of both; NEVER if there is none.
        self.first_unstable = NEVER
        self.verifications: dict[int, Verification] = {}  # by producer id; not in snapshots
        self.refused = RefusedBatches()
        # The snapshot had only the last batch of each producer below this offset. For these producers, the
        # log was searched for the others.
        self._snapshot_offset = 0
        self._searched: set[int] = set()

    def set_expiration(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms

    # -- checks and changes by appends

    def admit(
        self,
        batch: CheckedBatch,
        origin: AppendOrigin,
        guard: Verification | None,
        transaction_version: int,
        *,
        verify: bool,
    ) -> tuple[BatchMetadata | None, EndTransactionMarker | None]:
        """Refuse a batch that does not continue its producer's state. Returns the original of a duplicate,
        or the marker in a control batch.

        With `verify`, a batch that begins a transaction has to be verified: a client's batch by `guard`.
        """
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if batch.attributes & CONTROL_FLAG:
            marker = read_marker(batch.data, 0, read_header(batch.data))
            if marker is not None:
                self.check_marker(producer_id, epoch, marker.coordinator_epoch, transaction_version)
            return None, marker
        if origin is AppendOrigin.CLIENT:
            known = self.find_duplicate(batch)
            if known is not None:
                return known, None
            if self.refused and (sequences := Sequences.of(batch)) is not None:
                self.refused.check(sequences, self.entries.get(producer_id))
        transactional = batch.attributes & TRANSACTIONAL_FLAG != 0
        if transactional and not self.has_ongoing(producer_id, epoch):
            self.check_epoch(producer_id, epoch)
            if verify:
                if origin is AppendOrigin.COORDINATOR:
                    guard = self.verifications.get(producer_id)  # a marker has ended the verified transaction
                self.check_verified(producer_id, epoch, guard)
        self.check(producer_id, epoch, batch.base_sequence, origin)
        self.check_transactional(producer_id, transactional)
        return None, None

    def refuse(self, sequences: Sequences | None, error: RetriableError) -> None:
        """Refuse a client's batch. The batches in flight behind it get the same error."""
        if sequences is not None:
            self.refused.add(sequences, self.entries.get(sequences.producer_id), error)

    def find_duplicate(self, batch: CheckedBatch) -> BatchMetadata | None:
        """The original of a duplicate batch, if it is among the producer's last five batches."""
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return None
        return entry.find_duplicate(batch.producer_epoch, batch.base_sequence, batch.last_offset_delta)

    def may_have_forgotten(self, batch: CheckedBatch) -> bool:
        """Whether the log has to be searched: the batch may be one of the producer's last five.

        So it is if its sequences are lower than those of all known batches, and the oldest known batch comes
        from a snapshot.
        """
        entry = self.entries.get(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch or self._snapshot_offset == 0:
            return False
        last_sequence = (batch.base_sequence + batch.last_offset_delta) & LAST_SEQUENCE
        if not 0 < (entry.last_sequence - last_sequence) & LAST_SEQUENCE < HALF:
            return False
        known = entry.batches
        if not 0 < len(known) < REMEMBERED_BATCHES or entry.producer_id in self._searched:
            return False
        oldest = known[0]
        before = oldest.last_sequence - oldest.offset_delta - 1
        return oldest.last_offset < self._snapshot_offset and (before - last_sequence) & LAST_SEQUENCE < HALF

    def remember(self, producer_id: int, earlier: Iterable[BatchMetadata]) -> None:
        """Add older batches of a producer that a search of the log has found."""
        entry = self.entries[producer_id]
        self.entries[producer_id] = complete = ProducerEntry(producer_id, entry.epoch)
        for batch in (*earlier, *entry.batches):
            complete.note(*batch)
        complete.coordinator_epoch = entry.coordinator_epoch
        complete.transaction_start = entry.transaction_start
        complete.last_timestamp = entry.last_timestamp
        self._searched.add(producer_id)

    def check(self, producer_id: int, epoch: int, first_sequence: int, origin: AppendOrigin) -> None:
        """Refuse a batch with an old epoch or a wrong sequence. Check for duplicates first."""
        entry = self.entries.get(producer_id)
        if entry is None:
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
        """Refuse a batch that would overtake the first batch of a transaction during its verification."""
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
        """The guard for the first batch of a transaction; None if the transaction is open here already."""
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
        """Refuse the first batch of a transaction unless `guard`, its verification, is still valid."""
        verification = self.verifications.get(producer_id)
        if verification is None or verification is not guard:
            raise InvalidTxnState(
                f"no transaction of producer {producer_id} with epoch {epoch} is known to be open here"
            )

    def end_verification(self, producer_id: int, marker_epoch: int | None = None) -> None:
        """Remove the guard after a batch or a marker.

        A guard with the epoch of the marker belongs to the next transaction, and stays.
        """
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
        """Add a batch before it is written; `restore` with the returned entry undoes it."""
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
                self.begin_transaction(entry, first_offset)
            if self.verifications:
                self.end_verification(producer_id)
        return before

    def begin_transaction(self, entry: ProducerEntry, first_offset: int) -> None:
        """Note that a producer has begun a transaction with the batch at this offset."""
        entry.transaction_start = self.ongoing[entry.producer_id] = first_offset
        self._transactions_changed()

    def check_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> None:
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if transaction_version >= EPOCH_BUMP and epoch == entry.epoch and entry.transaction_start is not None:
            # A marker has a higher epoch than the records of its transaction. This one is late: it belongs to
            # the previous transaction.
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

    def end_transaction(
        self,
        producer_id: int,
        epoch: int,
        marker: EndTransactionMarker | Marker,
        offset: int,
        timestamp: int,
    ) -> AbortedTransaction | None:
        """Note a written marker; returns the transaction that it aborted, for the segment of the marker."""
        if self.verifications:
            self.end_verification(producer_id, epoch)
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        start = entry.end_transaction(epoch, marker.coordinator_epoch, timestamp)
        if start is None:
            return None  # it has no records in this log
        self.ongoing.pop(producer_id, None)
        self.unreplicated.append((start, offset))
        self._transactions_changed()
        if marker.commit:
            return None
        # The last stable offset after it is the first offset of the next open transaction.
        return AbortedTransaction(producer_id, start, offset, next(iter(self.ongoing.values()), offset + 1))

    def restore(self, producer_id: int, before: bytes) -> None:
        """Undo an append that was not written. The last append has to be undone first."""
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
        """Forget the transactions that ended below the high watermark: they limit the last stable offset no
        more.
        """
        # They are in the order of their ends: usually all are below it.
        if self.unreplicated and self.unreplicated[-1][1] < high_watermark:
            self.unreplicated = []
        else:
            self.unreplicated = [range_ for range_ in self.unreplicated if range_[1] >= high_watermark]
        self._transactions_changed()

    def _transactions_changed(self) -> None:
        first = next(iter(self.ongoing.values())) if self.ongoing else NEVER
        for start, _ in self.unreplicated:
            if start < first:
                first = start
        self.first_unstable = first

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
        """Forget transactions that ended below the log start offset."""
        self.high_watermark_moved(log_start_offset)  # the high watermark is never below the log start

    def clear(self) -> None:
        self.entries.clear()
        self.verifications.clear()
        self.refused.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.first_unstable = NEVER
        self._snapshot_offset = 0
        self._searched.clear()

    def replace_by(self, other: ProducerStateManager) -> None:
        """Adopt the producers and transactions of another manager, which must not be used after this."""
        self.entries, self.ongoing, self.unreplicated = other.entries, other.ongoing, other.unreplicated
        self.first_unstable = other.first_unstable
        self._snapshot_offset, self._searched = other._snapshot_offset, other._searched
        self.verifications.clear()
        self.refused.clear()

    # -- snapshots

    def load(self, entries: Iterable[ProducerEntry], offset: int, now_ms: int) -> None:
        """Adopt the producers of the snapshot at an offset."""
        self.clear()
        self._snapshot_offset = offset
        for entry in entries:
            if not self._is_expired(entry, now_ms):
                self.entries[entry.producer_id] = entry
                if entry.transaction_start is not None:
                    self.ongoing[entry.producer_id] = entry.transaction_start
        self._sort_ongoing()

    def _sort_ongoing(self) -> None:
        self.ongoing = dict(sorted(self.ongoing.items(), key=lambda item: item[1]))
        self._transactions_changed()

    def encode_snapshot(self, markers: Iterable[tuple[CheckedBatch, EndTransactionMarker]] = ()) -> bytes:
        """The producers in the format of snapshots, with the transactions of `markers` ended."""
        ended: dict[int, ProducerEntry] = {}
        for batch, marker in markers:
            known = ended.get(batch.producer_id) or self.entries.get(batch.producer_id)
            entry = ProducerEntry(batch.producer_id) if known is None else known.copy()
            entry.end_transaction(batch.producer_epoch, marker.coordinator_epoch, batch.max_timestamp)
            ended[batch.producer_id] = entry
        return encode_snapshot({**self.entries, **ended}.values())


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
