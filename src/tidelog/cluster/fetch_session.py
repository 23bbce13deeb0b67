"""Fetch sessions (KIP-227): a fetcher names its partitions once and later sends only changes.

The cost of a fetch depends on the partitions that change, not on all of the session. A session watches its
partitions; one that changes becomes *dirty*, and a fetch reads only dirty partitions. A partition stays dirty
until an answer has included its changes and no records are left after the fetch offset. Every partition that
is not dirty is watched. Nothing here reads a log.

A session belongs to the principal that made it: for others it does not exist. Kafka lets everybody go on with
it who knows its number and epoch, and end it who knows its number.

The cache is bounded: a new session evicts one that was idle for two minutes. If there is none, the client
gets no session and sends full fetches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from operator import attrgetter

from tidelog.clock import Clock
from tidelog.cluster.followers import Replica
from tidelog.cluster.partition import Partition
from tidelog.errors import ErrorCode, KafkaError, UnknownTopicId, UnknownTopicOrPartition
from tidelog.storage.file_slice import FileSlice

# A session that was used within this time is not evicted for a newer one.
MIN_EVICTION_SECONDS = 120.0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
INVALID_SESSION_ID = 0

# A topic is identified by its name (below version 13) or by its id.
PartitionKey = tuple[str | bytes, int]

WantedPartition = tuple[str | bytes, int, int, int, int, int, int]
"""A partition as a fetch names it: topic name or id, partition, leader epoch, fetch offset, last fetched
epoch, log start offset of the fetcher, most bytes.
"""


class FetchPartition:
    """The request of a fetcher for one partition, and its last answer."""

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
        "replica",
        "session",
        "topic",
        "turn",
        "watched",
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
        self.name: str | None = None  # of the topic, once it was found by its id
        self.turn = 0  # its position in the order of the session
        self.watched: Partition | None = None
        self.session: FetchSession | None = None  # set while it is watched
        self.replica: Replica | None = None  # of the follower that fetches

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
        """Note the values of an answer; returns whether an incremental answer includes the partition."""
        is_news = has_more or error != 0
        if high_watermark != self.high_watermark:
            self.high_watermark = high_watermark
            is_news = True
        if log_start_offset != self.log_start_offset:
            self.log_start_offset = log_start_offset
            is_news = True
        if error:
            # Forces the first answer after the error to include the partition.
            self.high_watermark = -1
        return is_news

    def is_like(self, other: FetchPartition) -> bool:
        """Whether both requests ask for the same bytes of the partition."""
        return self.fetch_offset == other.fetch_offset and self.max_bytes == other.max_bytes

    # -- watching

    def watch(self, partition: Partition, session: FetchSession) -> None:
        """Let the partition call `changed` once, when readers would see something new."""
        if self.watched is not partition:
            self.unwatch()
            self.watched = partition
            self.session = session
        if session.reads_to_log_end:
            partition.end_watchers[self] = None
        else:
            partition.watchers[self] = None

    def unwatch(self) -> None:
        partition = self.watched
        if partition is not None:
            self.watched = self.session = None
            partition.watchers.pop(self, None)
            partition.end_watchers.pop(self, None)

    def changed(self) -> None:
        session = self.session
        if session is not None:
            self._mark(session)
            if session.wake is not None:
                session.wake()

    def include_next(self) -> None:
        """Let the next fetch of a follower include the partition; a fetch that waits goes on waiting."""
        if self.session is not None:
            self._mark(self.session)

    def _mark(self, session: FetchSession) -> None:
        if self not in session.dirty:
            session.dirty[self] = None
            if self.replica is not None:
                # A clean partition has no unread records: the follower had the whole log at each fetch until
                # now.
                self.replica.caught_up_at(session.last_used)


class FetchedPartition:
    """The answer of a Fetch for one partition."""

    __slots__ = (
        "aborted",
        "behind_active_segment",
        "diverging",
        "error",
        "has_more",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "preferred_replica",
        "records",
        "source",
        "wanted",
    )

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.source: Partition | None = None
        self.error: KafkaError | None = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.records: FileSlice | None = None
        self.aborted: list[tuple[int, int]] | None = None
        self.diverging: tuple[int, int] | None = None
        self.preferred_replica = -1  # the broker that the consumer should read from
        # Whether the partition has records after the fetch offset, even if byte limits left them out.
        self.has_more = False
        # A read returns batches of one segment. Records that come later are in another one: waiting adds
        # none.
        self.behind_active_segment = False

    @property
    def is_read(self) -> bool:
        """Whether the fetcher has read all records, so that its session need not read the partition again.

        False for a follower outside of the ISR, and until a fetch of the follower has told the leader its log
        end offset: both have to be looked at in each fetch.
        """
        if self.error is not None or self.is_redirected or self.has_more:
            return False
        replica, source = self.wanted.replica, self.source
        if replica is None or source is None:
            return True
        is_known = replica.log_end_offset == self.wanted.fetch_offset
        return is_known and replica.broker_id in source.followers.isr and not self.is_overtaken

    @property
    def is_overtaken(self) -> bool:
        """Whether records came after the read for a follower.

        The follower's fetch may commit records of a coordinator, which then appends further ones.
        """
        source = self.source
        if self.wanted.replica is None or source is None or source.log is None:
            return False
        return source.log.log_end_offset > self.wanted.fetch_offset

    @property
    def is_redirected(self) -> bool:
        """Whether the fetcher has to do something else before it gets records."""
        return self.diverging is not None or self.preferred_replica >= 0

    @property
    def is_unknown(self) -> bool:
        """Whether the partition is unknown. It may be created, so the fetch may wait for others."""
        return isinstance(self.error, UnknownTopicOrPartition | UnknownTopicId)


BY_TURN: Callable[[FetchPartition], int] = attrgetter("turn")


class FetchSession:
    """The partitions of a fetcher. A full fetch without a session uses one until its answer."""

    __slots__ = (
        "_isolation_level",
        "_turns",
        "access",
        "closed",
        "created",
        "dirty",
        "epoch",
        "last_used",
        "partitions",
        "principal",
        "privileged",
        "reads_to_log_end",
        "session_id",
        "uses_topic_ids",
        "wake",
    )

    def __init__(
        self,
        session_id: int,
        wanted: Iterable[FetchPartition],
        *,
        principal: str = "",
        privileged: bool = False,
        uses_topic_ids: bool = False,
        now: float = 0.0,
    ) -> None:
        self.session_id = session_id
        self.principal = principal
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.created = now
        self.last_used = now
        self.epoch = 1
        self.closed = False
        self.partitions: dict[PartitionKey, FetchPartition] = {}
        self.dirty: dict[FetchPartition, None] = {}
        # Called when a partition changes while a fetch waits.
        self.wake: Callable[[], object] | None = None
        self.reads_to_log_end = False
        self._isolation_level = -1
        self._turns = 0
        # The generation of the access rules and the connection of the last fetch that was checked.
        self.access: tuple[int | None, str] | None = None
        for partition in wanted:
            self.want(partition)

    def want(self, wanted: FetchPartition) -> None:
        """Add a partition, or update its request at its present position."""
        known = self.partitions.get(wanted.key)
        if known is None:
            self.partitions[wanted.key] = known = wanted
            self.to_the_end(known)
        else:
            known.update(wanted)
        self.dirty[known] = None

    def forget(self, key: PartitionKey) -> None:
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.dirty.pop(partition, None)
            partition.unwatch()

    def to_the_end(self, partition: FetchPartition) -> None:
        """Move a partition to the end, so that each partition gets its turn within the byte limit."""
        self._turns += 1
        partition.turn = self._turns

    def read_as(self, isolation_level: int, reads_to_log_end: bool) -> None:
        """Set how the next fetch reads. If that changes, every partition may have something new."""
        if isolation_level != self._isolation_level or reads_to_log_end != self.reads_to_log_end:
            self._isolation_level = isolation_level
            self.reads_to_log_end = reads_to_log_end
            self.unwatch()
            self.dirty = dict.fromkeys(self.partitions.values())

    def check_all(self, generation: int | None, connection_id: str) -> None:
        """Let the next fetch check every partition if the access rules or the connection have changed.

        Without this, a partition without news would not be checked before its records are sent.
        """
        access = (generation, connection_id)
        if generation is None or access != self.access:
            self.access = access
            self.dirty.update(dict.fromkeys(self.partitions.values()))

    def unwatch(self) -> None:
        for partition in self.partitions.values():
            partition.unwatch()

    def stop_waiting(self) -> None:
        self.wake = None
        if self.session_id == INVALID_SESSION_ID:
            self.unwatch()

    def close(self) -> None:
        """The cache evicted the session: stop watching, and answer a waiting fetch."""
        self.closed = True
        self.unwatch()
        self.dirty = dict.fromkeys(self.partitions.values())
        if self.wake is not None:
            self.wake()


class FetchContext:
    """How a Fetch request is read and answered."""

    __slots__ = ("epoch", "error", "incremental", "session")

    def __init__(self, session: FetchSession, incremental: bool = False, error: int = 0) -> None:
        self.session = session
        self.epoch = session.epoch
        self.incremental = incremental
        self.error = error

    @property
    def session_id(self) -> int:
        return self.session.session_id

    @property
    def due_count(self) -> int:
        return len(self.session.dirty if self.incremental else self.session.partitions)

    def due(self) -> list[FetchPartition]:
        """The partitions to read, in order."""
        if not self.incremental:
            return list(self.session.partitions.values())
        dirty = self.session.dirty
        return sorted(dirty, key=BY_TURN) if len(dirty) > 1 else list(dirty)

    def select(self, answers: list[FetchedPartition]) -> list[FetchedPartition]:
        """The answers to send: for an incremental fetch those with changes, otherwise all.

        A partition without more changes becomes clean. If a later request of the session came meanwhile, an
        incremental fetch gets the error INVALID_FETCH_SESSION_EPOCH.
        """
        session = self.session
        if session.epoch != self.epoch:
            if not self.incremental:
                return answers
            self.error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return []
        if session.session_id == INVALID_SESSION_ID:
            return answers
        incremental = self.incremental
        selected: list[FetchedPartition] = []
        for answer in answers:
            wanted = answer.wanted
            error = answer.error
            has_records = answer.records is not None
            is_news = wanted.is_news(
                0 if error is None else error.code,
                answer.high_watermark,
                answer.log_start_offset,
                has_records or answer.is_redirected,
            )
            if is_news or not incremental:
                selected.append(answer)
                if has_records and incremental:
                    session.to_the_end(wanted)
            if not answer.has_more and answer.is_read and not session.closed:
                assert answer.source is not None
                wanted.watch(answer.source, session)
                session.dirty.pop(wanted, None)
        return selected


class FetchSessionCache:
    """The sessions of this broker."""

    def __init__(self, clock: Clock, max_sessions: int, rng: random.Random | None = None) -> None:
        """`rng` chooses the session ids. No client should be able to guess an id."""
        self._clock = clock
        self._max_sessions = max_sessions
        self._random = rng or random.SystemRandom()
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
        principal: str = "",
        from_follower: bool = False,
        uses_topic_ids: bool = False,
    ) -> FetchContext:
        session = self._sessions.get(session_id)
        if session is not None and session.principal != principal:
            session = None
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._drop(session_id)
            if epoch == FINAL_EPOCH:
                return FetchContext(FetchSession(INVALID_SESSION_ID, wanted))
            return FetchContext(self._create(wanted, principal, from_follower, uses_topic_ids))
        if session is None:
            return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return _refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return _refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._continue(session, wanted, forgotten)

    def context_of_one(
        self,
        session_id: int,
        epoch: int,
        wanted: WantedPartition | None,
        *,
        principal: str = "",
        uses_topic_ids: bool,
    ) -> FetchContext | None:
        """`context` for the two usual fetches: of one partition without a session, and the next fetch of a
        session that names one of its partitions or none.

        Returns None and changes nothing for any other fetch, which is for `context`.
        """
        if epoch == FINAL_EPOCH and session_id == INVALID_SESSION_ID and wanted is not None:
            topic, index, leader_epoch, offset, last_epoch, log_start, max_bytes = wanted
            only = FetchPartition(topic, index, offset, max_bytes, leader_epoch, last_epoch, log_start)
            return FetchContext(FetchSession(INVALID_SESSION_ID, (only,)))
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or session.uses_topic_ids != uses_topic_ids:
            return None
        if session.principal != principal or not session.partitions:
            return None  # it is of another client, or it ends
        if wanted is not None:
            known = session.partitions.get(wanted[:2])
            if known is None:
                return None
            (
                _,
                _,
                known.current_leader_epoch,
                known.fetch_offset,
                known.last_fetched_epoch,
                known.fetcher_log_start_offset,
                known.max_bytes,
            ) = wanted
            session.dirty[known] = None
        return self._next(session)

    def _continue(
        self, session: FetchSession, wanted: list[FetchPartition], forgotten: Iterable[PartitionKey]
    ) -> FetchContext:
        for partition in wanted:
            session.want(partition)
        for key in forgotten:
            session.forget(key)
        if not session.partitions:
            self._drop(session.session_id)
            return FetchContext(FetchSession(INVALID_SESSION_ID, wanted))
        return self._next(session)

    def _next(self, session: FetchSession) -> FetchContext:
        session.epoch = 1 if session.epoch == 0x7FFFFFFF else session.epoch + 1
        session.last_used = self._clock.monotonic()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return FetchContext(session, incremental=True)

    def _create(
        self, wanted: list[FetchPartition], principal: str, privileged: bool, uses_topic_ids: bool
    ) -> FetchSession:
        """A new session; one without an id (INVALID_SESSION_ID) if the cache has no room."""
        now = self._clock.monotonic()
        if len(self._sessions) >= self._max_sessions and not self._make_room(len(wanted), privileged, now):
            return FetchSession(INVALID_SESSION_ID, wanted)
        session_id = 0
        while session_id == INVALID_SESSION_ID or session_id in self._sessions:
            session_id = self._random.randint(1, 0x7FFFFFFF)
        session = FetchSession(
            session_id,
            wanted,
            principal=principal,
            privileged=privileged,
            uses_topic_ids=uses_topic_ids,
            now=now,
        )
        self._sessions[session_id] = session
        return session

    def throttled(self, context: FetchContext, answers: Iterable[FetchedPartition]) -> None:
        """Let the next fetch include these answers again: the fetcher is over its quota and did not get them.

        As in Kafka, the session of a full fetch ends, because the fetcher does not know its id.
        """
        session = context.session
        if not context.incremental:
            self._drop(session.session_id)
        elif not context.error:
            for answer in answers:
                answer.wanted.high_watermark = -1
                session.dirty[answer.wanted] = None

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _make_room(self, size: int, privileged: bool, now: float) -> bool:
        """Evict the stalest session; a follower's or a larger session may also evict a smaller one."""
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
        self._drop(victim.session_id)
        self.evictions += 1
        return True


def _refused(error: int) -> FetchContext:
    return FetchContext(FetchSession(INVALID_SESSION_ID, ()), error=error)
