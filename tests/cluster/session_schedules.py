"""Random lives of fetch sessions beside a model that looks at every partition each time.

A schedule appends, commits, deletes, elects and fails partitions and lets a consumer and followers fetch
in sessions. The model keeps what each session was told and reads all of its partitions for every answer; a
session that misses a change, or tells something twice, differs from it. The seed replays a schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tests.cluster.world import FOLLOWER, SELF, Fetched, World
from tests.storage.helpers import batch, marker
from tidelog.cluster.fetch import CONSUMER, FetchParams, is_enough
from tidelog.cluster.fetch_session import (
    FetchContext,
    FetchedPartition,
    FetchPartition,
    FetchSessionCache,
    PartitionKey,
    WantedPartition,
)
from tidelog.cluster.partition import Partition
from tidelog.storage.append import AppendOrigin

PARTITIONS = 6
REPLICATED = (4, 5)  # partitions of two brokers: their appends are committed later
EVERY = range(PARTITIONS + 1)  # the last is unknown
WAIT_MS = 500

Told = tuple[object, ...]


def told(answers: list[FetchedPartition]) -> list[Told]:
    """All that an answer says, in its order."""
    return [
        (
            answer.wanted.key,
            None if answer.error is None else type(answer.error).__name__,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
            None if answer.records is None else (answer.records.position, answer.records.size),
            answer.aborted,
            answer.diverging,
        )
        for answer in answers
    ]


class Model:
    """A session that looks at everything each time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.partitions: dict[PartitionKey, FetchPartition] = {}

    def change(self, wanted: list[FetchPartition], forgotten: list[PartitionKey]) -> None:
        for want in wanted:
            known = self.partitions.setdefault(want.key, want)
            known.update(want)
        for key in forgotten:
            self.partitions.pop(key, None)

    def read(
        self, params: FetchParams, leave_out: Collection[PartitionKey] = ()
    ) -> tuple[list[FetchedPartition], int]:
        wanted = [want for key, want in self.partitions.items() if key not in leave_out]
        return self._world.fetcher.read_all(wanted, params)

    def answer(self, params: FetchParams, incremental: bool) -> list[Told]:
        answers, _ = self.read(params)
        news = []
        for answer in answers:
            error = 0 if answer.error is None else answer.error.code
            has_more = answer.records is not None or answer.diverging is not None
            is_news = answer.wanted.is_news(error, answer.high_watermark, answer.log_start_offset, has_more)
            if is_news or not incremental:
                news.append(answer)
            if incremental and answer.records is not None:
                key = answer.wanted.key
                self.partitions[key] = self.partitions.pop(key)
        return told(news)


