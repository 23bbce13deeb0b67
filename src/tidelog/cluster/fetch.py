"""Fetcher: answers Fetch requests within their byte limits, now or when `min_bytes` are there.

A consumer reads up to the high watermark or the last stable offset, a follower up to the log end offset. With
a replica selector the leader sends a consumer to a follower in its rack.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidelog.cluster.fetch_session import FetchContext, FetchedPartition, FetchPartition, FetchSession
from tidelog.cluster.followers import Replica
from tidelog.cluster.partition import Partition
from tidelog.cluster.purgatory import DelayedOperation, OnFailure
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.cluster.replica_selector import ReplicaSelector, ReplicaView
from tidelog.cluster.replication_quota import ReplicationQuota
from tidelog.errors import (
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicId,
)
from tidelog.slices import Slices
from tidelog.storage.log import Log
from tidelog.storage.reads import CACHED, CachedReads, NotCached, bring_in

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
CONSUMER = -1  # the replica id of consumers; other negative ids are consumers, too


@dataclass(slots=True)
class FetchParams:
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    replica_id: int = CONSUMER
    replica_epoch: int = -1  # the broker epoch of a follower
    client_rack: str | None = None  # None before version 11, whose consumers read from leaders alone
    listener: str = ""
    # Whether the fetcher is a follower, which reads uncommitted records up to the log end.
    reads_to_log_end: bool = field(init=False)
    # Whether a broker that does not lead the partition has to refuse the fetch.
    reads_from_leader: bool = field(init=False)

    def __post_init__(self) -> None:
        self.reads_to_log_end = self.replica_id >= 0
        is_old_consumer = self.replica_id == CONSUMER and self.client_rack is None
        self.reads_from_leader = self.reads_to_log_end or is_old_consumer


def read_partition(
    partition: Partition,
    wanted: FetchPartition,
    max_bytes: int,
    params: FetchParams,
    min_one: bool,
    reads: CachedReads,
) -> FetchedPartition:
    """Read one partition. Raises the KafkaError for the answer, or NotCached."""
    log = partition.local_log(wanted.current_leader_epoch, only_leader=params.reads_from_leader)
    wanted.replica = None
    if params.reads_to_log_end:
        epoch = wanted.current_leader_epoch
        wanted.replica = partition.follower(params.replica_id, epoch, params.replica_epoch)
    answer = FetchedPartition(wanted)
    answer.source = partition
    answer.high_watermark = high_watermark = log.high_watermark
    answer.last_stable_offset = last_stable_offset = log.last_stable_offset
    answer.log_start_offset = log.log_start_offset
    fetch_offset, last_fetched_epoch, log_end_offset = (
        wanted.fetch_offset,
        wanted.last_fetched_epoch,
        log.log_end_offset,
    )
    if last_fetched_epoch >= 0 and (
        last_fetched_epoch != log.leader_epochs.latest or fetch_offset > log_end_offset
    ):
        answer.diverging = _diverging_epoch(partition, log, wanted)
        if answer.diverging is not None:
            return answer
    if params.reads_to_log_end:
        limit = log_end_offset
        if fetch_offset == limit and params.isolation_level == READ_UNCOMMITTED:
            return answer  # the follower has the whole log
    else:
        limit = last_stable_offset if params.isolation_level == READ_COMMITTED else high_watermark
        if fetch_offset > log_end_offset and not partition.is_leader and not params.client_rack:
            # A consumer with old metadata took this follower for the leader, whose log goes further. Kafka's
            # error, OFFSET_OUT_OF_RANGE, would reset a consumer that sends no leader epoch.
            raise NotLeaderOrFollower(f"{partition.name}: this follower's log ends at {log_end_offset}")
    read = log.read(fetch_offset, max_bytes, max_offset=limit, min_one_message=min_one, reads=reads)
    answer.has_more = fetch_offset < limit
    answer.records = read.slice
    answer.behind_active_segment = read.segment is not None and read.segment is not log.active_segment
    if params.isolation_level == READ_COMMITTED:
        answer.aborted = (
            []
            if answer.records is None
            else [
                (transaction.producer_id, transaction.first_offset)
                for transaction in log.aborted_transactions(fetch_offset, log.upper_bound(read, reads), reads)
            ]
        )
    return answer


def _diverging_epoch(partition: Partition, log: Log, wanted: FetchPartition) -> tuple[int, int] | None:
    """The end of the last common epoch, if the fetcher's log diverges from this log, else None."""
    epoch, end_offset = log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise OffsetOutOfRange(
            f"{partition.name} has no end offset for the epoch {wanted.last_fetched_epoch} last fetched"
        )
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None


