"""Deliveries: handles the outcome of sent batches, which are written, retried, split or given up.

A batch is in flight from its request until the response, or until nothing waits for a response.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from tidelog.clients.errors import ClientError, TimeoutException
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.network import NetworkClient
from tidelog.clients.producer.accumulator import RecordAccumulator
from tidelog.clients.producer.batch import ProducerBatch
from tidelog.clients.producer.metrics import ProducerMetrics
from tidelog.clients.producer.sequences import Sequences
from tidelog.clients.producer.transactions import TransactionManager
from tidelog.clients.settings import ProducerSettings
from tidelog.errors import (
    DuplicateSequenceNumber,
    FencedLeaderEpoch,
    InvalidRecord,
    KafkaError,
    LeaderNotAvailable,
    MessageTooLarge,
    NetworkException,
    NotLeaderOrFollower,
    ReplicaNotAvailable,
    RequestTimedOut,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_class,
    error_name,
)
from tidelog.protocol.messages.produce import ProduceResponse
from tidelog.records.batch import read_records

log = logging.getLogger("tidelog.clients")

# Errors that show outdated metadata.
STALE_METADATA = (
    UnknownTopicOrPartition, UnknownTopicId, LeaderNotAvailable, NotLeaderOrFollower, FencedLeaderEpoch,
    UnknownLeaderEpoch, ReplicaNotAvailable, NetworkException,
)  # fmt: skip

Partition = ProduceResponse.PartitionProduceResponse


class Deliveries:
    """`take_answer`, `refused` and `written` end a batch or put it back. Calls `on_settled` for each end."""

    def __init__(
        self,
        client: NetworkClient,
        accumulator: RecordAccumulator,
        settings: ProducerSettings,
        metrics: ProducerMetrics,
        sequences: Sequences | None,
        transactions: TransactionManager | None,
    ) -> None:
        self.under_way: dict[ProducerBatch, None] = {}
        self.on_settled: Callable[[ProducerBatch], None] | None = None
        self._client = client
        self._accumulator = accumulator
        self._settings = settings
        self._metrics = metrics
        self._sequences = sequences
        self._transactions = transactions
        self._delivery = settings.delivery_timeout_ms / 1000
        self._one_at_a_time = settings.max_in_flight_requests_per_connection == 1

    def begin(self, batch: ProducerBatch) -> None:
        """Mark a batch as in flight."""
        self.under_way[batch] = None
        if self._one_at_a_time:
            batch.queue.muted = True

    # Responses

    def take_answer(
        self, answer: ProduceResponse, batches: list[ProducerBatch], names: dict[bytes, str]
    ) -> None:
        """Read a response. `names` are the topics of the request: the metadata may not have them any more."""
        found: dict[tuple[str, int], Partition] = {}
        for topic in answer.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for partition in topic.partition_responses:
                found[name, partition.index] = partition
        if answer.node_endpoints:
            nodes = (
                BrokerNode(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints
            )
            self._client.view.add_nodes(nodes)
        for batch in batches:
            result = found.get((batch.queue.topic, batch.queue.partition))
            if result is None:
                self.refused(batch, NetworkException(f"the answer says nothing of {batch.queue!r}"), -1, {})
            elif result.error_code == 0:
                self.written(batch, result.base_offset, result.log_append_time_ms)
            else:
                self._take_error(batch, result)

    def _take_error(self, batch: ProducerBatch, result: Partition) -> None:
        kind = error_class(result.error_code)
        text = result.error_message or f"{batch.queue!r}: {kind()}"
        if kind is MessageTooLarge:
            text = self._too_large(batch, result.error_message)
        leader = result.current_leader
        if leader is not None and leader.leader_id >= 0:
            queue = batch.queue
            self._client.view.update_leader(
                queue.topic, queue.partition, leader.leader_id, leader.leader_epoch
            )
        details: dict[int, BaseException] = {}
        for entry in result.record_errors:
            reason = entry.batch_index_error_message or text
            # The error of a batch with one record is the error of that record.
            single = len(result.record_errors) == 1
            details[entry.batch_index] = kind(reason) if single else InvalidRecord(reason)
        self.refused(batch, kind(text), result.log_start_offset, details)

    def _too_large(self, batch: ProducerBatch, message: str | None) -> str:
        size = 0 if batch.wire is None else len(batch.wire)
        limit = "max.message.bytes of the topic, or message.max.bytes of the broker, is below that"
        return f"{batch.queue!r}: the broker refused a batch of {size} bytes: {message or limit}"

    def written(self, batch: ProducerBatch, base_offset: int, log_append_time: int) -> None:
        self._ended(batch)
        if self._sequences is not None:
            self._sequences.written(batch, base_offset)
        if batch.complete(base_offset, log_append_time):
            self._metrics.record_send_total += batch.count
        self._settle(batch)

    def refused(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        log_start_offset: int,
        details: dict[int, BaseException],
    ) -> None:
        """Split, retry or give up a batch after an error."""
        self._ended(batch)
        if isinstance(error, STALE_METADATA):
            self._client.request_refresh()
        if batch.finished:
            # It was given up before the response.
            if self._sequences is not None:
                self._sequences.remove(batch)
            return
        if isinstance(error, MessageTooLarge) and batch.count > 1:
            self._split(batch)
        elif self._can_retry(batch, error, log_start_offset):
            self._metrics.record_retry_total += batch.count
            batch.attempts += 1
            batch.last_error = error
            batch.retry_at = _now() + self._client.retry_backoff.delay(batch.attempts - 1)
            log.debug("%r is sent again: %s", batch.queue, error)
            self._accumulator.put_back(batch, in_order=self._sequences is not None)
        elif isinstance(error, DuplicateSequenceNumber):
            # The broker has it already, but no longer knows its offset.
            self.written(batch, -1, -1)
        elif error.retriable and batch.attempts < self._settings.retries and self._is_late(batch, _now()):
            batch.attempts += 1
            batch.last_error = error
            self._time_out(batch, _now())
        else:
            certain = batch.attempts < self._settings.retries
            self._give_up(batch, error, details, certain=certain)

    def _is_late(self, batch: ProducerBatch, now: float) -> bool:
        return now >= batch.created + self._delivery

    def _can_retry(self, batch: ProducerBatch, error: KafkaError, log_start_offset: int) -> bool:
        if batch.attempts >= self._settings.retries or self._is_late(batch, _now()):
            return False
        if self._transactions is not None and self._transactions.refusing is not None:
            return error.retriable and not self._transactions.failed
        if self._sequences is not None:
            return self._sequences.can_retry(batch, error, log_start_offset)
        return error.retriable

    def _give_up(
        self, batch: ProducerBatch, error: KafkaError, details: dict[int, BaseException], *, certain: bool
    ) -> None:
        if self._transactions is not None:
            self._transactions.batch_failed(error)
        if self._sequences is not None:
            uncertain = isinstance(error, NetworkException | RequestTimedOut | TimeoutException)
            if uncertain and batch.has_sequence and batch in batch.queue.in_flight:
                self._sequences.expired(batch)
            self._sequences.failed(batch, error, certain=certain and not uncertain)
        self._metrics.record_error_total += batch.count
        rest = ClientError(f"{batch.queue!r}: other records of the same batch are wrong: {error}")
        batch.fail(rest if details else error, details or None)
        self._settle(batch)

    def _split(self, batch: ProducerBatch) -> None:
        assert batch.wire is not None
        log.warning("%r: a batch of %d records is too large and is split", batch.queue, batch.count)
        parts = self._accumulator.split(batch, read_records(batch.wire))
        if self._sequences is not None:
            self._sequences.split(batch, parts)
        self._metrics.batch_split_total += 1
        self._accumulator.replace(batch, parts)

    def _ended(self, batch: ProducerBatch) -> None:
        self.under_way.pop(batch, None)
        if self._one_at_a_time:
            batch.queue.muted = False

    def _settle(self, batch: ProducerBatch) -> None:
        self._accumulator.settle(batch)
        if self.on_settled is not None:
            self.on_settled(batch)

    # Time

    def expire(self, now: float) -> None:
        """Give up batches that are older than delivery.timeout.ms."""
        oldest = now - self._delivery
        for queue in list(self._accumulator.active):
            while queue.batches and queue.batches[0].created <= oldest:
                with self._accumulator.lock:
                    batch = queue.batches.popleft()
                    batch.seal()
                self._time_out(batch, now)
        for batch in [batch for batch in self.under_way if batch.created <= oldest]:
            self.under_way.pop(batch, None)
            self._time_out(batch, now)

    def _time_out(self, batch: ProducerBatch, now: float) -> None:
        passed = round((now - batch.created) * 1000)
        error = TimeoutException(
            f"{batch.queue!r}: {batch.count} records were not written within {passed} ms"
            f"{self._last_failure(batch)}"
        )
        error.__cause__ = batch.last_error
        self._give_up(batch, error, {}, certain=False)

    def _last_failure(self, batch: ProducerBatch) -> str:
        """The reason why a batch was not written: the error of its last attempt, or of the connection."""
        last = batch.last_error
        if last is None or self._client.last_error is not None:
            return "" if self._client.last_error is None else f": {self._client.last_error}"
        tries = "the last try" if batch.attempts == 1 else f"the last of {batch.attempts} tries"
        return f": {tries} failed with {error_name(last.code)}: {last}"

    def next_expiry(self) -> float:
        oldest = min((batch.created for batch in self.under_way), default=math.inf)
        for queue in list(self._accumulator.active):  # sending threads add to it
            if queue.batches:
                oldest = min(oldest, queue.batches[0].created)
        return oldest + self._delivery

    # The end

    def abort_waiting(self, error: KafkaError) -> None:
        """Fail the batches that were not sent yet."""
        for queue in list(self._accumulator.active):
            while queue.batches:
                with self._accumulator.lock:
                    batch = queue.batches.popleft()
                    batch.seal()
                if self._sequences is not None:
                    self._sequences.failed(batch, error, certain=False)
                self._metrics.record_error_total += batch.count
                batch.fail(error)
                self._settle(batch)

    def abort_all(self, error: KafkaError) -> None:
        """Fail every batch that has not ended, also those in flight."""
        self.abort_waiting(error)
        for batch in list(self._accumulator.incomplete):
            self.under_way.pop(batch, None)
            self._metrics.record_error_total += batch.count
            batch.fail(error)
            self._settle(batch)


def _now() -> float:
    return asyncio.get_running_loop().time()
