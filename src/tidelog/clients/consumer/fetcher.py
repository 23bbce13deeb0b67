"""Fetcher: fetches ahead of `poll`, with one request at a time to each broker.

Completed fetches wait in `ready` for a poll. A broker gets no request while one of its partitions has enough
waiting records. Otherwise a long fetch of its other partitions could delay this partition when its records
are used up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.consumer.columns import table_of
from tidelog.clients.consumer.fetch_session import FetchSession, Wanted
from tidelog.clients.consumer.metrics import ConsumerMetrics
from tidelog.clients.consumer.partitions import PartitionState, SubscriptionState
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.network import NetworkClient
from tidelog.clients.settings import ConsumerSettings
from tidelog.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ReplicaNotAvailable,
    TopicAuthorizationFailed,
    UnknownLeaderEpoch,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_class,
)
from tidelog.partitions import TopicPartition
from tidelog.protocol.message import decode
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.wire import ZERO_UUID, Buffer, ProtocolError
from tidelog.records.loops import ColumnSink, ConsumerRecord, RecordReader

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("tidelog.clients")

LAST_VERSION_WITH_NAMES = 12
FETCH_KEY = 1
# One completed fetch is read while the next one waits.
READ_AHEAD = 2
READ_COMMITTED = 1
EVERYTHING = 1 << 40
ASK_AGAIN = (
    NotLeaderOrFollower,
    ReplicaNotAvailable,
    KafkaStorageError,
    FencedLeaderEpoch,
    OffsetNotAvailable,
    UnknownTopicOrPartition,
    UnknownTopicId,
    InconsistentTopicId,
    UnknownLeaderEpoch,
    UnknownServerError,
)


@dataclass(slots=True, eq=False)
class CompletedFetch:
    """The records of a partition in one fetch response."""

    state: PartitionState
    reader: RecordReader
    turn: int
    number: int
    """The completed fetches of a partition are read in the order of their numbers."""


@dataclass(slots=True)
class _Prepared:
    """Columns of the first completed fetches in `ready`, and readers positioned behind their records."""

    table: pa.Table
    fetches: list[tuple[CompletedFetch, RecordReader]]


@dataclass(slots=True)
class _InFlightFetch:
    """A fetch request without a response yet."""

    states: dict[TopicPartition, tuple[PartitionState, int, int]]  # with its turn and the requested offset
    version: int
    sent: float
    names: dict[bytes, str] = field(default_factory=dict)


class Fetcher:
    """`send` requests records, on the loop. `take` and `take_columns` return them, in the polling thread."""

    def __init__(
        self,
        client: NetworkClient,
        settings: ConsumerSettings,
        subscription: SubscriptionState,
        metrics: ConsumerMetrics,
        wake: Callable[[], None],
        needs_position: Callable[[], None],
    ) -> None:
        self.ready: deque[CompletedFetch] = deque()
        self.errors: deque[KafkaError] = deque()
        """Errors for the next polls to raise."""
        self.used_up = False
        """Whether a completed fetch was used up, which makes room for another one."""
        self.held_back = False
        """Whether a broker got no request because enough records were waiting."""
        self.marks: list[tuple[PartitionState, int, int | None, int]] = []
        """The partitions of the records taken last: their turns, and their positions before."""
        self.reset_policy: Callable[[], int] | None = None
        self.reader_class: type[RecordReader] | None = None
        """A reader that keeps more of each record, set by `details`."""
        self._client = client
        self._settings = settings
        self._subscription = subscription
        self._metrics = metrics
        self._wake = wake
        self._needs_position = needs_position
        self._sessions: dict[int, FetchSession] = {}
        self._asking: dict[int, _InFlightFetch] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._prepared: _Prepared | None = None
        self._handing_out = threading.Lock()
        self._counted = 0, 0
        self._committed = settings.isolation_level == "read_committed"
        self._closed = False

    @property
    def is_asking(self) -> bool:
        """Whether a broker has a request to answer."""
        return bool(self._asking)

    # Returning records

    def take(self, limit: int) -> list[ConsumerRecord[Any, Any]]:
        """At most `limit` fetched records, partition by partition."""
        out: list[ConsumerRecord[Any, Any]] = []
        with self._handing_out:
            self._begin()
            self._prepared = None
            while len(out) < limit and (fetch := self._first()) is not None:
                try:
                    records = fetch.reader.take(limit - len(out))
                except KafkaError:
                    if out:
                        break
                    raise
                self._handed_out(fetch)
                out = records if not out else out + records
        self._metrics.records_consumed_total += len(out)
        return out

    def take_columns(self, limit: int) -> pa.Table:
        """At most `limit` fetched records as a table."""
        with self._handing_out:
            self._begin()
            prepared, self._prepared = self._prepared, None
            if prepared is not None and limit >= EVERYTHING and self._hand_out(prepared):
                table = prepared.table
            else:
                table = table_of(self._filled(limit))
        self._metrics.records_consumed_total += table.num_rows
        return table

    def prepare_columns(self) -> None:
        """Copy the completed fetches into columns, on the loop, before the polling thread wakes up.

        One thread that receives and copies takes less CPU than two. The completed fetches stay in `ready`
        until the columns are taken: the polling thread may be interrupted, or poll for records instead.
        """
        with self._handing_out:
            sink = self._sink()
            fetches: list[tuple[CompletedFetch, RecordReader]] = []
            for fetch in self.ready:
                state = fetch.state
                if fetch.turn != state.turn or state.at_rest or state.unparked:
                    break
                reader = fetch.reader.copy()
                try:
                    reader.take_columns(sink, EVERYTHING)
                except KafkaError:
                    break  # the next take raises it
                fetches.append((fetch, reader))
                if not reader.done:
                    break
            self._prepared = _Prepared(table_of(sink), fetches) if sink.rows else None

    def _hand_out(self, prepared: _Prepared) -> bool:
        """Move the positions behind these columns. Returns False if a partition has changed since."""
        for fetch, _ in prepared.fetches:
            if fetch.turn != fetch.state.turn or fetch.state.at_rest:
                return False
        for fetch, reader in prepared.fetches:
            state = fetch.state
            self.marks.append((state, state.turn, state.position, state.position_epoch))
            fetch.reader = reader
            self._handed_out(fetch)
        return True

    def _filled(self, limit: int) -> ColumnSink:
        sink = self._sink() if limit >= EVERYTHING else ColumnSink()
        while sink.rows < limit and (fetch := self._first()) is not None:
            before = sink.rows
            try:
                fetch.reader.take_columns(sink, limit - before)
            except KafkaError:
                if before:
                    break
                raise
            if not self._handed_out(fetch) and sink.rows < limit:
                break  # the columns are full
        return sink

    def _sink(self) -> ColumnSink:
        """Empty columns, large enough for all completed fetches."""
        sink = ColumnSink()
        sink.expect(sum(fetch.reader.size for fetch in list(self.ready)))
        return sink

    def _first(self) -> CompletedFetch | None:
        """The next completed fetch to read. Drops outdated fetches, and parks the fetches of paused
        partitions."""
        ready = self.ready
        while ready:
            fetch = ready[0]
            state = fetch.state
            if fetch.turn != state.turn:
                ready.popleft()
            elif state.at_rest or state.unparked:
                self._park_or_sort(state)
            else:
                self.marks.append((state, state.turn, state.position, state.position_epoch))
                return fetch
        return None

    def _begin(self) -> None:
        """Each take returns the records after those of the previous take."""
        self.marks.clear()
        self._counted = self._metrics.records_consumed_total, self._metrics.bytes_consumed_total

    def take_back(self) -> None:
        """Move the positions back before the records of the last take, which nobody received. On the loop."""
        if not self.marks:
            return
        for state, turn, position, epoch in self.marks:
            if state.turn == turn and position is not None:
                state.seek(position, epoch)
        self.marks.clear()
        self._metrics.records_consumed_total, self._metrics.bytes_consumed_total = self._counted
        self.send()

    def _handed_out(self, fetch: CompletedFetch) -> bool:
        """Move the position; True if the completed fetch is used up."""
        state, reader = fetch.state, fetch.reader
        state.position = reader.position
        if reader.leader_epoch >= 0:
            state.position_epoch = reader.leader_epoch
        if not reader.done:
            return False
        self.ready.popleft()
        state.drained += 1
        self.used_up = True
        self._metrics.bytes_consumed_total += reader.size
        return True

    def _park_or_sort(self, state: PartitionState) -> None:
        """Park the first completed fetch, or put parked ones back in front of later ones."""
        ready = self.ready
        if state.at_rest:
            state.parked.append(ready.popleft())
            if not state.at_rest:  # the loop may have unparked the partition just before
                self.unpark(state)
            return
        state.unparked = False
        fetches = sorted((fetch for fetch in list(ready) if fetch.state is state), key=lambda it: it.number)
        for fetch in fetches:
            ready.remove(fetch)
        ready.extendleft(reversed(fetches))

    def unpark(self, state: PartitionState) -> None:
        """Put the parked fetches of a partition back into `ready`.

        They go to its end: the polling thread may be reading its front. The next take puts them in order.
        """
        with contextlib.suppress(IndexError):  # the other thread may do the same at this moment
            while state.parked:
                self.ready.append(state.parked.pop(0))
                state.unparked = True

    # Requests

    def send(self) -> None:
        """Send a fetch to each broker that leads partitions to read and has no request."""
        if self._closed:
            return
        self.held_back = False
        now = asyncio.get_running_loop().time()
        by_node: dict[int, dict[TopicPartition, PartitionState]] = {}
        full: set[int] = set()
        wait: float | None = None
        for name, state in self._subscription.states.items():
            if state.position is None or state.paused or state.revoking or state.validating:
                continue
            node = self._node_for(state, now)
            if node is None or node in self._asking:
                continue
            if state.queued >= READ_AHEAD:
                full.add(node)
                self.held_back = True
            elif state.retry_at > now:
                wait = state.retry_at if wait is None else min(wait, state.retry_at)
            else:
                by_node.setdefault(node, {})[name] = state
        for node, states in by_node.items():
            if node not in full:
                self._ask(node, states, now)
        if wait is not None:
            self._send_at(wait)

    def _node_for(self, state: PartitionState, now: float) -> int | None:
        """The broker to fetch from; None while the leader is unknown or the position is not validated."""
        view = self._client.view
        topic, partition = state.name
        leader = view.leader(topic, partition)
        if leader is None:
            self._client.want((topic,))
            self._client.request_refresh((topic,))
            return None
        epoch = view.leader_epoch(topic, partition)
        if epoch != state.leader_epoch:
            if state.position_epoch >= 0 and epoch > state.leader_epoch:
                state.validating = True
                self._needs_position()
                return None
            state.leader_epoch = epoch
        if state.replica is not None:
            if state.replica_until > now and state.replica in view.nodes:
                return state.replica
            state.replica = None
        return leader

    def _ask(self, node: int, states: dict[TopicPartition, PartitionState], now: float) -> None:
        connection = self._client.connection_if_ready(node)
        if connection is None:
            if self._client.is_unreachable(node):
                for state in states.values():
                    if state.replica == node:
                        state.replica = None
                self._client.request_refresh()
            return
        view = self._client.view
        wanted = {
            name: Wanted(view.topic_id(name.topic), state.fetch_offset, state.leader_epoch)
            for name, state in states.items()
        }
        has_ids = all(entry.topic_id != ZERO_UUID for entry in wanted.values())
        version = connection.version_for(FetchRequest, at_most=None if has_ids else LAST_VERSION_WITH_NAMES)
        session = self._sessions.setdefault(node, FetchSession())
        request = self._request()
        session.fill(
            request,
            wanted,
            self._settings.max_partition_fetch_bytes,
            with_ids=version > LAST_VERSION_WITH_NAMES,
        )
        ask = _InFlightFetch(
            {n: (s, s.turn, s.fetch_offset) for n, s in states.items()}, version, now, session.names()
        )
        self._asking[node] = ask
        self._metrics.fetch_total += 1
        connection.send(
            FETCH_KEY,
            version,
            (request.encode(version),),
            lambda body, error: self._answered(node, connection, ask, body, error),
        )

    def _request(self) -> FetchRequest:
        settings = self._settings
        return FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=READ_COMMITTED if self._committed else 0,
            rack_id=settings.client_rack,
        )

    def _send_at(self, when: float) -> None:
        if self._timer is None:

            def again() -> None:
                self._timer = None
                self.send()

            self._timer = asyncio.get_running_loop().call_at(when, again)

    # Responses

    def _answered(
        self,
        node: int,
        connection: AsyncConnection,
        ask: _InFlightFetch,
        body: Buffer | None,
        error: KafkaError | None,
    ) -> None:
        self._asking.pop(node, None)
        session = self._sessions.setdefault(node, FetchSession())
        now = asyncio.get_running_loop().time()
        try:
            if error is not None or body is None:
                session.failed()
                raise error or UnknownServerError("no answer")
            answer, _ = decode(FetchResponse, ask.version, body)
            connection.throttle(answer.throttle_time_ms)
            self._metrics.throttle_time.add(answer.throttle_time_ms / 1000)
            session.take(answer)
        except (KafkaError, ProtocolError) as failure:
            session.failed()
            log.debug("fetch from broker %d: %s", node, failure)
            self._client.request_refresh()
            for state, turn, _ in ask.states.values():
                if state.turn == turn:
                    self._back_off(state, now)
                    if state.replica == node:
                        state.replica = None
        else:
            self._metrics.fetch_latency.add(now - ask.sent)
            self._metrics.fetch_size.add(len(body))
            self._client.view.add_nodes(
                BrokerNode(entry.node_id, entry.host, entry.port, entry.rack)
                for entry in answer.node_endpoints
            )
            self._take_answer(node, ask, answer.responses, now)
        self.send()
        if self.ready:
            self._wake()  # once, after the next request was sent

    def _take_answer(
        self,
        node: int,
        ask: _InFlightFetch,
        topics: Iterable[FetchResponse.FetchableTopicResponse],
        now: float,
    ) -> None:
        for topic in topics:
            name = (
                topic.topic if ask.version <= LAST_VERSION_WITH_NAMES else ask.names.get(topic.topic_id, "")
            )
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                request_state = ask.states.get(partition)
                if request_state is None:
                    continue
                state, turn, offset = request_state
                if state.turn == turn and state.fetch_offset == offset:
                    self._take_partition(node, state, data, now)

    def _take_partition(
        self, node: int, state: PartitionState, data: FetchResponse.PartitionData, now: float
    ) -> None:
        if data.error_code:
            self._take_error(node, state, data, now)
            return
        if data.preferred_read_replica >= 0:
            if state.replica != data.preferred_read_replica:
                log.debug("%s is read from broker %d", state.name, data.preferred_read_replica)
            state.replica = data.preferred_read_replica
            state.replica_until = now + self._settings.metadata_max_age_ms / 1000
            return
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        records = data.records
        if not isinstance(records, bytes | bytearray | memoryview) or not len(records):
            return
        aborted: list[tuple[int, int]] | None = None
        if self._committed:
            entries = data.aborted_transactions or ()
            aborted = sorted((entry.first_offset, entry.producer_id) for entry in entries)
        reader = (self.reader_class or RecordReader)(
            records,
            state.name.topic,
            state.name.partition,
            state.fetch_offset,
            self._settings.check_crcs,
            aborted,
        )
        if reader.next_fetch < 0:
            if not reader.done:  # the bytes are no batch: reading them raises the error
                self._put(state, reader)
            return
        state.fetch_offset = max(state.fetch_offset, reader.next_fetch)
        self._put(state, reader)

    def _put(self, state: PartitionState, reader: RecordReader) -> None:
        state.fetched += 1
        self.ready.append(CompletedFetch(state, reader, state.turn, state.fetched))

    def _take_error(
        self, node: int, state: PartitionState, data: FetchResponse.PartitionData, now: float
    ) -> None:
        kind = error_class(data.error_code)
        topic, partition = state.name
        if kind is OffsetOutOfRange:
            self._out_of_range(node, state)
            return
        if issubclass(kind, ASK_AGAIN):
            if data.current_leader is not None and data.current_leader.leader_epoch >= 0:
                self._client.view.update_leader(
                    topic, partition, data.current_leader.leader_id, data.current_leader.leader_epoch
                )
            state.replica = None
            log.debug("%s: %s", state.name, kind())
            self._client.request_refresh()
            self._back_off(state, now)
            return
        self._back_off(state, now)
        if kind is TopicAuthorizationFailed or kind is CorruptMessage:
            self.errors.append(kind(f"{state.name} at offset {state.fetch_offset}: {kind()}"))
            self._wake()
        else:
            log.warning("%s at offset %d: %s", state.name, state.fetch_offset, kind())

    def _out_of_range(self, node: int, state: PartitionState) -> None:
        if state.replica == node:
            state.replica = None  # a follower may lag behind; the leader knows
            return
        if state.queued:
            return  # the waiting records come first; the request is repeated after them
        if self.reset_policy is None:
            self.errors.append(
                OffsetOutOfRange(
                    f"{state.name}: offset {state.fetch_offset} is not in the log, and "
                    "auto.offset.reset=none forbids to choose another; seek to one"
                )
            )
            state.retry_at = asyncio.get_running_loop().time() + 1.0
            self._wake()
            return
        policy = self._settings.auto_offset_reset
        log.warning(
            "%s: offset %d is not in the log; reading goes on from auto.offset.reset=%s",
            state.name, state.fetch_offset, policy,
        )  # fmt: skip
        state.seek_time(self.reset_policy())
        self._needs_position()

    def _back_off(self, state: PartitionState, now: float) -> None:
        state.retry_at = now + self._client.retry_backoff.delay(0)

    # Close

    async def close(self, timeout: float) -> None:
        """End the fetch sessions on brokers that are connected."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        ends: list[asyncio.Future[FetchResponse] | asyncio.Task[FetchResponse]] = []
        for node, session in self._sessions.items():
            if session.id and session.epoch > 0 and node not in self._asking:
                connection = self._client.connection_if_ready(node)
                if connection is not None and not connection.in_flight:
                    request = self._request()
                    request.max_wait_ms, request.min_bytes = 0, 0
                    session.close_into(request)
                    at_most = None if session.uses_ids else LAST_VERSION_WITH_NAMES
                    version = connection.version_for(FetchRequest, at_most=at_most)
                    ends.append(
                        asyncio.ensure_future(connection.call(request, FetchResponse, version=version))
                    )
        if ends:
            done, pending = await asyncio.wait(ends, timeout=min(timeout, 1.0))
            for task in pending:
                task.cancel()
            for task in done:
                task.exception()
