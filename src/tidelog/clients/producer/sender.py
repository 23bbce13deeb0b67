"""Sender: sends batches that are due to the leaders of their partitions.

It runs on the loop, in turns: after the begin or the end of a batch, a response, a new connection, a change
of the metadata, or a timer. A request has at most one batch of each partition, and the partitions of a broker
take turns. `deliveries` handles the outcome of a batch.
"""

from __future__ import annotations

import asyncio
import logging
import math

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.network import NetworkClient
from tidelog.clients.producer.accumulator import PartitionQueue, RecordAccumulator
from tidelog.clients.producer.batch import ProducerBatch
from tidelog.clients.producer.deliveries import Deliveries
from tidelog.clients.producer.metrics import ProducerMetrics
from tidelog.clients.producer.requests import (
    FIRST_WITH_TOPIC_IDS,
    LAST_BEFORE_TRANSACTIONS_V2,
    PRODUCE,
    TopicBatches,
    produce_parts,
)
from tidelog.clients.producer.sequences import Sequences
from tidelog.clients.producer.transactions import TransactionManager
from tidelog.clients.settings import ProducerSettings
from tidelog.errors import KafkaError, NetworkException, error_class
from tidelog.protocol.message import decode
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.wire import ZERO_UUID, Buffer, ProtocolError
from tidelog.records.codecs import Codec

log = logging.getLogger("tidelog.clients")


