"""The fast path of Produce: one small batch for one partition, appended and answered in one turn of the loop.

It reads the request from its frame alone. The batches of one turn share one write for each partition.
Responses are sent in the order of the requests, with acks=all and several replicas when these have the batch
(commit_waits.py). `produce` handles every other request: several partitions, a batch that breaks a rule, a
partition that has to wait for a worker or for a flush.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tidelog.cluster.partition import HEAVY_BYTES, Partition
from tidelog.cluster.replica_manager import AppendOutcome, HostedTopic
from tidelog.coordinator.transaction.verification import PRODUCE_ADDS
from tidelog.errors import KafkaError, UnknownServerError
from tidelog.network.request import FastRequest
from tidelog.records.batch import TRANSACTIONAL_FLAG
from tidelog.records.check import CheckedBatch
from tidelog.records.loops import parse_one_batch, produce_response
from tidelog.server.apis.commit_waits import CommitWaits, SmallProduce
from tidelog.server.apis.produce import count, count_failed, send, transactional_key
from tidelog.server.services import Services
from tidelog.storage.append import DuplicateBatch, UnreadBatch
from tidelog.storage.log_appender import TurnOutcome
from tidelog.storage.producer_state_manager import Verification
from tidelog.storage.reads import NotCached

log = logging.getLogger("tidelog.server.apis.produce")

# Up to this size a copy of a batch costs less than a write of its own.
JOINED_BYTES = 4096

# The first version with compact strings.
FLEXIBLE_FROM = 9


class SmallProduces:
    """The small produce requests of this turn of the loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._quotas = services.quotas
        self._replicas = services.replicas
        self._ms = services.clock.ms
        self._queued: list[SmallProduce] = []  # the end of this turn appends their batches
        self._now_ms = 0  # the time of the first of these requests
        self._waits = CommitWaits(services.replicas, self._refuse)

    def take(self, fast_request: FastRequest, frame: memoryview, body_start: int) -> bool:
        """Append and answer the batch in this turn. Returns False to leave the request to `produce`."""
        channel, entry, _, size, _, _ = fast_request
        version = entry.api_version
        if size >= HEAVY_BYTES or (found := parse_one_batch(frame, body_start, version)) is None:
            return False
        transactional_id, acks, topic, index, start, end = found
        replicas = self._replicas
        hosted = (replicas.topics if version < 13 else replicas.topics_by_id).get(topic)  # type: ignore[arg-type]
        if hosted is None or hosted.is_internal or not -1 <= acks <= 1:
            return False
        authorizer = self._services.authorizer
        if authorizer is not None:
            # `produce` asks the authorizer, and remembers what is allowed.
            if channel.allowed_writes.get(hosted.name, -1) != authorizer.generation:
                return False
            self._services.audit.allowed += 1
        partition = hosted.partitions.get(index)
        if partition is None or not partition.can_append_in_turn(acks):
            return False
        if not self._queued:
            self._now_ms = self._ms()
        now_ms = self._now_ms
        guard, is_verified = None, False
        try:
            batch = partition.check_now(frame[start:end], now_ms, version >= 7)
        except KafkaError:
            return False
        if batch.attributes & TRANSACTIONAL_FLAG:
            if not transactional_id:
                return False
            if authorizer is not None:
                key = transactional_key(transactional_id)
                if channel.allowed_writes.get(key, -1) != authorizer.generation:
                    return False
            assert partition.log is not None
            if partition.log.producers.begins_transaction(batch):
                if version >= PRODUCE_ADDS:
                    guard = self._guard(transactional_id, partition, batch)
                else:
                    is_verified = self._services.verification.is_verified_now(
                        transactional_id, batch.producer_id, batch.producer_epoch, partition
                    )
                if guard is None and not is_verified:
                    return False
        timeout_ms = 0
        waits = acks == -1 and len(partition.replicas) > 1
        if waits:
            if self._waits.is_full(channel):
                return False
            timeout_ms = _timeout_ms(frame, body_start, version, transactional_id)
        quotas = self._quotas
        if quotas.is_active and not quotas.takes_small_produce(channel, size - body_start):
            return False
        produce = (fast_request, acks, topic, hosted, partition, batch, timeout_ms)
        is_joined = self._queued or channel.has_other_requests
        if is_joined and batch.size <= JOINED_BYTES and guard is None and not is_verified:
            partition.append_in_turn(batch)
            channel.defer_response()
            if not self._queued:
                channel.context.loop.call_soon_in_turn(self.end_turn)
            self._queued.append(produce)
            return True
        if self._queued:
            self.end_turn()  # write earlier batches first
            if not partition.can_append_in_turn(acks):
                if quotas.is_active:
                    quotas.return_small_produce(channel, size - body_start)
                return False
        try:
            result = partition.append_quickly(batch, is_verified=is_verified)
            if result is None:
                if is_verified:
                    guard = self._begin_verification(partition, batch, now_ms)
                result = partition.append_now(batch, now_ms, guard)
        except NotCached:
            channel.defer_response()
            # A copy: the frame is only valid until this returns.
            self._append_unread(produce, batch._replace(data=memoryview(bytearray(batch.data))), guard)
        except KafkaError as error:
            channel.defer_response()
            self._answer(produce, b"", 0, error)
        else:
            if waits:
                self._answer_followers(partition)
            count(self._services, hosted, batch.last_offset_delta + 1, batch.size)
            base_offset, last_offset, log_append_time, log_start_offset, _ = result
            answer = _answer(produce, base_offset, log_append_time, log_start_offset)
            try:
                if waits or channel in self._waits.channels:
                    channel.defer_response()
                    self._answer(produce, answer, last_offset + 1)
                else:
                    channel.send_now(fast_request, answer)
            finally:
                # As in Kafka, the producer comes before the consumers that wait for its record.
                partition.advance_high_watermark()
        return True

    def _answer_followers(self, *partitions: Partition) -> None:
        """Answer the waiting fetches of followers first: followers append while this broker does the rest."""
        for partition in partitions:
            partition.notify_followers()
        self._replicas.follower_fetches.answer_woken()

    def _answer(
        self, produce: SmallProduce, answer: bytes, next_offset: int, error: Exception | None = None
    ) -> None:
        """Send a deferred response. With acks=all and several replicas, it waits for the commit."""
        fast_request, acks, _, hosted, partition, batch, _ = produce
        if error is not None:
            count_failed(self._services, hosted, error, batch.size)
        if error is None and acks == -1 and len(partition.replicas) > 1:
            self._waits.wait(produce, answer, next_offset)
        elif fast_request[0] in self._waits.channels:
            self._waits.wait_behind(produce, answer, error)
        elif error is None:
            fast_request[0].send_deferred(fast_request, answer)
        else:
            self._refuse(produce, error)

    def _guard(self, transactional_id: str, partition: Partition, batch: CheckedBatch) -> Verification | None:
        return self._services.verification.guard_now(
            transactional_id, batch.producer_id, batch.producer_epoch, batch.base_sequence, partition
        )

    def _begin_verification(
        self, partition: Partition, batch: CheckedBatch, now_ms: int
    ) -> Verification | None:
        """The guard of a batch that is verified."""
        assert partition.log is not None
        return partition.log.producers.start_verification(
            batch.producer_id, batch.producer_epoch, batch.base_sequence, False, now_ms
        )

    def end_turn(self) -> None:
        """Append the batches by partition, then answer in the order of the requests."""
        queued, self._queued = self._queued, []
        ends: dict[Partition, _End] = {}
        waiting = self._waits.channels
        waited_for: dict[Partition, None] = {}
        for _, acks, _, hosted, partition, _, _ in queued:
            if partition not in ends:
                ends[partition] = _End(hosted, partition, self._now_ms)
            if acks == -1 and ends[partition].is_replicated:
                waited_for[partition] = None
        if waited_for:
            self._answer_followers(*waited_for)
        for produce in queued:
            fast_request, acks, _, _, partition, batch, _ = produce
            end = ends[partition]
            try:
                outcome = next(end.outcomes, end.failure)
                if type(outcome) is int:
                    next_offset = outcome + batch.last_offset_delta + 1
                    answer = _answer(
                        produce, outcome, batch.max_timestamp if end.stamps else -1, end.log_start
                    )
                elif isinstance(outcome, DuplicateBatch):
                    base_offset, last_offset, log_append_time, log_start_offset, _ = outcome.result
                    next_offset = last_offset + 1
                    answer = _answer(produce, base_offset, log_append_time, log_start_offset)
                elif isinstance(outcome, UnreadBatch):
                    self._append_unread(produce, outcome.batch)
                    continue
                else:
                    assert isinstance(outcome, KafkaError)
                    self._answer(produce, b"", 0, outcome)
                    continue
            except Exception as error:
                self._services.failed(fast_request[0].request_of(fast_request), error)
                continue
            end.produces += 1
            end.records += batch[3] + 1
            end.size += batch[1]
            if waiting or (acks == -1 and end.is_replicated):
                self._answer(produce, answer, next_offset)
            else:
                fast_request[0].send_deferred(fast_request, answer)
        for partition, end in ends.items():
            try:
                count(self._services, end.hosted, end.records, end.size, end.produces)
                partition.turn_written()
            except Exception:
                log.exception("%s: the end of a turn of the loop failed", partition.name)

    def _append_unread(
        self, produce: SmallProduce, batch: CheckedBatch, guard: Verification | None = None
    ) -> None:
        """Append a batch after a read of the disk. Its deferred response waits until then."""
        _, acks, _, hosted, partition, _, timeout_ms = produce
        wait = self._waits.hold(produce)

        def done(outcomes: list[AppendOutcome]) -> None:
            (outcome,) = outcomes
            if outcome.result is None:
                failed = outcome.error
                wait.error = failed if isinstance(failed, KafkaError) else UnknownServerError()
                count_failed(self._services, hosted, wait.error, batch.size)
            else:
                count(self._services, hosted, batch.last_offset_delta + 1, batch.size)
                base_offset, _, log_append_time, log_start_offset, _ = outcome.result
                wait.answer = _answer(produce, base_offset, log_append_time, log_start_offset)
            self._waits.ready([wait])

        self._replicas.append_checked(
            partition, batch, acks=acks, timeout_ms=timeout_ms, done=done, guard=guard
        )

    def _refuse(self, produce: SmallProduce, error: Exception) -> None:
        fast_request, acks, topic, _, partition, _, _ = produce
        request = fast_request[0].request_of(fast_request)
        try:
            answer = ((topic, partition.index), partition, AppendOutcome(None, error))
            send(self._services, request, acks, [answer])
        except Exception as failure:
            self._services.failed(request, failure)


