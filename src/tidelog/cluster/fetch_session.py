"""Fetch sessions: a consumer names its partitions once and later sends only what changed.

The cache is bounded; a new session takes the place of one that was idle for two minutes, or gets none,
in which case the client goes on with full fetches. Nothing here reads a log.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from tidelog.clock import Clock
from tidelog.errors import ErrorCode

# A session that was used within this time is not evicted for a newer one.
MIN_EVICTION_SECONDS = 120.0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
INVALID_SESSION_ID = 0

# Topics are named by name (below version 13) or by id.
PartitionKey = tuple[str | bytes, int]


class FetchPartition:
    """What a fetcher wants of one partition, and what it was last told of it."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "fetcher_log_start_offset",
        "high_watermark",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "name",
        "partition",
        "topic",
    )

    def __init__(
        self,
        topic: str | bytes,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        fetcher_log_start_offset: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.fetcher_log_start_offset = fetcher_log_start_offset
        self.high_watermark = -1
        self.log_start_offset = -1
        self.name: str | None = None  # of its topic, once it was found by its id

    @property
    def key(self) -> PartitionKey:
        return (self.topic, self.partition)

    def update(self, wanted: FetchPartition) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.fetcher_log_start_offset = wanted.fetcher_log_start_offset

    def is_news(self, error: int, high_watermark: int, log_start_offset: int, has_more: bool) -> bool:
        """Whether an incremental answer has to mention this partition; remembers what was told."""
        told = has_more or error != 0
        if high_watermark != self.high_watermark:
            self.high_watermark = high_watermark
            told = True
        if log_start_offset != self.log_start_offset:
            self.log_start_offset = log_start_offset
            told = True
        if error:
            # The error must be told again after it is over, whatever the watermark then is.
            self.high_watermark = -1
        return told


class FetchSession:
    __slots__ = ("created", "epoch", "last_used", "partitions", "privileged", "session_id", "uses_topic_ids")

    def __init__(self, session_id: int, privileged: bool, uses_topic_ids: bool, now: float) -> None:
        self.session_id = session_id
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.created = now
        self.last_used = now
        self.epoch = 1
        self.partitions: dict[PartitionKey, FetchPartition] = {}


class FetchContext:
    """How one Fetch request is to be read and answered."""

    __slots__ = ("error", "incremental", "partitions", "session")

    def __init__(
        self,
        partitions: list[FetchPartition],
        session: FetchSession | None = None,
        incremental: bool = False,
        error: int = 0,
    ) -> None:
        self.partitions = partitions
        self.session = session
        self.incremental = incremental
        self.error = error

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else INVALID_SESSION_ID

    def answered_with_data(self, partition: FetchPartition) -> None:
        """Move a partition behind the others, so that every partition gets its turn within the byte limit."""
        if self.incremental and self.session is not None:
            key = partition.key
            if key in self.session.partitions:
                del self.session.partitions[key]
                self.session.partitions[key] = partition


class FetchSessionCache:
    """The sessions of this broker."""

    def __init__(self, clock: Clock, max_sessions: int, rng: random.Random | None = None) -> None:
        self._clock = clock
        self._max_sessions = max_sessions
        self._random = rng or random.Random()
        # Least recently used first: a session that is used moves to the end.
        self._sessions: dict[int, FetchSession] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_cached(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def context(
        self,
        session_id: int,
        epoch: int,
        wanted: list[FetchPartition],
        forgotten: Iterable[PartitionKey],
        *,
        from_follower: bool = False,
        uses_topic_ids: bool = False,
    ) -> FetchContext:
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != INVALID_SESSION_ID:
                self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH:
                return FetchContext(wanted)
            return FetchContext(wanted, self._create(wanted, from_follower, uses_topic_ids))
        session = self._sessions.get(session_id)
        if session is None:
            return FetchContext([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return FetchContext([], error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchContext([], error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._continue(session, wanted, forgotten)

    def _continue(
        self, session: FetchSession, wanted: list[FetchPartition], forgotten: Iterable[PartitionKey]
    ) -> FetchContext:
        partitions = session.partitions
        for partition in wanted:
            known = partitions.get(partition.key)
            if known is None:
                partitions[partition.key] = partition
            else:
                known.update(partition)
        for key in forgotten:
            partitions.pop(key, None)
        session.epoch = 1 if session.epoch == 0x7FFFFFFF else session.epoch + 1
        session.last_used = self._clock.monotonic()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return FetchContext(list(partitions.values()), session, incremental=True)

    def _create(
        self, wanted: list[FetchPartition], privileged: bool, uses_topic_ids: bool
    ) -> FetchSession | None:
        now = self._clock.monotonic()
        if len(self._sessions) >= self._max_sessions and not self._make_room(len(wanted), privileged, now):
            return None
        session_id = 0
        while session_id == INVALID_SESSION_ID or session_id in self._sessions:
            session_id = self._random.randint(1, 0x7FFFFFFF)
        session = FetchSession(session_id, privileged, uses_topic_ids, now)
        session.partitions = {partition.key: partition for partition in wanted}
        self._sessions[session_id] = session
        return session

    def _make_room(self, size: int, privileged: bool, now: float) -> bool:
        """Evict the stalest session; a follower's, or a larger one, may also push out a lesser one."""
        if self._max_sessions <= 0:
            return False
        stalest = next(iter(self._sessions.values()))
        victim: FetchSession | None = stalest if now - stalest.last_used > MIN_EVICTION_SECONDS else None
        if victim is None:
            candidates = [s for s in self._sessions.values() if privileged or not s.privileged]
            lesser = min(
                candidates,
                key=lambda s: (s.privileged, len(s.partitions)),
                default=None,
            )
            if (
                lesser is not None
                and now - lesser.created > MIN_EVICTION_SECONDS
                and (lesser.privileged, len(lesser.partitions)) < (privileged, size)
            ):
                victim = lesser
        if victim is None:
            return False
        del self._sessions[victim.session_id]
        self.evictions += 1
        return True