class Sender:
    """Threads call `wake()`, the loop calls `wake_on_loop()`; `run` is one turn."""

    def __init__(
        self,
        client: NetworkClient,
        accumulator: RecordAccumulator,
        settings: ProducerSettings,
        metrics: ProducerMetrics,
        sequences: Sequences | None,
        transactions: TransactionManager | None,
        level: int | None,
    ) -> None:
        self._client = client
        self._accumulator = accumulator
        self._settings = settings
        self._metrics = metrics
        self._sequences = sequences
        self._transactions = transactions
        self._codec = accumulator.codec
        self._level = level
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending = False
        self._unseen = False
        self._forced = False
        self._timer: asyncio.TimerHandle | None = None
        self._turns: dict[int, int] = {}
        self._naming: asyncio.Task[None] | None = None
        self._linger = settings.linger_ms / 1000
        self._request_timeout = settings.request_timeout_ms / 1000
        self._blocked_since: dict[int, float] = {}
        self.busy_nodes: set[int] = set()
        """Brokers with max.in.flight.requests.per.connection requests."""
        self.closing = False
        self.deliveries = Deliveries(client, accumulator, settings, metrics, sequences, transactions)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._client.on_change.append(self.wake_on_loop)

    def close(self) -> None:
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._naming is not None:
            self._naming.cancel()

    def wake(self) -> None:
        """Schedule a turn; several calls schedule one."""
        if not self._pending and self._loop is not None:
            self._pending = True
            self._loop.call_soon_threadsafe(self.run)

    def wake_for_new(self, now: float) -> None:
        """Schedule a turn for a new batch, unless one comes before the batch is due."""
        # Set before the timer is read, so that a running turn which missed the batch sees it.
        self._unseen = True
        timer = self._timer
        if timer is None or timer.when() > now + self._linger:
            self.wake()

    def wake_on_loop(self) -> None:
        if not self._pending and self._loop is not None:
            self._pending = True
            self._loop.call_soon(self.run)

    def unavailable_brokers(self) -> set[int]:
        """Brokers that have taken no waiting batch for partitioner.availability.timeout.ms.

        Sending threads call it: it copies what the loop may change.
        """
        limit = self._settings.partitioner_availability_timeout_ms / 1000
        if not limit or self._loop is None:
            return set()
        now = self._loop.time()
        slow = {node for node, since in list(self._blocked_since.items()) if now - since > limit}
        if slow:
            # A broker without waiting batches is tried again, to notice its recovery.
            leader = self._client.view.leader
            active = list(self._accumulator.active)
            slow &= {leader(queue.topic, queue.partition) for queue in active if queue.batches}
        return slow

    # One turn

    def run(self) -> None:
        self._pending = self._unseen = False
        assert self._loop is not None
        now = self._loop.time()
        self.deliveries.expire(now)
        if self._prepare():
            again = self._send_due(now)
        else:
            again = math.inf
        again = min(again, self.deliveries.next_expiry())
        self._set_timer(again, now)
        if self._unseen:
            self._set_timer(min(again, now + self._linger), now)

    def _prepare(self) -> bool:
        """Whether batches may be sent now."""
        if self._transactions is not None and (error := self._transactions.refusing) is not None:
            self.abort_waiting(error)
            if self._transactions.failed:
                return False
        if self._sequences is None:
            return True
        self._sequences.settle(self._accumulator.queues.values())
        if not self._sequences.has_id:
            if self._transactions is None:
                self._name_producer()
            return False
        return True

    def _send_due(self, now: float) -> float:
        """Send due batches to every ready broker. Returns the time of the next one."""
        self.busy_nodes.clear()
        ready, later = self._ready(now)
        for node, queues in ready.items():
            try:
                connection = self._client.connection_if_ready(node)
            except NetworkException:
                self._client.request_refresh()
                continue
            if connection is None:
                self._blocked_since.setdefault(node, now)
                continue
            limit = self._settings.max_in_flight_requests_per_connection
            while connection.in_flight < limit and not connection.closed:
                batches = self._drain(node, queues, now)
                if not batches:
                    break
                self._blocked_since.pop(node, None)
                self._send(connection, batches, now)
            else:
                self._blocked_since.setdefault(node, now)
                if not connection.closed:
                    self.busy_nodes.add(node)
            # The batches behind those that were due may not be due.
            later = min(
                [later, *(due for queue in queues if queue.batches and (due := self._due(queue)) > now)]
            )
        return later

    def _ready(self, now: float) -> tuple[dict[int, list[PartitionQueue]], float]:
        """The queues with a due batch, by leader, and the time when the next batch is due."""
        accumulator, view = self._accumulator, self._client.view
        transactions = self._transactions
        self._forced = (
            self.closing
            or accumulator.flushing > 0
            or accumulator.memory.waiting > 0
            or (transactions is not None and transactions.completing)
        )
        ready: dict[int, list[PartitionQueue]] = {}
        later = math.inf
        missing: set[str] = set()
        for queue in list(accumulator.active):
            if not queue.batches:
                with accumulator.lock:
                    if not queue.batches:
                        accumulator.active.pop(queue, None)
                continue
            if queue.muted:
                continue
            leader = view.leader(queue.topic, queue.partition)
            if leader is None:
                missing.add(queue.topic)
                continue
            due = self._due(queue)
            if due > now:
                later = min(later, due)
            elif self._may_send(queue):
                ready.setdefault(leader, []).append(queue)
        if missing:
            self._client.want(missing)
            self._client.request_refresh(missing)
        return ready, later

    def _due(self, queue: PartitionQueue) -> float:
        first = queue.batches[0]
        if first.attempts:
            return first.retry_at
        if self._forced or first.full or len(queue.batches) > 1:
            return 0.0
        return first.created + self._linger

    def _may_send(self, queue: PartitionQueue) -> bool:
        if self._transactions is not None and not self._transactions.may_send(queue):
            return False
        return self._sequences is None or self._sequences.may_send(queue, queue.batches[0])

    def _drain(self, node: int, queues: list[PartitionQueue], now: float) -> list[ProducerBatch]:
        """At most one batch of each queue, starting after the queues of the last request."""
        count = len(queues)
        start = self._turns.get(node, 0) % count
        batches: list[ProducerBatch] = []
        size = 0
        for step in range(count):
            queue = queues[(start + step) % count]
            batch = self._take(queue, now)
            if batch is None:
                continue
            length = batch.close(self._codec, self._level)
            if batches and size + length > self._settings.max_request_size:
                with self._accumulator.lock:
                    queue.batches.appendleft(batch)
                self._turns[node] = (start + step) % count
                break
            size += length
            batches.append(batch)
            self.deliveries.begin(batch)
            if self._sequences is not None:
                self._sequences.number(batch)
            self._note_drained(batch, length, now)
        else:
            self._turns[node] = start
        return batches

    def _take(self, queue: PartitionQueue, now: float) -> ProducerBatch | None:
        if queue.muted:
            return None
        with self._accumulator.lock:
            if not queue.batches:
                return None
            if self._due(queue) > now or not self._may_send(queue):
                return None
            batch = queue.batches.popleft()
            batch.seal()
            return batch

    def _note_drained(self, batch: ProducerBatch, length: int, now: float) -> None:
        if not batch.attempts:
            self._metrics.record_queue_time.add(now - batch.created)
            self._metrics.batch_size.add(length)
            rate = length / max(1, batch.size)
            self._metrics.compression_rate.add(rate)
            if self._codec is not Codec.NONE:
                self._accumulator.learn_ratio(batch.queue.topic, rate)
        batch.drained = now

    # Requests and responses

    def _send(self, connection: AsyncConnection, batches: list[ProducerBatch], now: float) -> None:
        transactions, settings = self._transactions, self._settings
        topics: dict[str, list[tuple[int, Buffer]]] = {}
        for batch in batches:
            signed = batch.sign(self._codec, transactional=transactions is not None)
            topics.setdefault(batch.queue.topic, []).append((batch.queue.partition, signed))
        view = self._client.view
        grouped: list[TopicBatches] = [(name, view.topic_id(name), found) for name, found in topics.items()]
        at_most = None
        if transactions is not None and not transactions.version_2:
            at_most = LAST_BEFORE_TRANSACTIONS_V2
        elif any(topic_id == ZERO_UUID for _, topic_id, _ in grouped):
            at_most = FIRST_WITH_TOPIC_IDS - 1
        try:
            version = connection.version_for(ProduceRequest, at_most=at_most)
        except KafkaError as error:
            for batch in batches:
                self.deliveries.refused(batch, error, -1, {})
            return
        transactional_id = settings.transactional_id
        parts = produce_parts(version, transactional_id, settings.acks, settings.request_timeout_ms, grouped)
        self._metrics.records_per_request.add(sum(batch.count for batch in batches))

        names = {topic_id: name for name, topic_id, _ in grouped}

        def done(body: Buffer | None, error: KafkaError | None) -> None:
            self._answered(connection, version, batches, names, now, body, error)

        answered = settings.acks != 0
        connection.send(PRODUCE, version, parts, done, timeout=self._request_timeout, answered=answered)

    def _answered(
        self,
        connection: AsyncConnection,
        version: int,
        batches: list[ProducerBatch],
        names: dict[bytes, str],
        sent_at: float,
        body: Buffer | None,
        error: KafkaError | None,
    ) -> None:
        assert self._loop is not None
        self.busy_nodes.discard(connection.node.id)
        self._metrics.request_latency.add(self._loop.time() - sent_at)
        answer: ProduceResponse | None = None
        if body is not None and self._settings.acks == 0:
            for batch in batches:
                self.deliveries.written(batch, -1, -1)
            self.wake_on_loop()
            return
        if body is not None:
            try:
                answer, _ = decode(ProduceResponse, version, body)
            except ProtocolError as problem:
                error = NetworkException(f"Produce: {connection.node.address} answered: {problem}")
        if answer is None:
            failure = error or NetworkException("no answer")
            for batch in batches:
                self.deliveries.refused(batch, failure, -1, {})
            self._client.request_refresh()
        else:
            self._blocked_since.pop(connection.node.id, None)
            self._metrics.throttle_time.add(answer.throttle_time_ms / 1000)
            connection.throttle(answer.throttle_time_ms)
            self.deliveries.take_answer(answer, batches, names)
        self.wake_on_loop()

    # Time

    def _set_timer(self, at: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at != math.inf and not (self.closing and not self._accumulator.incomplete):
            assert self._loop is not None
            # No timer for a time in the past: such batches wait for a broker, whose next event starts a turn.
            self._timer = self._loop.call_at(max(at, now + 0.001), self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self._pending:
            self.run()

    # The end

    def abort_waiting(self, error: KafkaError) -> None:
        """Fail the batches that were not sent yet."""
        self.deliveries.abort_waiting(error)

    def abort_all(self, error: KafkaError) -> None:
        """Fail every batch that has not ended, also those in flight."""
        self.deliveries.abort_all(error)

    # The producer's id

    def _name_producer(self) -> None:
        if self._naming is None and not self.closing:
            assert self._loop is not None
            self._naming = self._loop.create_task(self._get_id(), name="producer id")

    async def _get_id(self) -> None:
        """Request a producer id until a broker returns one, or an error that no retry resolves."""
        assert self._sequences is not None
        attempt = 0
        try:
            while not self._sequences.has_id:
                try:
                    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
                    answer = await self._client.call_any(request, InitProducerIdResponse)
                    if answer.error_code:
                        kind = error_class(answer.error_code)
                        raise kind(f"a producer id was refused: {kind()}")
                except KafkaError as error:
                    if not error.retriable:
                        self.abort_waiting(error)
                        return
                    log.debug("no producer id yet: %s", error)
                    await asyncio.sleep(self._client.retry_backoff.delay(attempt))
                    attempt += 1
                else:
                    self._sequences.take_id(answer.producer_id, answer.producer_epoch)
        finally:
            self._naming = None
            self.wake_on_loop()
