"""Reading for Fetch: what each partition gives within the byte limits, now or when enough has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.cluster.fetch_session import FetchPartition
from tidelog.cluster.partition import Partition
from tidelog.cluster.purgatory import DelayedOperation, OnFailure
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.errors import (
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    UnknownTopicId,
)
from tidelog.storage.slices import FileSlice

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
CONSUMER = -1  # as replica id, like all below 0


@dataclass(slots=True)
class FetchParams:
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    replica_id: int = CONSUMER


class FetchedPartition:
    """What Fetch answers for one partition."""

    __slots__ = (
        "aborted",
        "behind_active_segment",
        "diverging",
        "error",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "records",
        "wanted",
    )

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.error: KafkaError | None = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.records: FileSlice | None = None
        self.aborted: list[tuple[int, int]] | None = None
        self.diverging: tuple[int, int] | None = None
        # One read gives batches of one segment: behind the active one, waiting would not bring more.
        self.behind_active_segment = False

    @property
    def ends_wait(self) -> bool:
        """Whether this is to be told now, however few bytes have come."""
        return self.error is not None or self.diverging is not None or self.behind_active_segment


def read_partition(
    partition: Partition, wanted: FetchPartition, max_bytes: int, isolation_level: int, min_one: bool
) -> FetchedPartition:
    """Read one partition; raises the Kafka error that the answer is to carry."""
    log = partition.leader_log(wanted.current_leader_epoch)
    answer = FetchedPartition(wanted)
    if wanted.last_fetched_epoch >= 0:
        diverging = _diverging_epoch(partition, wanted)
        if diverging is not None:
            answer.diverging = diverging
            answer.high_watermark = log.high_watermark
            answer.last_stable_offset = log.last_stable_offset
            answer.log_start_offset = log.log_start_offset
            return answer
    answer.high_watermark = high_watermark = log.high_watermark
    answer.last_stable_offset = last_stable_offset = log.last_stable_offset
    answer.log_start_offset = log.log_start_offset
    limit = last_stable_offset if isolation_level == READ_COMMITTED else high_watermark
    read = log.read(wanted.fetch_offset, max_bytes, max_offset=limit, min_one_message=min_one)
    answer.records = read.slice
    answer.behind_active_segment = read.segment is not None and read.segment is not log.active_segment
    if isolation_level == READ_COMMITTED:
        answer.aborted = (
            []
            if answer.records is None
            else [
                (transaction.producer_id, transaction.first_offset)
                for transaction in log.aborted_transactions(wanted.fetch_offset, log.upper_bound(read))
            ]
        )
    return answer


def _diverging_epoch(partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
    """Where the fetcher's log parts from ours, if what it last fetched is not in ours."""
    log = partition.leader_log()
    epoch, end_offset = log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise OffsetOutOfRange(
            f"{partition.name} has no end offset for the epoch {wanted.last_fetched_epoch} last fetched"
        )
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None


class Fetcher:
    """Serves Fetch requests from the partitions of this broker."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def read_all(
        self, wanted: list[FetchPartition], params: FetchParams
    ) -> tuple[list[FetchedPartition], int]:
        """One pass over the partitions; gives the answers and how many bytes of records they carry."""
        replicas = self._replicas
        answers: list[FetchedPartition] = []
        left = params.max_bytes
        total = 0
        min_one = True
        for want in wanted:
            try:
                partition = replicas.partition(want.topic, want.partition)
                want.name = partition.topic
                if params.replica_id >= 0:
                    partition.follower(params.replica_id)
                answer = read_partition(
                    partition, want, min(want.max_bytes, left), params.isolation_level, min_one
                )
            except KafkaError as error:
                answer = FetchedPartition(want)
                answer.error = self._gone(want) if isinstance(error, UnknownTopicId) and want.name else error
            except OSError as error:
                answer = FetchedPartition(want)
                answer.error = KafkaStorageError(str(error))
            if answer.records is not None:
                size = answer.records.size
                total += size
                left = max(0, left - size)
                min_one = False
            answers.append(answer)
        return answers, total

    def _gone(self, want: FetchPartition) -> KafkaError:
        """A session goes on to speak of a topic by an id that was known when it was first fetched by it."""
        assert want.name is not None
        try:
            self._replicas.hosted_topic(want.name)
        except KafkaError as error:
            return error
        return InconsistentTopicId(f"the topic {want.name} was made anew, with another id")

    def fetch(
        self,
        wanted: list[FetchPartition],
        params: FetchParams,
        done: Callable[[list[FetchedPartition]], None],
        on_failure: OnFailure | None = None,
    ) -> bool:
        """Answer now (True) or when `min_bytes` have come or `max_wait_ms` are over (False).

        An exception in a later answer goes to `on_failure`, not to the append that brought the answer about.
        """
        answers, total = self.read_all(wanted, params)
        if (
            total >= params.min_bytes
            or params.max_wait_ms <= 0
            or not wanted
            or any(answer.ends_wait for answer in answers)
        ):
            done(answers)
            return True
        operation = DelayedFetch(self, wanted, params, done, on_failure)
        self._replicas.fetch_purgatory.try_complete_else_watch(
            operation, operation.keys(), params.max_wait_ms
        )
        return False

    def partition(self, wanted: FetchPartition) -> Partition:
        return self._replicas.partition(wanted.topic, wanted.partition)


class DelayedFetch(DelayedOperation):
    """Done when the partitions together have `min_bytes`, or one of them has become an error."""

    __slots__ = ("_answers", "_done", "_fetcher", "_limits", "_params", "_wanted")

    def __init__(
        self,
        fetcher: Fetcher,
        wanted: list[FetchPartition],
        params: FetchParams,
        done: Callable[[list[FetchedPartition]], None],
        on_failure: OnFailure | None,
    ) -> None:
        super().__init__(on_failure)
        self._fetcher = fetcher
        self._wanted = wanted
        self._params = params
        self._answers: list[FetchedPartition] | None = None
        self._done = done
        self._limits = self._watermarks()

    def keys(self) -> list[tuple[str, int]]:
        partitions = [self._fetcher.partition(want) for want in self._wanted]
        return [(partition.topic, partition.index) for partition in partitions]

    def _watermarks(self) -> list[int]:
        marks = []
        for want in self._wanted:
            log = self._fetcher.partition(want).log
            if log is None:
                marks.append(-1)
            elif self._params.isolation_level == READ_COMMITTED:
                marks.append(log.last_stable_offset)
            else:
                marks.append(log.high_watermark)
        return marks

    def try_complete(self) -> bool:
        try:
            marks = self._watermarks()
        except KafkaError:
            return self.force_complete()
        if marks == self._limits:
            return False
        self._limits = marks
        answers, total = self._fetcher.read_all(self._wanted, self._params)
        if total < self._params.min_bytes and not any(answer.ends_wait for answer in answers):
            return False
        self._answers = answers
        return self.force_complete()

    def on_complete(self) -> None:
        if self._answers is None:
            self._answers, _ = self._fetcher.read_all(self._wanted, self._params)
        self._done(self._answers)
