"""RemoteMarkers: writes transaction markers to partitions on any broker.

Kafka's counterpart is TransactionMarkerChannelManager. Markers for partitions of this broker go to
LocalMarkers, others to the leaders through a queue per broker. A queue has one WriteTxnMarkers request in
flight, with the markers of many transactions. A marker that cannot be written yet waits until its leader is
looked up again. A deleted partition needs no marker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from tidelog.clock import Scheduler, TimerHandle
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.transport import EndpointOf, Transport
from tidelog.coordinator.transaction.broker_link import BrokerLink
from tidelog.coordinator.transaction.markers import Marker, MarkerChannel, MarkerDone
from tidelog.errors import (
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    NetworkException,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
    UnsupportedForMessageFormat,
    UnsupportedVersion,
    error_class,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

log = logging.getLogger("tidelog.coordinator.transaction")

# The wait before the leaders of unwritten markers are looked up again.
RETRY_SECONDS = 0.1
# The most markers in a request. A new coordinator may have very many.
MARKERS_TOGETHER = 5000

# Kafka's coordinator looks up the leader again after these errors.
RETRIABLE = (
    KafkaStorageError,
    LeaderNotAvailable,
    NetworkException,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
# The partition has a message format without transactions, so it needs no marker.
NOT_NEEDED = (UnsupportedForMessageFormat, UnsupportedVersion)


class _Entry:
    """A marker for one partition."""

    __slots__ = ("done", "is_delayed", "key", "marker")

    def __init__(self, marker: Marker, key: PartitionKey, done: MarkerDone) -> None:
        self.marker = marker
        self.key = key
        self.done = done
        self.is_delayed = False  # whether its wait was logged


class RemoteMarkers:
    """Implements MarkerChannel."""

    def __init__(
        self,
        broker_id: int,
        local: MarkerChannel,
        metadata: MetadataCache,
        scheduler: Scheduler,
        transport: Transport,
        endpoint_of: EndpointOf,
        timeout_ms: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._local = local
        self._metadata = metadata
        self._scheduler = scheduler
        self._transport = transport
        self._endpoint_of = endpoint_of
        self._timeout_ms = timeout_ms
        # The number of unwritten markers of each caller. `cancel` removes the caller.
        self._unwritten: dict[MarkerDone, int] = {}
        self._queues: dict[int, _BrokerQueue] = {}
        # Markers that wait for the next lookup of their leaders.
        self._parked: list[_Entry] = []
        self._timer: TimerHandle | None = None

    def write(self, marker: Marker, partitions: Iterable[PartitionKey], done: MarkerDone) -> None:
        entries = [_Entry(marker, key, done) for key in partitions]
        if entries:
            self._unwritten[done] = self._unwritten.get(done, 0) + len(entries)
            self._route(entries)

    def cancel(self, done: MarkerDone) -> None:
        self._unwritten.pop(done, None)
        self._local.cancel(done)

    def close(self) -> None:
        """Drop all markers. The next coordinators write them."""
        self._unwritten.clear()
        self._parked.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in self._queues.values():
            queue.close()

    def is_wanted(self, entry: _Entry) -> bool:
        return entry.done in self._unwritten

    # -- leaders -----------------------------------------------------------------------------------

    def _route(self, entries: list[_Entry]) -> None:
        local: dict[tuple[Marker, MarkerDone], list[_Entry]] = {}
        for entry in entries:
            if not self.is_wanted(entry):
                continue
            try:
                leader = self._leader_of(entry.key)
            except LeaderNotAvailable as error:
                self._park(entry, error)
                continue
            if leader is None:
                log.info("%s-%d is gone and gets no marker", *entry.key)
                self._finish(entry, None)
            elif leader == self._broker_id:
                local.setdefault((entry.marker, entry.done), []).append(entry)
            else:
                self._queue(leader).add(entry)
        for (marker, _), of_marker in local.items():
            by_key = {entry.key: entry for entry in of_marker}
            self._local.write(
                marker,
                list(by_key),
                lambda key, error, by_key=by_key: self.answered(by_key[key], error),  # type: ignore[misc]
            )

    def _leader_of(self, key: PartitionKey) -> int | None:
        """The broker that leads a partition; None if the partition is deleted."""
        topic, index = key
        state = self._metadata.snapshot.partition(topic, index)
        if state is None:
            if self._metadata.is_initialized:
                return None
            raise LeaderNotAvailable(f"this broker does not know {topic}-{index} yet")
        if state.leader < 0:
            raise LeaderNotAvailable(f"{topic}-{index} has no leader")
        if state.leader != self._broker_id and self._endpoint_of(state.leader) is None:
            raise LeaderNotAvailable(f"the leader of {topic}-{index}, broker {state.leader}, is not alive")
        return state.leader

    def _queue(self, broker_id: int) -> _BrokerQueue:
        queue = self._queues.get(broker_id)
        if queue is None:
            link = BrokerLink(broker_id, self._endpoint_of, self._transport, self._timeout_ms)
            queue = self._queues[broker_id] = _BrokerQueue(self, link, self._scheduler)
        self._start_timer()
        return queue

    # -- outcomes ----------------------------------------------------------------------------------

    def answered(self, entry: _Entry, error: KafkaError | None) -> None:
        """Handle the result of a marker."""
        if isinstance(error, RETRIABLE):
            self._park(entry, error)
        else:
            self._finish(entry, None if isinstance(error, NOT_NEEDED) else error)

    def _finish(self, entry: _Entry, error: KafkaError | None) -> None:
        unwritten = self._unwritten.get(entry.done)
        if unwritten is None:
            return
        if unwritten == 1:
            del self._unwritten[entry.done]
        else:
            self._unwritten[entry.done] = unwritten - 1
        entry.done(entry.key, error)

    def _park(self, entry: _Entry, reason: KafkaError) -> None:
        if not self.is_wanted(entry):
            return
        if not entry.is_delayed:
            entry.is_delayed = True
            log.info("the marker for %s-%d is written later: %s", *entry.key, reason)
        self._parked.append(entry)
        self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self._scheduler.schedule(RETRY_SECONDS, self._look_again)

    def _look_again(self) -> None:
        """Look up the leaders of parked markers, and end requests to brokers that are gone."""
        self._timer = None
        parked, self._parked = self._parked, []
        self._route(parked)
        for queue in self._queues.values():
            queue.check_broker()
        if any(queue.is_busy for queue in self._queues.values()):
            self._start_timer()


class _BrokerQueue:
    """The markers for one broker, with one request in flight."""

    __slots__ = ("_link", "_markers", "_scheduler", "_task", "_waiting")

    def __init__(self, markers: RemoteMarkers, link: BrokerLink, scheduler: Scheduler) -> None:
        self._markers = markers
        self._link = link
        self._scheduler = scheduler
        self._waiting: list[_Entry] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def add(self, entry: _Entry) -> None:
        self._waiting.append(entry)
        if self._task is None:
            # The task begins after this turn of the loop, and so sends all markers of the turn together.
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    def check_broker(self) -> None:
        """If the broker is gone, fail the request in flight, so that its markers go to other leaders."""
        if self._task is not None and not self._link.is_alive:
            self._link.close(f"broker {self._link.broker_id} is gone")

    def close(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
        self._link.close("this broker stops")

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                entries = self._take()
                if not entries:
                    continue
                try:
                    answer = await self._link.call(_request(entries), WriteTxnMarkersResponse)
                    errors = _errors(answer)
                except Exception as error:
                    self._failed(entries, error)
                    await self._pause()
                    continue
                for entry in entries:
                    missing = NetworkException(f"broker {self._link.broker_id} did not answer it")
                    error_of_entry = errors.get((entry.marker.producer_id, *entry.key), missing)
                    self._markers.answered(entry, error_of_entry)
        finally:
            self._task = None

    def _take(self) -> list[_Entry]:
        """The next markers to send.

        Only one marker of each producer, because the answer has only producer ids.
        """
        entries: dict[int, list[_Entry]] = {}
        later: list[_Entry] = []
        for number, entry in enumerate(self._waiting):
            if not self._markers.is_wanted(entry):
                continue
            same = entries.setdefault(entry.marker.producer_id, [])
            if number >= MARKERS_TOGETHER or (same and same[0].marker != entry.marker):
                later.append(entry)
            else:
                same.append(entry)
        self._waiting = later
        return [entry for same in entries.values() for entry in same]

    def _failed(self, entries: list[_Entry], error: Exception) -> None:
        if not isinstance(error, KafkaError):
            log.exception("markers could not be sent to broker %d", self._link.broker_id)
        reason = NetworkException(f"broker {self._link.broker_id} cannot be reached: {error}")
        waiting, self._waiting = self._waiting, []
        for entry in entries + waiting:
            self._markers.answered(entry, reason)

    async def _pause(self) -> None:
        over = asyncio.Event()
        self._scheduler.schedule(RETRY_SECONDS, over.set)
        await over.wait()


def _request(entries: list[_Entry]) -> WriteTxnMarkersRequest:
    markers: dict[Marker, dict[str, list[int]]] = {}
    for entry in entries:
        topic, index = entry.key
        markers.setdefault(entry.marker, {}).setdefault(topic, []).append(index)
    return WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.commit,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
                topics=[
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in topics.items()
                ],
            )
            for marker, topics in markers.items()
        ]
    )


def _errors(answer: WriteTxnMarkersResponse) -> dict[tuple[int, str, int], KafkaError | None]:
    """The error of each marker, by producer id, topic and partition."""
    return {
        (marker.producer_id, topic.name, partition.partition_index): _error_of(partition.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for partition in topic.partitions
    }


def _error_of(code: int) -> KafkaError | None:
    return error_class(code)("the leader refused the marker") if code else None
