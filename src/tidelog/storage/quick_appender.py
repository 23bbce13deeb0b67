"""QuickAppender: checks, writes and finishes the usual small batch in one step.

Each method returns None or -1 and changes nothing if the batch needs `LogAppender.prepare`: because it begins
a segment, its producer is unknown or out of sequence, or the topic changes batches.
"""

from __future__ import annotations

from tidelog.errors import KafkaStorageError
from tidelog.records.check import CheckedBatch
from tidelog.records.codecs import Codec
from tidelog.storage.append import AppendResult
from tidelog.storage.config import LONG_MAX
from tidelog.storage.local_log import LocalLog
from tidelog.storage.log_appender import LogAppender
from tidelog.storage.marker import Marker
from tidelog.storage.producer_state_manager import ProducerStateManager
from tidelog.storage.refused_batches import Sequences


class QuickAppender:
    __slots__ = ("_appender", "_local", "_own_bytes", "_producers")

    def __init__(self, local: LocalLog, appender: LogAppender, producers: ProducerStateManager) -> None:
        self._local = local
        self._appender = appender
        self._producers = producers
        self.update_config()

    def update_config(self) -> None:
        """Take over changed settings of the topic from the appender."""
        rules = self._appender.rules
        # The largest batch of this broker that is stored as it is, and answered without a flush.
        self._own_bytes = rules.max_message_bytes
        if (
            rules.log_append_time
            or rules.target_codec not in (None, Codec.NONE)
            or self._local.config.flush_messages != LONG_MAX
        ):
            self._own_bytes = 0

    def append(
        self, batch: CheckedBatch, leader_epoch: int, *, is_verified: bool = False
    ) -> AppendResult | None:
        """Append the next batch of a client.

        It may begin a transaction if `is_verified`: the coordinator has confirmed in this turn that the
        transaction has the partition.
        """
        data, size, _, last_offset_delta, max_timestamp, producer_id, _, _ = batch
        producers, entry, begins = self._producers, None, False
        if producer_id >= 0:
            entry = producers.entries.get(producer_id)
            if entry is None or producer_id in producers.verifications:
                return None
            if not entry.awaits(batch):
                if not is_verified or producers.refused or not entry.awaits_first(batch):
                    return None
                begins = True
        appender = self._appender
        try:
            base_offset = appender.put(data, size, last_offset_delta, max_timestamp, leader_epoch)
        except KafkaStorageError as error:
            producers.refuse(Sequences.of(batch), error)
            raise
        if base_offset < 0:
            return None
        last_offset = base_offset + last_offset_delta
        if entry is not None:
            entry.append(batch, last_offset)
            if begins:
                producers.begin_transaction(entry, base_offset)
        return appender.result_of(base_offset, last_offset, max_timestamp)

    def append_own(self, data: bytearray, timestamp: int, leader_epoch: int) -> int:
        """Append a batch with one record that this broker made, without a producer; returns its offset."""
        size = len(data)
        return -1 if size > self._own_bytes else self._appender.put(data, size, 0, timestamp, leader_epoch)

    def append_marker(self, marker: Marker, data: bytearray, timestamp: int, leader_epoch: int) -> int:
        """Append the batch of a marker; returns its offset. Raises a KafkaError for an outdated marker."""
        producer_id, epoch, coordinator_epoch, _, version = marker
        producers = self._producers
        producers.check_marker(producer_id, epoch, coordinator_epoch, version)
        offset = self.append_own(data, timestamp, leader_epoch)
        if offset >= 0:
            aborted = producers.end_transaction(producer_id, epoch, marker, offset, timestamp)
            if aborted is not None:
                self._local.segments.active.add_aborted(aborted)
        return offset
