"""CommitWaits: small produces with acks=all that are written, and wait for the in-sync replicas.

The produces of one partition commit in the order of their offsets, so one operation of the produce purgatory
waits for all of them. A connection may have several waiting produces, to any partitions. Its responses are
sent in the order of its requests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from tidelog.clock import Clock
from tidelog.cluster.partition import Partition
from tidelog.cluster.purgatory import DelayedOperation
from tidelog.cluster.replica_manager import HostedTopic, ReplicaManager
from tidelog.errors import KafkaError, NotEnoughReplicasAfterAppend, NotLeaderOrFollower, RequestTimedOut
from tidelog.network.channel import Channel
from tidelog.network.request import FastRequest
from tidelog.records.check import CheckedBatch

MOST_PER_CHANNEL: Final = 64
"""A connection with so many produces that wait is read again when the next one is answered."""


SmallProduce = tuple[FastRequest, int, "str | bytes", HostedTopic, Partition, CheckedBatch, int]
"""The request, its acks, the topic as it was named, the topic, the partition, the batch, and the time-out."""

Refuse = Callable[[SmallProduce, Exception], None]


class CommitWait:
    """A produce whose response is not sent yet."""

    __slots__ = ("answer", "channel", "deadline", "error", "is_ready", "offset", "produce", "written_ns")

    def __init__(self, produce: SmallProduce, answer: bytes, offset: int, deadline: float) -> None:
        self.produce = produce
        self.channel: Channel = produce[0][0]
        self.answer = answer
        self.offset = offset  # the high watermark that commits the batch
        self.deadline = deadline
        self.error: Exception | None = None
        self.is_ready = False
        self.written_ns = perf_counter_ns()


class CommitWaits:
    def __init__(self, replicas: ReplicaManager, refuse: Refuse) -> None:
        self._replicas = replicas
        self._clock: Clock = replicas.clock
        self._refuse = refuse
        # The waiting responses of each connection. Later responses of the connection have to wait behind
        # them.
        self.channels: dict[Channel, deque[CommitWait]] = {}
        self._partitions: dict[Partition, DelayedCommits] = {}

    def is_full(self, channel: Channel) -> bool:
        return len(self.channels.get(channel, ())) >= MOST_PER_CHANNEL

    def wait(self, produce: SmallProduce, answer: bytes, next_offset: int) -> None:
        """Send the deferred response when the high watermark has reached `next_offset`."""
        _, _, _, _, partition, _, timeout_ms = produce
        wait = CommitWait(produce, answer, next_offset, self._clock.monotonic() + timeout_ms / 1000)
        self._put(wait)
        operation = self._partitions.get(partition)
        if operation is not None:
            operation.waits.append(wait)
            if wait.deadline < operation.deadline:
                self._expire_at(operation, wait.deadline)
        else:
            self._watch(partition, deque((wait,)), wait.deadline, max(0, timeout_ms))

    def wait_behind(self, produce: SmallProduce, answer: bytes, error: Exception | None) -> None:
        """Send a deferred response, or the error, after the waiting responses of the connection."""
        wait = CommitWait(produce, answer, 0, 0.0)
        wait.error = error
        self._put(wait)
        self.ready([wait])

    def hold(self, produce: SmallProduce) -> CommitWait:
        """Let the deferred response wait until `ready` is called with an answer or an error."""
        wait = CommitWait(produce, b"", 0, 0.0)
        self._put(wait)
        return wait

    def _put(self, wait: CommitWait) -> None:
        self.channels.setdefault(wait.channel, deque()).append(wait)

    def _watch(self, partition: Partition, waits: deque[CommitWait], deadline: float, wait_ms: int) -> None:
        """Wait for all of `waits`. The first of them times out at `deadline`, in `wait_ms`."""
        operation = self._partitions[partition] = DelayedCommits(self, partition, waits, deadline)
        key = (partition.topic, partition.index)
        purgatory = self._replicas.produce_purgatory
        log = partition.log
        if (
            log is not None
            and partition.is_leader
            and not partition.offline
            and log.high_watermark < waits[0].offset
        ):
            purgatory.watch(operation, (key,), wait_ms)  # as nearly always: the batch was just written
        else:
            purgatory.try_complete_else_watch(operation, (key,), wait_ms)

    def ended(self, operation: DelayedCommits) -> None:
        if self._partitions.get(operation.partition) is operation:
            del self._partitions[operation.partition]

    def expired(self, operation: DelayedCommits) -> None:
        """Answer the produces whose time is over. The others continue to wait in a new operation."""
        self.ended(operation)
        remaining = self._without_late(operation)
        operation.waits = deque()
        if remaining:
            deadline = min(wait.deadline for wait in remaining)
            wait_ms = max(0, math.ceil((deadline - self._clock.monotonic()) * 1000))
            self._watch(operation.partition, remaining, deadline, wait_ms)

    def _expire_at(self, operation: DelayedCommits, deadline: float) -> None:
        """Set a timer for a later produce with a shorter time-out than the first one."""
        operation.deadline = deadline

        def expire() -> None:
            if not operation.completed and operation.deadline == deadline:
                operation.waits = self._without_late(operation)
                if operation.waits:
                    self._expire_at(operation, min(wait.deadline for wait in operation.waits))
                else:
                    operation.deadline = math.inf

        self._replicas.scheduler.schedule(deadline - self._clock.monotonic(), expire)

    def _without_late(self, operation: DelayedCommits) -> deque[CommitWait]:
        """Answer the produces whose time is over; returns the others."""
        now = self._clock.monotonic()
        name = operation.partition.name
        expired = [wait for wait in operation.waits if wait.deadline <= now]
        remaining = deque(wait for wait in operation.waits if wait.deadline > now)
        for wait in expired:
            wait.error = RequestTimedOut(
                f"the replicas in sync of {name} did not reach offset {wait.offset} in time"
            )
        self.ready(expired)
        return remaining

    def ready(self, waits: list[CommitWait]) -> None:
        """Send the responses of these produces, each after the earlier responses of its connection."""
        channels: dict[Channel, None] = {}
        for wait in waits:
            wait.is_ready = True
            channels[wait.channel] = None
        for channel in channels:
            queue = self.channels[channel]
            while queue and queue[0].is_ready:
                self._send(channel, queue.popleft())
            if queue:
                channel.send_gathered()
            else:
                del self.channels[channel]

    def _send(self, channel: Channel, wait: CommitWait) -> None:
        fast_request = wait.produce[0]
        if wait.error is not None:
            self._refuse(wait.produce, wait.error)
        elif not wait.answer:
            channel.send_deferred(fast_request, wait.answer)
        else:
            request = channel.request_of(fast_request)
            request.local_end_ns = wait.written_ns
            channel.send_frame(request, wait.answer)


class DelayedCommits(DelayedOperation):
    """The produces of one partition that wait, in the order of their offsets."""

    __slots__ = ("_owner", "deadline", "partition", "waits")

    def __init__(
        self, owner: CommitWaits, partition: Partition, waits: deque[CommitWait], deadline: float
    ) -> None:
        super().__init__()
        self._owner = owner
        self.partition = partition
        self.waits = waits
        self.deadline = deadline  # the earliest of the waits

    def try_complete(self) -> bool:
        waits, partition = self.waits, self.partition
        try:
            high_watermark = partition.leader_log().high_watermark
        except KafkaError as error:
            self._fail(error)
            return self.force_complete()
        done: list[CommitWait] = []
        while waits and waits[0].offset <= high_watermark:
            done.append(waits.popleft())
        if done and partition.is_under_min_isr:
            for wait in done:
                wait.error = NotEnoughReplicasAfterAppend(
                    f"{partition.name} has {len(partition.isr)} replicas in sync by now"
                )
        if not waits:
            self._owner.ended(self)  # an answer may let the next produce come
        self._owner.ready(done)
        return not waits and self.force_complete()

    def on_expiration(self) -> None:
        self._owner.expired(self)

    def on_complete(self) -> None:
        if not self.waits:
            return  # all are answered
        # Ended by the shutdown: these batches may not be committed, and the producer has to retry.
        self._fail(NotLeaderOrFollower(f"this broker stops leading {self.partition.name}"))

    def _fail(self, error: KafkaError) -> None:
        self._owner.ended(self)
        failed = list(self.waits)
        self.waits.clear()
        for wait in failed:
            wait.error = error
        self._owner.ready(failed)