Followed = tuple[FetchPartition, Partition, Log, Replica]
"""A partition of a follower's session, with its log and the state of the follower."""

Unknown = Mapping[FetchPartition, FetchedPartition]
"""Partitions that this broker does not have or that the client may not read, with their answers."""

NONE_UNKNOWN: Final[Unknown] = {}


class Fetcher:
    """Serves Fetch requests from the partitions of this broker."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self.leader_quota = ReplicationQuota(replicas.clock)
        self.selector: ReplicaSelector | None = None  # None: consumers read from leaders
        self._followers = replicas.follower_fetches

    def read_all(
        self,
        wanted: list[FetchPartition],
        params: FetchParams,
        reads: CachedReads = CACHED,
        known_unknown: Unknown = NONE_UNKNOWN,
        *,
        is_new: bool = False,
    ) -> tuple[list[FetchedPartition], int]:
        """Read all partitions once; returns the answers and the number of bytes of their records.

        The first read of a request (`is_new`) says how far a follower's log goes. Unknown partitions come
        last, as in Kafka; those in `known_unknown` are not searched again. NotCached with all ranges that
        have to be read from the disk first.
        """
        replicas = self._replicas
        answers: list[FetchedPartition] = []
        unknown: list[FetchedPartition] = []
        left = params.max_bytes
        total = 0
        min_one = True
        cold: list[NotCached] = []
        for want in wanted:
            if want in known_unknown:
                unknown.append(known_unknown[want])
                continue
            try:
                partition = replicas.partition(want.topic, want.partition)
                want.name = partition.topic
                if self.selector is not None and len(partition.replicas) > 1:
                    nearby = self._nearby(self.selector, partition, want, params)
                    if nearby is not None:
                        answers.append(nearby)
                        continue
                most = want.max_bytes if want.max_bytes < left else left
                answer = read_partition(partition, want, most, params, min_one, reads)
                if want.replica is not None and answer.diverging is None:
                    if is_new:
                        self._follower_fetched(partition, want.replica, answer, params.replica_epoch)
                    quota = self.leader_quota
                    if quota.limit is not None and quota.holds_back(partition, want.replica.broker_id):
                        answer.records = None
                        answer.behind_active_segment = False
            except NotCached as missing:
                cold.append(missing)
                continue
            except KafkaError as error:
                answer = self._failed(want, error)
            except OSError as error:
                answer = FetchedPartition(want)
                answer.error = KafkaStorageError(str(error))
            if answer.records is not None:
                size = answer.records.size
                total += size
                left = left - size if left > size else 0
                min_one = False
            elif answer.error is not None and answer.is_unknown:
                unknown.append(answer)
                continue
            answers.append(answer)
        if cold:
            raise NotCached(*(missing for found in cold for missing in found.missing))
        return answers + unknown if unknown else answers, total

    def _follower_fetched(
        self, partition: Partition, replica: Replica, answer: FetchedPartition, epoch: int
    ) -> None:
        log = partition.log
        assert log is not None
        self._replicas.follower_fetched(partition, replica, answer.wanted, log.log_end_offset, epoch)
        answer.high_watermark, answer.last_stable_offset = log.high_watermark, log.last_stable_offset

    def _nearby(
        self, selector: ReplicaSelector, partition: Partition, want: FetchPartition, params: FetchParams
    ) -> FetchedPartition | None:
        """An answer that sends a consumer to a follower near it; None if it should read here."""
        rack = params.client_rack
        if rack is None or params.replica_id >= 0 or not partition.is_leader:
            return None
        log = partition.local_log(want.current_leader_epoch, only_leader=True)
        leader, followers = self._views(partition, log, want.fetch_offset, params.listener)
        selected = selector.select(rack, leader, followers)
        if selected is leader:
            return None
        answer = FetchedPartition(want)
        answer.source = partition
        answer.preferred_replica = selected.broker_id
        answer.high_watermark, answer.last_stable_offset = log.high_watermark, log.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        return answer

    def _views(
        self, partition: Partition, log: Log, offset: int, listener: str
    ) -> tuple[ReplicaView, list[ReplicaView]]:
        """The leader, and the followers in sync that have this offset and that the client can reach."""
        metadata = self._replicas.metadata
        brokers = {} if metadata is None else metadata.snapshot.brokers
        now = self._replicas.clock.monotonic()
        own = brokers.get(partition.broker_id)
        leader = ReplicaView(partition.broker_id, None if own is None else own.rack, log.log_end_offset, 0.0)
        followers = []
        for replica in partition.followers.replicas.values():
            broker = brokers.get(replica.broker_id)
            if (
                broker is not None
                and broker.endpoint(listener) is not None
                and replica.broker_id in partition.followers.isr
                and replica.log_start_offset <= offset <= replica.log_end_offset
            ):
                behind = now - replica.last_caught_up
                followers.append(ReplicaView(replica.broker_id, broker.rack, replica.log_end_offset, behind))
        return leader, followers

    def unknown_of(self, wanted: list[FetchPartition]) -> Slices[Unknown]:
        """Find the partitions that this broker does not have, in slices; returns the answer for each."""
        found: dict[FetchPartition, FetchedPartition] = {}
        for want in wanted:
            try:
                self._replicas.partition(want.topic, want.partition)
            except KafkaError as error:
                answer = self._failed(want, error)
                if answer.is_unknown:
                    found[want] = answer
            yield
        return found

    def _failed(self, want: FetchPartition, error: KafkaError) -> FetchedPartition:
        answer = FetchedPartition(want)
        answer.error = self._gone(want) if isinstance(error, UnknownTopicId) and want.name else error
        if answer.is_unknown:
            # As in Kafka: null if a log was read, an empty list if there is no log.
            answer.aborted = []
        return answer

    def bring_in(
        self,
        cold: NotCached,
        reads: CachedReads,
        then: Callable[[CachedReads], object],
        on_failure: OnFailure | None,
    ) -> None:
        """Read the missing ranges from the disk, then call `then`; its exception goes to `on_failure`."""

        def again(reads: CachedReads) -> None:
            try:
                then(reads)
            except Exception as error:
                if on_failure is None:
                    raise
                on_failure(error)

        bring_in(self._replicas.scheduler, cold, reads, again)

    def _gone(self, want: FetchPartition) -> KafkaError:
        """The error for a topic id that was known when the session first fetched it."""
        assert want.name is not None
        try:
            self._replicas.hosted_topic(want.name)
        except KafkaError as error:
            return error
        return InconsistentTopicId(f"the topic {want.name} was made anew, with another id")

    def fetch(
        self,
        context: FetchContext,
        params: FetchParams,
        done: Callable[[list[FetchedPartition]], None],
        on_failure: OnFailure | None = None,
        known_unknown: Unknown = NONE_UNKNOWN,
    ) -> bool:
        """Answer now (True), or when `min_bytes` are there or `max_wait_ms` have passed (False).

        With `known_unknown`, partitions that were just found to be unknown or that the client may not read,
        the answer does not wait for `min_bytes`. Ranges outside of the page cache are read from the disk
        first. An exception of a later answer goes to `on_failure`, not to the append that caused the answer.
        """
        session = context.session
        if session.wake is not None:  # this request replaces an older one of the session
            self._replicas.fetch_purgatory.complete_all(session)
            self._followers.complete(session)
        session.read_as(params.isolation_level, params.reads_to_log_end)
        if not known_unknown and self._wait_at_the_end(context, params, done, on_failure):
            return session.wake is None  # a broker that stops lets no fetch wait
        return self._answer(context, params, done, on_failure, known_unknown, CACHED)

    def _followed(self, context: FetchContext, params: FetchParams) -> Followed | None:
        """The partition that a follower fetches, if its session has news of this one alone.

        None, and nothing changes, if anything is out of the ordinary: `read_all` finds out what.
        """
        session = context.session
        dirty = session.dirty
        if not params.reads_to_log_end or len(dirty) != 1 or not context.incremental:
            return None
        if session.epoch != context.epoch or session.closed:
            return None
        (want,) = dirty
        partition = want.watched
        if partition is None or partition.log is None or partition.offline or not partition.is_leader:
            return None
        log, replica = partition.log, partition.followers.replicas.get(params.replica_id)
        if (
            replica is None
            or replica.broker_epoch != params.replica_epoch
            or want.current_leader_epoch not in (partition.leader_epoch, -1)
            or want.last_fetched_epoch not in (log.leader_epochs.latest, -1)
            or params.isolation_level != READ_UNCOMMITTED
        ):
            return None
        return want, partition, log, replica

    def _wait_at_the_end(
        self,
        context: FetchContext,
        params: FetchParams,
        done: Callable[[list[FetchedPartition]], None],
        on_failure: OnFailure | None,
    ) -> bool:
        """Take the fetch of a follower that only says that it has all records, and let it wait for more.

        False, and nothing changes, if it is another fetch.
        """
        found = self._followed(context, params)
        if found is None or params.min_bytes <= 0 or params.max_wait_ms <= 0:
            return False
        want, partition, log, replica = found
        session, end = context.session, log.log_end_offset
        if want.fetch_offset != end:
            return False
        want.replica = replica
        self._replicas.follower_fetched(partition, replica, want, end, params.replica_epoch)
        want.watch(partition, session)
        waiting = DelayedFetch(self, context, params, (), done, on_failure)
        self._followers.add(session, waiting, params.replica_id, params.max_wait_ms)
        if log.log_end_offset != end or len(session.dirty) > 1:
            self._followers.wake(session)  # the fetch has committed records, and a coordinator wrote others
        return True

    def read_tail(self, context: FetchContext, params: FetchParams) -> FetchedPartition | None:
        """The records that came while the fetch of a follower waited at the end of the log.

        Followers that are woken together get the same records, which are read once. None if anything is out
        of the ordinary: `read_all` finds out what.
        """
        found = self._followed(context, params)
        if found is None or self.leader_quota.limit is not None:
            return None
        want, partition, log, replica = found
        tail = self._followers.tail
        if tail is not None and tail.source is partition and tail.wanted.is_like(want):
            records = tail.records
        else:
            try:
                read = log.read(want.fetch_offset, min(want.max_bytes, params.max_bytes), reads=CACHED)
            except (NotCached, KafkaError, OSError):
                return None
            records = read.slice
        if records is None or not params.min_bytes <= records.size <= params.max_bytes:
            return None
        want.replica = replica
        self._followers.tail = answer = FetchedPartition(want)
        answer.source, answer.records, answer.has_more = partition, records, True
        answer.high_watermark, answer.last_stable_offset = log.high_watermark, log.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        return answer

    def _answer(
        self,
        context: FetchContext,
        params: FetchParams,
        done: Callable[[list[FetchedPartition]], None],
        on_failure: OnFailure | None,
        known_unknown: Unknown,
        reads: CachedReads,
    ) -> bool:
        session = context.session
        try:
            answers, total = self.read_all(context.due(), params, reads, known_unknown, is_new=True)
        except NotCached as cold:
            again = partial(self._answer, context, params, done, on_failure, known_unknown)
            self.bring_in(cold, reads, again, on_failure)
            return False
        if (
            total >= params.min_bytes
            or params.max_wait_ms <= 0
            or known_unknown
            or session.closed  # closed, or replaced by a later request, during the read from the disk
            or session.epoch != context.epoch
            or is_enough(answers, total, params)
        ):
            done(context.select(answers))
            return True
        unknown = _unknown(answers)
        if len(unknown) == len(session.partitions):
            done(context.select(answers))
            return True
        waiting = DelayedFetch(self, context, params, unknown, done, on_failure)
        watch_again(answers, session)
        if not params.reads_to_log_end:
            purgatory = self._replicas.fetch_purgatory
            session.wake = partial(purgatory.check, session)
            return purgatory.watch(waiting, (session,), params.max_wait_ms)
        answered = self._followers.add(session, waiting, params.replica_id, params.max_wait_ms)
        # The fetch committed records, and a coordinator wrote others: a marker in another partition, say.
        if len(session.dirty) > len(answers) or any(answer.is_overtaken for answer in answers):
            self._followers.wake(session)
        return answered

    def wait_ended(self, session: FetchSession) -> None:
        session.stop_waiting()
        self._followers.waiting.pop(session, None)


def is_enough(answers: list[FetchedPartition], total: int, params: FetchParams) -> bool:
    if total >= params.min_bytes:
        return True
    for answer in answers:
        if answer.error is not None:
            if not answer.is_unknown:
                return True
        elif answer.diverging is not None or answer.preferred_replica >= 0 or answer.behind_active_segment:
            return True
    return False


def _unknown(answers: list[FetchedPartition]) -> set[FetchPartition]:
    """The partitions that this broker does not know."""
    unknown: set[FetchPartition] = set()
    for answer in answers:
        if answer.error is not None and answer.is_unknown:
            unknown.add(answer.wanted)
    return unknown


def watch_again(answers: list[FetchedPartition], session: FetchSession) -> None:
    """Watch all partitions of a waiting fetch, also those that have something new already."""
    for answer in answers:
        if answer.source is not None:
            answer.wanted.watch(answer.source, session)


class DelayedFetch(DelayedOperation):
    """Completes when the partitions together have `min_bytes`, or one of them has an error."""

    __slots__ = ("_answers", "_context", "_done", "_fetcher", "_params", "_unknown")

    def __init__(
        self,
        fetcher: Fetcher,
        context: FetchContext,
        params: FetchParams,
        unknown: Collection[FetchPartition],
        done: Callable[[list[FetchedPartition]], None],
        on_failure: OnFailure | None,
    ) -> None:
        super().__init__(on_failure)
        self._fetcher = fetcher
        self._context = context
        self._params = params
        self._unknown = unknown  # at the beginning of the wait; they are checked again at its end
        self._answers: list[FetchedPartition] | None = None
        self._done = done

    def try_complete(self) -> bool:
        context = self._context
        if context.session.closed:
            return self.force_complete()
        unknown = self._unknown
        if not unknown:
            tail = self._fetcher.read_tail(context, self._params)
            if tail is not None:
                self._answers = [tail]
                return self.force_complete()
        due = context.due()
        known = [want for want in due if want not in unknown] if unknown else due
        try:
            answers, total = self._fetcher.read_all(known, self._params)
        except NotCached:
            return self.force_complete()
        if not is_enough(answers, total, self._params) and not _unknown(answers):
            watch_again(answers, context.session)
            return False
        if not unknown:
            self._answers = answers
        return self.force_complete()

    def _end(self) -> None:
        super()._end()
        self._fetcher.wait_ended(self._context.session)

    def on_complete(self, reads: CachedReads = CACHED) -> None:
        context = self._context
        if self._answers is None:
            try:
                self._answers, _ = self._fetcher.read_all(context.due(), self._params, reads)
            except NotCached as cold:
                self._fetcher.bring_in(cold, reads, self.on_complete, self.on_failure)
                return
        self._done(context.select(self._answers))