class _End:
    """The result of appending the batches of one partition at the end of a turn."""

    __slots__ = (
        "failure",
        "hosted",
        "is_replicated",
        "log_start",
        "outcomes",
        "produces",
        "records",
        "size",
        "stamps",
    )

    def __init__(self, hosted: HostedTopic, partition: Partition, now_ms: int) -> None:
        self.hosted = hosted
        self.is_replicated = len(partition.replicas) > 1
        self.produces = self.records = self.size = 0
        self.failure: KafkaError = UnknownServerError()
        self.outcomes: Iterator[TurnOutcome] = iter(())
        self.stamps, self.log_start = False, -1
        try:
            outcomes = partition.write_turn(now_ms)
            assert partition.log is not None
            self.stamps = partition.log.config.log_append_time
            self.log_start = partition.log.log_start_offset
            self.outcomes = iter(outcomes)
        except KafkaError as error:
            self.failure = error
        except Exception:
            log.exception("%s: appending the batches of a turn failed unexpectedly", partition.name)


def _timeout_ms(frame: memoryview, body_start: int, version: int, transactional_id: str | None) -> int:
    """The field after the transactional id and acks of a body that was parsed."""
    length = 0 if transactional_id is None else len(transactional_id.encode())
    if version < FLEXIBLE_FROM:
        head = 2
    else:
        head = 1 if length < 127 else 2 if length < 16_383 else 3
    at = body_start + head + length + 2
    return int.from_bytes(frame[at : at + 4], "big", signed=True)


def _answer(produce: SmallProduce, base_offset: int, log_append_time: int, log_start_offset: int) -> bytes:
    (_, entry, correlation_id, _, _, _), acks, topic, _, partition, _, _ = produce
    if acks == 0:
        return b""
    return produce_response(
        entry.api_version,
        correlation_id,
        topic,
        partition.index,
        0,
        base_offset,
        log_append_time,
        log_start_offset,
    )
