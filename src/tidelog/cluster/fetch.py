"""Fetcher: reads the partitions of a Fetch request and answers it, at once or when `min_bytes` are there.

A consumer reads up to the high watermark or the last stable offset, a follower up to the log end offset. With
a replica selector, the leader sends a consumer to a follower in the consumer's rack.
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
            # A consumer with old metadata takes this follower for the leader. The leader's log goes further.
            # Kafka's error, OFFSET_OUT_OF_RANGE, would reset a consumer that sends no leader epoch.
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

        Unknown partitions come last, as in Kafka. Those in `known_unknown` are not searched again. `is_new`
        marks the first read of a request: a follower's fetch offset is noted then. Raises NotCached with all
        ranges that have to be read from the disk first.
        """
        replicas = self._replicas
        answers: list[FetchedPartition] = []
        unknown: list[FetchedPartition] = []
        remaining_bytes = params.max_bytes
        total_bytes = 0
        min_one = True
        cold: list[NotCached] = []
        for request in wanted:
            if request in known_unknown:
                unknown.append(known_unknown[request])
                continue
            try:
                partition = replicas.partition(request.topic, request.partition)
                request.name = partition.topic
                if self.selector is not None and len(partition.replicas) > 1:
                    nearby = self._nearby(self.selector, partition, request, params)
                    if nearby is not None:
                        answers.append(nearby)
                        continue
                limit = request.max_bytes if request.max_bytes < remaining_bytes else remaining_bytes
                answer = read_partition(partition, request, limit, params, min_one, reads)
                if request.replica is not None and answer.diverging is None:
                    if is_new:
                        self._follower_fetched(partition, request.replica, answer, params.replica_epoch)
                    quota = self.leader_quota
                    if quota.limit is not None and quota.holds_back(partition, request.replica.broker_id):
                        answer.records = None
                        answer.behind_active_segment = False
            except NotCached as missing:
                cold.append(missing)
                continue
            except KafkaError as error:
                answer = self._failed(request, error)
            except OSError as error:
                answer = FetchedPartition(request)
                answer.error = KafkaStorageError(str(error))
            if answer.records is not None:
                size = answer.records.size
                total_bytes += size
                remaining_bytes = remaining_bytes - size if remaining_bytes > size else 0
                min_one = False
            elif answer.error is not None and answer.is_unknown:
                unknown.append(answer)
                continue
            answers.append(answer)
        if cold:
            raise NotCached(*(missing for found in cold for missing in found.missing))
        return answers + unknown if unknown else answers, total_bytes

    def _follower_fetched(
        self, partition: Partition, replica: Replica, answer: FetchedPartition, epoch: int
    ) -> None:
        log = partition.log
        assert log is not None
        self._replicas.follower_fetched(partition, replica, answer.wanted, log.log_end_offset, epoch)
        answer.high_watermark, answer.last_stable_offset = log.high_watermark, log.last_stable_offset

    def _nearby(
        self, selector: ReplicaSelector, partition: Partition, request: FetchPartition, params: FetchParams
    ) -> FetchedPartition | None:
        """An answer that sends a consumer to a follower near it; None if it should read here."""
        rack = params.client_rack
        if rack is None or params.replica_id >= 0 or not partition.is_leader:
            return None
        log = partition.local_log(request.current_leader_epoch, only_leader=True)
        leader, followers = self._views(partition, log, request.fetch_offset, params.listener)
        selected = selector.select(rack, leader, followers)
        if selected is leader:
            return None
        answer = FetchedPartition(request)
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
        """The answers for the partitions that this broker does not have, computed in slices."""
        unknown: dict[FetchPartition, FetchedPartition] = {}
        for request in wanted:
            try:
                self._replicas.partition(request.topic, request.partition)
            except KafkaError as error:
                answer = self._failed(request, error)
                if answer.is_unknown:
                    unknown[request] = answer
            yield
        return unknown

    def _failed(self, request: FetchPartition, error: KafkaError) -> FetchedPartition:
        answer = FetchedPartition(request)
        answer.error = (
            self._topic_id_error(request) if isinstance(error, UnknownTopicId) and request.name else error
        )
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

    def _topic_id_error(self, request: FetchPartition) -> KafkaError:
        """The error for a topic id that this broker knew at an earlier fetch of the session."""
        assert request.name is not None
        try:
            self._replicas.hosted_topic(request.name)
        except KafkaError as error:
            return error
        return InconsistentTopicId(f"the topic {request.name} was made anew, with another id")

    def fetch(
        self,
        context: FetchContext,
        params: FetchParams,
        done: Callable[[list[FetchedPartition]], None],
        on_failure: OnFailure | None = None,
        known_unknown: Unknown = NONE_UNKNOWN,
    ) -> bool:
        """Answer a fetch through `done`: now (returns True), or later (returns False).

        A later answer comes when `min_bytes` are there, when `max_wait_ms` have passed, or when ranges
        outside of the page cache have been read from the disk. A request with partitions in `known_unknown`
        does not wait for `min_bytes`. An exception of a later answer goes to `on_failure`.
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
        """The one dirty partition of a follower's session, for the fast path.

        None if the session has several dirty partitions or the fetch needs the checks of `read_all`.
        """
        session = context.session
        dirty = session.dirty
        if not params.reads_to_log_end or len(dirty) != 1 or not context.incremental:
            return None
        if session.epoch != context.epoch or session.closed:
            return None
        (request,) = dirty
        partition = request.watched
        if partition is None or partition.log is None or partition.offline or not partition.is_leader:
            return None
        log, replica = partition.log, partition.followers.replicas.get(params.replica_id)
        if (
            replica is None
            or replica.broker_epoch != params.replica_epoch
            or request.current_leader_epoch not in (partition.leader_epoch, -1)
            or request.last_fetched_epoch not in (log.leader_epochs.latest, -1)
            or params.isolation_level != READ_UNCOMMITTED
        ):
            return None
        return request, partition, log, replica

    def _wait_at_the_end(
        self,
        context: FetchContext,
        params: FetchParams,
        done: Callable[[list[FetchedPartition]], None],
        on_failure: OnFailure | None,
    ) -> bool:
        """Let the fetch of a follower that has the whole log wait for records, without a read.

        Returns False and changes nothing for any other fetch.
        """
        followed = self._followed(context, params)
        if followed is None or params.min_bytes <= 0 or params.max_wait_ms <= 0:
            return False
        request, partition, log, replica = followed
        session, end = context.session, log.log_end_offset
        if request.fetch_offset != end:
            return False
        request.replica = replica
        self._replicas.follower_fetched(partition, replica, request, end, params.replica_epoch)
        request.watch(partition, session)
        waiting = DelayedFetch(self, context, params, (), done, on_failure)
        self._followers.add(session, waiting, params.replica_id, params.max_wait_ms)
        if log.log_end_offset != end or len(session.dirty) > 1:
            self._followers.wake(session)  # the fetch committed records, and a coordinator wrote others then
        return True

    def read_tail(self, context: FetchContext, params: FetchParams) -> FetchedPartition | None:
        """The records that were appended while a follower's fetch waited at the end of the log.

        Followers that one append has woken share one read. None if the fetch needs the checks of `read_all`.
        """
        followed = self._followed(context, params)
        if followed is None or self.leader_quota.limit is not None:
            return None
        request, partition, log, replica = followed
        tail = self._followers.tail
        if tail is not None and tail.source is partition and tail.wanted.is_like(request):
            records = tail.records
        else:
            try:
                read = log.read(request.fetch_offset, min(request.max_bytes, params.max_bytes), reads=CACHED)
            except (NotCached, KafkaError, OSError):
                return None
            records = read.slice
        if records is None or not params.min_bytes <= records.size <= params.max_bytes:
            return None
        request.replica = replica
        self._followers.tail = answer = FetchedPartition(request)
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
        # The fetch committed records, and a coordinator then wrote others, such as a marker in another
        # partition.
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
        requests = [request for request in due if request not in unknown] if unknown else due
        try:
            answers, total = self._fetcher.read_all(requests, self._params)
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