class Fetching:
    """A fetcher with one session, and the model of it."""

    def __init__(
        self, world: World, rng: random.Random, replica_id: int, indexes: Sequence[int] = EVERY
    ) -> None:
        self._world = world
        self._indexes = indexes
        self._random = rng
        self._replica_id = replica_id
        self._cache = FetchSessionCache(world.scheduler.clock, 10, rng)
        self._model = Model(world)
        self._session_id = 0
        self._epoch = 0
        self._isolation_level = 0
        self._params = FetchParams(0, 1, 1, 0)
        self._fetched: Fetched | None = None
        self._incremental = False
        self._unknown: set[PartitionKey] = set()
        self._deadline = 0.0
        self.answers = 0

    @property
    def waits(self) -> bool:
        return self._fetched is not None

    def fetch(self) -> None:
        rng = self._random
        wanted, forgotten = self._changes()
        if self._replica_id == CONSUMER and rng.random() < 0.1:
            self._isolation_level = 1 - self._isolation_level
        self._params = FetchParams(
            max_wait_ms=rng.choice((0, 0, WAIT_MS) if len(self._indexes) > 1 else (0, WAIT_MS, WAIT_MS)),
            min_bytes=rng.choice((1, 1, 1, 300)),
            max_bytes=rng.choice((1, 200, 500, 1 << 20, 1 << 20)),
            isolation_level=self._isolation_level,
            replica_id=self._replica_id,
        )
        context = self._context(wanted, forgotten)
        self._incremental = context.incremental
        answers, _ = self._model.read(self._params)
        self._unknown = {answer.wanted.key for answer in answers if answer.is_unknown}
        all_unknown = len(self._unknown) == len(answers)
        self._deadline = self._world.scheduler.clock.monotonic() + self._params.max_wait_ms / 1000
        self._fetched = Fetched()
        self._world.fetcher.fetch(context, self._params, self._fetched)
        self.check(at_once=all_unknown or self._params.max_wait_ms == 0)

    def _context(self, wanted: list[FetchPartition], forgotten: list[PartitionKey]) -> FetchContext:
        """A new session now and then, else the next request of the present one."""
        copies = [_copy(want) for want in wanted]
        if self._epoch == 0 or self._random.random() < 0.02:
            self._model = Model(self._world)
            self._model.change(copies, [])
            context = self._cache.context(self._session_id, 0, wanted, [])
            self._session_id, self._epoch = context.session_id, 1
            return context
        known = [want.key in self._model.partitions for want in wanted]
        self._model.change(copies, forgotten)
        following: FetchContext | None = None
        if len(wanted) <= 1 and not forgotten:
            named = _named(wanted[0]) if wanted else None
            following = self._cache.context_of_one(self._session_id, self._epoch, named, uses_topic_ids=False)
            is_next = all(known) and bool(self._model.partitions)
            assert (following is not None) == is_next, "the next fetch names a known partition or none"
        context = following or self._cache.context(self._session_id, self._epoch, wanted, forgotten)
        assert context.error == 0
        self._epoch += 1
        if not self._model.partitions:
            assert context.session_id == 0, "a session without partitions ends"
            self._epoch = 0
            self._model.change([_copy(want) for want in wanted], [])
        return context

    def _changes(self) -> tuple[list[FetchPartition], list[PartitionKey]]:
        rng = self._random
        wanted = []
        for index in rng.sample(self._indexes, min(len(self._indexes), rng.choice((0, 0, 1, 1, 2, 4)))):
            wanted.append(self._wanted(index))
        forgotten = [("t", index) for index in self._indexes if rng.random() < 0.05]
        return wanted, list(forgotten)

    def _wanted(self, index: int) -> FetchPartition:
        """Mostly from where the log ends, as a fetcher that keeps up asks; sometimes from anywhere."""
        rng = self._random
        offset = rng.randrange(4)
        hosted = self._world.replicas.topics.get("t")
        partition = hosted.partitions.get(index) if hosted is not None else None
        if partition is not None and partition.log is not None and rng.random() < 0.7:
            log = partition.log
            end = log.log_end_offset if self._replica_id >= 0 else log.high_watermark
            offset = log.last_stable_offset if self._isolation_level else end
        epoch = rng.choice((-1, -1, -1, 0, 1))
        last_fetched_epoch = rng.choice((-1, -1, -1, 0))
        return FetchPartition("t", index, offset, rng.choice((100, 1 << 20)), epoch, last_fetched_epoch)

    def check(self, at_once: bool = False) -> None:
        """Whether the fetch is answered exactly when the model would, and with the same."""
        fetched = self._fetched
        if fetched is None:
            return
        answers, total = self._model.read(self._params, self._unknown)
        is_due = (
            at_once
            or self._world.scheduler.clock.monotonic() >= self._deadline
            or is_enough(answers, total, self._params)
            or any(answer.is_unknown for answer in answers)
        )
        assert fetched.answered == is_due, f"answered: {fetched.answered}, the model says {is_due}"
        if is_due:
            assert fetched.answers is not None
            assert told(fetched.answers) == self._model.answer(self._params, self._incremental)
            self._fetched = None
            self.answers += 1


def _named(want: FetchPartition) -> WantedPartition:
    return (
        want.topic,
        want.partition,
        want.current_leader_epoch,
        want.fetch_offset,
        want.last_fetched_epoch,
        want.fetcher_log_start_offset,
        want.max_bytes,
    )


def _copy(want: FetchPartition) -> FetchPartition:
    copied = FetchPartition(want.topic, want.partition, want.fetch_offset, want.max_bytes)
    copied.update(want)
    return copied


