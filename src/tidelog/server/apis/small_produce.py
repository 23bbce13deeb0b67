"""The short way of Produce: one small batch for one partition, appended and answered in one turn of the loop.

It takes a request from its frame alone. The batches of one turn share a write for each partition, and are
answered in the order of their requests. What is out of the ordinary is left to `produce`: several partitions,
a batch that breaks a rule, a partition that has to wait for a worker, for replicas or for a flush.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tidelog.cluster.partition import HEAVY_BYTES, Partition
from tidelog.cluster.replica_manager import AppendOutcome, HostedTopic
from tidelog.errors import KafkaError
from tidelog.network.request import Taken
from tidelog.records.batch import TRANSACTIONAL_FLAG
from tidelog.records.check import CheckedBatch
from tidelog.records.loops import parse_one_batch, produce_response
from tidelog.server.apis.produce import count, count_failed, send
from tidelog.server.services import Services
from tidelog.storage.append import AppendResult, DuplicateBatch, PendingAppend
from tidelog.storage.producer_state import Verification

log = logging.getLogger("tidelog.server.apis.produce")

# Up to this size a copy of a batch costs less than a write of its own.
JOINED_BYTES = 4096

# The request, its acks, the topic as it was named, the topic, the partition, and the batch.
SmallProduce = tuple[Taken, int, str | bytes, HostedTopic, Partition, CheckedBatch]


class SmallProduces:
    """The small produce requests of this turn of the loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._replicas = services.replicas
        self._ms = services.clock.ms
        # Those that the end of this turn writes, with their appends, or why there is none.
        self._taken: list[tuple[SmallProduce, PendingAppend | DuplicateBatch | KafkaError]] = []

    def take(self, taken: Taken, frame: memoryview, body_start: int) -> bool:
        """Append the batch, if it is one of the ordinary ones; it is written and answered in this turn."""
        channel, entry, _, size, _, _ = taken
        version = entry.api_version
        if size >= HEAVY_BYTES or (found := parse_one_batch(frame, body_start, version)) is None:
            return False
        transactional_id, acks, topic, index, start, end = found
        replicas = self._replicas
        hosted = (replicas.topics if version < 13 else replicas.topics_by_id).get(topic)  # type: ignore[arg-type]
        if hosted is None or hosted.is_internal or not -1 <= acks <= 1:
            return False
        partition = hosted.partitions.get(index)
        if partition is None or not partition.can_append_in_turn(acks):
            return False
        now_ms = self._ms()
        guard = None
        try:
            batch = partition.check_now(frame[start:end], now_ms, version >= 7)
        except KafkaError:
            return False
        if batch.attributes & TRANSACTIONAL_FLAG:
            if not transactional_id:
                return False
            assert partition.log is not None
            if partition.log.producers.begins_transaction(batch):
                guard = self._guard(transactional_id, partition, batch, version)
                if guard is None:
                    return False
        produce = (taken, acks, topic, hosted, partition, batch)
        if channel.has_company and batch.size <= JOINED_BYTES:
            self._join(produce, now_ms, guard)
            return True
        if self._taken:
            self.end_turn()  # what came before is written before
            if not partition.can_append_in_turn(acks):
                return False
        try:
            result = partition.append_now(batch, now_ms, guard)
        except KafkaError as error:
            channel.taken()
            self._refuse(produce, error)
        else:
            count(self._services, hosted, result, batch.size)
            channel.answer_now(taken, _answer(produce, result))
        return True

    def _join(self, produce: SmallProduce, now_ms: int, guard: Verification | None) -> None:
        """Append with the other small batches of this turn, whose end writes them together."""
        taken, _, _, _, partition, batch = produce
        channel = taken[0]
        append: PendingAppend | DuplicateBatch | KafkaError
        try:
            append = partition.append_in_turn(batch, now_ms, guard)
        except KafkaError as error:
            append = error
        channel.taken()
        if not self._taken:
            channel.context.loop.call_soon_in_turn(self.end_turn)
        self._taken.append((produce, append))

    def _guard(
        self, transactional_id: str, partition: Partition, batch: CheckedBatch, version: int
    ) -> Verification | None:
        return self._services.verification.guard_now(
            transactional_id,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            partition,
            version,
        )

    def end_turn(self) -> None:
        """Write what was taken, partition by partition, then answer in the order of the requests."""
        all_taken, self._taken = self._taken, []
        now_ms = self._ms()
        results: dict[Partition, Iterator[AppendResult]] = {}
        errors: dict[Partition, Exception] = {}
        for produce, _ in all_taken:
            partition = produce[4]
            if partition not in results and partition not in errors:
                try:
                    results[partition] = iter(partition.write_turn(now_ms))
                except Exception as error:
                    errors[partition] = error
        for produce, append in all_taken:
            taken, _, _, hosted, partition, batch = produce
            try:
                if type(append) is PendingAppend:
                    result = next(results[partition]) if partition in results else None
                else:
                    result = _result_without_append(append, partition)
                if result is not None:
                    count(self._services, hosted, result, batch.size)
                    answer = _answer(produce, result)
            except Exception as error:
                self._services.failed(taken[0].request_of(taken), error)
                continue
            if result is not None:
                taken[0].answer_taken(taken, answer)
            else:
                self._refuse(produce, append if isinstance(append, KafkaError) else errors[partition])
        for partition in (*results, *errors):
            try:
                partition.turn_written()
            except Exception:
                log.exception("%s: the end of a turn of the loop failed", partition.name)

    def _refuse(self, produce: SmallProduce, error: Exception) -> None:
        taken, acks, topic, hosted, partition, batch = produce
        request = taken[0].request_of(taken)
        try:
            count_failed(self._services, hosted, error, batch.size)
            answer = ((topic, partition.index), partition, AppendOutcome(None, error))
            send(self._services, request, acks, [answer])
        except Exception as failure:
            self._services.failed(request, failure)


def _result_without_append(append: object, partition: Partition) -> AppendResult | None:
    """That of a duplicate, unless the batch it repeats was lost in this turn."""
    if not isinstance(append, DuplicateBatch):
        return None
    assert partition.log is not None
    return append.result if append.result.last_offset < partition.log.log_end_offset else None


def _answer(produce: SmallProduce, result: AppendResult) -> bytes:
    (_, entry, correlation_id, _, _, _), acks, topic, _, partition, _ = produce
    if acks == 0:
        return b""
    base_offset, _, log_append_time, log_start_offset, _ = result
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