class Schedule:
    """One life of a broker with a consumer and followers, by seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.world = World(folder)
        self.random = random.Random(seed)
        self._epochs = [0] * PARTITIONS
        self._sequences = [0] * PARTITIONS
        self._open: set[int] = set()  # partitions with a transaction
        # A new leader answers the fetches of its followers early. The model does not know that.
        self.world.replicas.awaited_followers.on_awaited = None
        for index in range(PARTITIONS):
            self._lead(index)
        self.fetchers = [
            Fetching(self.world, self.random, CONSUMER),
            Fetching(self.world, self.random, FOLLOWER),
            # Sessions with news of a single partition, as most fetches of followers have.
            Fetching(self.world, self.random, FOLLOWER, REPLICATED[:1]),
            Fetching(self.world, self.random, FOLLOWER, REPLICATED[:1]),
        ]

    def run(self, steps: int) -> int:
        """How many answers agreed with the model; AssertionError for the first that does not."""
        events: list[tuple[int, Callable[[], None]]] = [
            (30, self._fetch),
            (20, self._append),
            (8, self._follower_fetched),
            (4, self._transaction),
            (3, self._delete_records),
            (2, self._elect),
            (2, self._fail),
            (2, self._delete),
            (3, self._let_time_pass),
        ]
        weights = [weight for weight, _ in events]
        for _ in range(steps):
            (_, event), *_ = self.random.choices(events, weights)
            event()
            self.world.advance()  # followers are woken at the end of a turn
            for fetcher in self.fetchers:
                fetcher.check()
        return sum(fetcher.answers for fetcher in self.fetchers)

    def _fetch(self) -> None:
        ready = [fetcher for fetcher in self.fetchers if not fetcher.waits]
        if ready:
            self.random.choice(ready).fetch()

    def _lead(self, index: int) -> None:
        replicas = (SELF, FOLLOWER) if index in REPLICATED else (SELF,)
        self.world.partition("t", index, replicas=replicas, leader_epoch=self._epochs[index])
        self.world.replicas.awaited_followers.partitions.clear()

    def _any(self) -> Partition | None:
        hosted = self.world.replicas.topics.get("t")
        served = [p for p in hosted.partitions.values() if not p.offline] if hosted is not None else []
        return self.random.choice(served) if served else None

    def _append(self) -> None:
        partition = self._any()
        if partition is not None:
            self.world.produce(partition, batch(self.random.randrange(1, 3)), acks=1)

    def _follower_fetched(self) -> None:
        partition = self._any()
        if partition is not None and partition.followers.replicas:
            assert partition.log is not None
            end = partition.log.log_end_offset
            self.world.follower_has(partition, self.random.choice((end, end // 2)))

    def _transaction(self) -> None:
        """Begin one, or end the one that is open, in the first partitions."""
        partition = self._any()
        if partition is None or partition.index > 1:
            return
        index, producer = partition.index, 100 + partition.index
        if index in self._open:
            ended = marker(producer, commit=self.random.random() < 0.5)
            self.world.produce(partition, ended, origin=AppendOrigin.COORDINATOR)
            self._open.remove(index)
        else:
            begun = batch(producer=(producer, 0, self._sequences[index]), transactional=True)
            assert self.world.produce(partition, begun, acks=1).error is None
            self._sequences[index] += 1
            self._open.add(index)

    def _delete_records(self) -> None:
        partition = self._any()
        if partition is not None:
            assert partition.log is not None
            if partition.log.high_watermark:
                offset = self.random.randrange(partition.log.high_watermark + 1)
                self.world.delete_records({("t", partition.index): offset}, timeout_ms=0)

    def _elect(self) -> None:
        partition = self._any()
        if partition is not None:
            self._epochs[partition.index] += 1
            self._lead(partition.index)

    def _fail(self) -> None:
        """A partition goes offline, or those that are come back."""
        hosted = self.world.replicas.topics.get("t")
        offline = [p.index for p in hosted.partitions.values() if p.offline] if hosted is not None else []
        if offline:
            for index in offline:
                self._lead(index)
            return
        partition = self._any()
        if partition is not None:
            self.world.replicas.partitions_offline([("t", partition.index)])

    def _delete(self) -> None:
        """A partition is deleted, or those that were are made anew."""
        hosted = self.world.replicas.topics.get("t")
        present = set(hosted.partitions) if hosted is not None else set()
        missing = set(range(PARTITIONS)) - present
        if missing:
            for index in sorted(missing):
                self._epochs[index] = 0
                self._sequences[index] = 0
                self._open.discard(index)
                self._lead(index)
            return
        self.world.replicas.delete_partition("t", self.random.choice(sorted(present)))

    def _let_time_pass(self) -> None:
        self.world.advance(self.random.choice((0.1, 0.6)))

    def close(self) -> None:
        self.world.close()
