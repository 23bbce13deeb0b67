"""ReplicaManager: the partitions of this broker, for produce, fetch and delete-records requests.

A request that cannot be answered at once waits in a purgatory, until a high watermark moves or it times out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.clock import Scheduler
from tidelog.cluster.append_request import ACKS_ALL, AppendRequest
from tidelog.cluster.append_request import AppendOutcome as AppendOutcome
from tidelog.cluster.append_rules import AppendRulesTable
from tidelog.cluster.awaited_followers import AwaitedFollowers
from tidelog.cluster.delayed import DelayedDeleteRecords, DelayedProduce
from tidelog.cluster.follower_fetches import FollowerFetches
from tidelog.cluster.followers import IsrRules, Replica
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import HEAVY_BYTES, Partition
from tidelog.cluster.purgatory import OnFailure, Purgatory
from tidelog.cluster.topic_metrics import AllTopicMetrics, TopicMetrics
from tidelog.cluster.worker import Worker
from tidelog.errors import (
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.metadata.state import NO_TOPIC_ID, PartitionState, TopicState
from tidelog.partitions import PartitionKey
from tidelog.records.check import CheckedBatch
from tidelog.storage.append import AppendOrigin, AppendResult
from tidelog.storage.config import LogConfig
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager
from tidelog.storage.producer_state_manager import Verification

if TYPE_CHECKING:
    from tidelog.cluster.fetch_session import FetchPartition
    from tidelog.cluster.isr_manager import IsrManager

log = logging.getLogger("tidelog.cluster")


class HostedTopic:
    """The partitions of one topic on this broker."""

    __slots__ = ("is_internal", "metrics", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, is_internal: bool, metrics: TopicMetrics) -> None:
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal
        self.metrics = metrics
        self.partitions: dict[int, Partition] = {}


class ReplicaManager:
    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        scheduler: Scheduler,
        worker: Worker,
        topic_metrics: AllTopicMetrics,
    ) -> None:
        self.broker_id = broker_id
        self.logs = logs
        # Distinguishes a partition on other brokers from a partition that does not exist.
        self.metadata: MetadataCache | None = None
        self.topic_metrics = topic_metrics
        self.scheduler = scheduler
        self.clock = scheduler.clock
        self._worker = worker
        self._append_rules = AppendRulesTable()
        self.isr_rules = IsrRules(scheduler.clock)
        # Changes the in-sync replicas of the partitions that this broker leads; None without a cluster.
        self.isr_manager: IsrManager | None = None
        self.topics: dict[str, HostedTopic] = {}
        self.topics_by_id: dict[bytes, HostedTopic] = {}
        self.produce_purgatory = Purgatory("Produce", scheduler)
        self.fetch_purgatory = Purgatory("Fetch", scheduler)
        self.delete_records_purgatory = Purgatory("DeleteRecords", scheduler)
        self.awaited_followers = AwaitedFollowers(scheduler.clock)
        self.follower_fetches = FollowerFetches(scheduler, self.awaited_followers)

    # -- hosting -----------------------------------------------------------------------------------

    def become_leader(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        state: PartitionState,
        config: LogConfig,
        *,
        is_internal: bool = False,
        is_new: bool = True,
    ) -> Partition:
        """Open or create the log of a partition, and lead the partition.

        `is_new` is the flag of LeaderAndIsr: a partition that is not new should have a log already. The
        creation of a log is synced, unless `LogCreator.create_later` has created it.
        """
        partition = self._host(topic, topic_id, index, is_internal)
        log = self._open_log(partition, config, is_new)
        if partition.become_leader(log, state):
            followers = [broker for broker in state.isr if broker != self.broker_id]
            self.awaited_followers.expect((topic, index), followers)
            if partition.flushes.next and partition.flushes.running is None:
                self._flush(partition)
        return partition

    def become_follower(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        state: PartitionState,
        config: LogConfig,
        *,
        is_internal: bool = False,
        is_new: bool = True,
    ) -> Partition:
        """Open or create the log of a partition that another broker leads, or none. Ends waiting requests."""
        partition = self._host(topic, topic_id, index, is_internal)
        log = self._open_log(partition, config, is_new)
        if partition.become_follower(log, state):
            self._end_waits(partition)
        return partition

    def stop_leading(self, partition: Partition) -> None:
        """Stop leading a partition, and keep its log. Ends waiting requests."""
        partition.stop_leading()
        self._end_waits(partition)

    def _host(self, topic: str, topic_id: bytes, index: int, is_internal: bool) -> Partition:
        """Find or make the Partition. Raises InconsistentTopicId if the hosted topic has another id."""
        hosted = self.topics.get(topic)
        if hosted is None:
            hosted = self.topics[topic] = HostedTopic(
                topic, topic_id, is_internal, self.topic_metrics.of(topic)
            )
        elif topic_id not in (NO_TOPIC_ID, hosted.topic_id):
            if hosted.topic_id != NO_TOPIC_ID:
                raise InconsistentTopicId(
                    f"this broker hosts {topic} with the id {hosted.topic_id.hex()}, not {topic_id.hex()}"
                )
            hosted.topic_id = topic_id
        if hosted.topic_id != NO_TOPIC_ID:
            self.topics_by_id[hosted.topic_id] = hosted
        partition = hosted.partitions.get(index)
        if partition is None:
            partition = Partition(
                topic, index, topic_id, self.broker_id, self._worker, self.isr_rules, self._append_rules
            )
            partition.on_high_watermark = self.high_watermark_moved
            hosted.partitions[index] = partition
        elif topic_id != NO_TOPIC_ID:
            partition.topic_id = topic_id
        return partition

    def _open_log(self, partition: Partition, config: LogConfig, is_new: bool) -> Log:
        topic, index, topic_id = partition.topic, partition.index, partition.topic_id
        if (topic, index) in self.logs.creator.lacking_room:
            raise KafkaStorageError(f"there is no room for the log of {topic}-{index} at present")
        wanted_id = None if topic_id == NO_TOPIC_ID else topic_id
        return self.logs.get_or_create(topic, index, wanted_id, config, is_new=is_new)

    def delete_partition(self, topic: str, index: int) -> None:
        """Stop serving a partition and delete its files. Ends waiting requests.

        The files may reappear after a crash until `LogDeletions.sync` is done.
        """
        hosted = self.topics.get(topic)
        partition = hosted.partitions.pop(index, None) if hosted is not None else None
        if hosted is not None and not hosted.partitions:
            del self.topics[topic]
            self.topics_by_id.pop(hosted.topic_id, None)
            self.topic_metrics.forget(topic)
        if partition is not None:
            partition.leader_id = -1
            self._end_waits(partition)
        self.logs.delete(topic, index)

    def update_config(self, topic: str, config: LogConfig) -> None:
        hosted = self.topics.get(topic)
        if hosted is None:
            return
        for partition in hosted.partitions.values():
            if partition.log is not None:
                partition.log.update_config(config)
                partition.config_changed()

    def partitions_offline(self, lost: Iterable[PartitionKey]) -> None:
        """Take the partitions of a failed log folder offline: they answer KAFKA_STORAGE_ERROR from now on."""
        for topic, index in lost:
            hosted = self.topics.get(topic)
            partition = hosted.partitions.get(index) if hosted is not None else None
            if partition is not None:
                partition.offline = True
                self._end_waits(partition)

    def partitions(self) -> Iterable[Partition]:
        for hosted in self.topics.values():
            yield from hosted.partitions.values()

    def find_partition(self, topic: str, index: int) -> Partition | None:
        hosted = self.topics.get(topic)
        return None if hosted is None else hosted.partitions.get(index)

    def hosted_topic(self, topic: str | bytes) -> HostedTopic:
        """A topic by name or by id. NotLeaderOrFollower if only other brokers have replicas of it."""
        hosted = self.topics.get(topic) if isinstance(topic, str) else self.topics_by_id.get(topic)
        if hosted is None:
            raise self._why_no_topic(topic)
        return hosted

    def partition(self, topic: str | bytes, index: int) -> Partition:
        """A partition of this broker. NotLeaderOrFollower if only other brokers have replicas of it."""
        hosted = self.topics.get(topic) if isinstance(topic, str) else self.topics_by_id.get(topic)
        partition = None if hosted is None else hosted.partitions.get(index)
        if partition is None:
            raise self._why_no_partition(topic, index)
        return partition

    def _why_no_partition(self, topic: str | bytes, index: int) -> KafkaError:
        cluster_topic = self._topic_of_cluster(topic)
        if cluster_topic is None:
            hosted = self.topics.get(topic) if isinstance(topic, str) else self.topics_by_id.get(topic)
            if hosted is None:
                return self._why_no_topic(topic)
            return UnknownTopicOrPartition(f"topic {hosted.name} has no partition {index} here")
        partition = cluster_topic.partitions.get(index)
        if partition is None:
            return UnknownTopicOrPartition(f"topic {cluster_topic.name} has no partition {index}")
        return NotLeaderOrFollower(
            f"{cluster_topic.name}-{index} is led by broker {partition.leader}, not by this one"
        )

    def _why_no_topic(self, topic: str | bytes) -> KafkaError:
        cluster_topic = self._topic_of_cluster(topic)
        if cluster_topic is not None:
            return NotLeaderOrFollower(f"other brokers lead the partitions of topic {cluster_topic.name}")
        if isinstance(topic, str):
            return UnknownTopicOrPartition(f"this broker hosts no topic {topic}")
        return UnknownTopicId("no topic has this id")

    def _topic_of_cluster(self, topic: str | bytes) -> TopicState | None:
        if self.metadata is None:
            return None
        state = self.metadata.snapshot
        return state.topics.get(topic) if isinstance(topic, str) else state.topic_by_id(topic)

    def _end_waits(self, partition: Partition) -> None:
        """Check the waiting requests after a partition was deleted, went offline or got another leader."""
        partition.changed()
        # A check, because a request may have to wait for its other partitions.
        key = (partition.topic, partition.index)
        self.produce_purgatory.check(key)
        self.delete_records_purgatory.check(key)

    # -- produce -----------------------------------------------------------------------------------

    def append(
        self,
        entries: list[tuple[Partition | KafkaError, memoryview]],
        *,
        acks: int,
        timeout_ms: int,
        heavy: bool,
        allow_zstd: bool,
        origin: AppendOrigin,
        done: Callable[[list[AppendOutcome]], None],
        guards: Mapping[Partition, Verification] | None = None,
        release: Callable[[], None] | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Append a batch to each partition and call `done` when `acks` is satisfied or the request timed out.

        `guards` has the verifications of transactions that begin in a partition. `release` is called as soon
        as the batches are written or refused, before the wait for flushes and replicas. `on_failure` gets an
        exception that `done` raises after that wait.
        """
        request = AppendRequest(self, entries, acks, timeout_ms, done)
        request.release, request.on_failure = release, on_failure
        request.start(entries, heavy, allow_zstd, origin, guards)

    def append_checked(
        self,
        partition: Partition,
        batch: CheckedBatch,
        *,
        acks: int,
        timeout_ms: int,
        done: Callable[[list[AppendOutcome]], None],
        guard: Verification | None = None,
    ) -> None:
        """Append one small batch of a client. The batch was checked already."""
        request = AppendRequest(self, [(partition, batch.data)], acks, timeout_ms, done)
        request.start_checked(partition, batch, guard)

    def append_own(
        self,
        partition: Partition,
        batch: memoryview,
        *,
        timeout_ms: int,
        written: Callable[[AppendResult], None],
        done: Callable[[KafkaError | None], None],
        transaction_version: int = 0,
    ) -> None:
        """Append a batch that this broker made itself, with acks=all.

        `written` is called when the batch is in the log, in the order of offsets. `done` is called when it is
        committed, or with an error. An error without a call of `written` means that nothing was appended.
        """

        if len(batch) < HEAVY_BYTES and partition.can_append_own_now():
            self._append_one_own_now(partition, batch, transaction_version, timeout_ms, written, done)
            return

        def finished(outcomes: list[AppendOutcome]) -> None:
            done(_as_kafka_error(outcomes[0].error))

        request = AppendRequest(self, [(partition, batch)], ACKS_ALL, timeout_ms, finished, written)
        heavy = len(batch) >= HEAVY_BYTES
        request.start(
            [(partition, batch)],
            heavy,
            True,
            AppendOrigin.COORDINATOR,
            transaction_version=transaction_version,
        )

    def append_own_together(
        self,
        partition: Partition,
        batches: Sequence[memoryview],
        versions: Sequence[int],
        *,
        timeout_ms: int,
        done: Callable[[int, KafkaError | None], None],
    ) -> None:
        """Append transaction markers, with one write if no other append is running.

        `versions` are their transaction versions. `done` is called for each marker with its index, when it is
        committed, or with its error.
        """
        if len(batches) > 1 and sum(map(len, batches)) < HEAVY_BYTES and partition.can_append_own_now():
            self._append_own_now(partition, batches, versions, timeout_ms, done)
            return
        for slot, (batch, version) in enumerate(zip(batches, versions, strict=True)):
            self.append_own(
                partition,
                batch,
                timeout_ms=timeout_ms,
                written=_nothing_more,
                transaction_version=version,
                done=lambda error, slot=slot: done(slot, error),  # type: ignore[misc]
            )

    def _append_one_own_now(
        self,
        partition: Partition,
        batch: memoryview,
        version: int,
        timeout_ms: int,
        written: Callable[[AppendResult], None],
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """Append in this turn of the loop, and answer when the batch is flushed and committed."""
        try:
            partition.check_in_sync_replicas()
            result = partition.append_one_own_now(batch, self.clock.ms(), version)
        except KafkaError as error:
            done(error)
            return
        except Exception as error:
            log.error("appending to %s failed unexpectedly", partition.name, exc_info=error)
            done(UnknownServerError())
            return
        written(result)
        self._when_committed(partition, result.needs_flush, result, result, timeout_ms, done)

    def _append_own_now(
        self,
        partition: Partition,
        batches: Sequence[memoryview],
        versions: Sequence[int],
        timeout_ms: int,
        done: Callable[[int, KafkaError | None], None],
    ) -> None:
        """Append several batches in this turn of the loop with one write; answer when they are committed."""
        try:
            partition.check_in_sync_replicas()
        except KafkaError as error:
            for slot in range(len(batches)):
                done(slot, error)
            return
        try:
            outcomes = partition.append_own_now(batches, self.clock.ms(), versions)
        except Exception as error:
            log.error("appending to %s failed unexpectedly", partition.name, exc_info=error)
            outcomes = [UnknownServerError() for _ in batches]
        results = [outcome for outcome in outcomes if not isinstance(outcome, KafkaError)]

        def answer_all(failure: KafkaError | None) -> None:
            for slot, outcome in enumerate(outcomes):
                done(slot, outcome if isinstance(outcome, KafkaError) else failure)

        if not results:
            answer_all(None)
            return
        needs_flush = any(result.needs_flush for result in results)
        self._when_committed(partition, needs_flush, results[0], results[-1], timeout_ms, answer_all)

    def _when_committed(
        self,
        partition: Partition,
        needs_flush: bool,
        first: AppendResult,
        last: AppendResult,
        timeout_ms: int,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """Call `done` when the batches from `first` to `last` are committed, and flushed before if
        `needs_flush`.
        """
        if not needs_flush:
            partition.advance_high_watermark()
            if len(partition.replicas) == 1:
                done(None)
                return

        def flushed(error: BaseException | None) -> None:
            if error is not None or len(partition.replicas) == 1:
                done(_as_kafka_error(error))
                return
            outcome = AppendOutcome(last, None)
            operation = DelayedProduce([outcome], lambda _: done(_as_kafka_error(outcome.error)), None)
            operation.want(outcome, partition, last.last_offset + 1)
            key = (partition.topic, partition.index)
            self.produce_purgatory.try_complete_else_watch(operation, (key,), timeout_ms)

        if needs_flush:
            self.flush_then(partition, first.base_offset, flushed)
        else:
            flushed(None)

    def follower_fetched(
        self, partition: Partition, replica: Replica, wanted: FetchPartition, leader_end: int, epoch: int
    ) -> None:
        """Note the fetch offset of a follower: commit records, and let the follower join the ISR if it caught
        up.
        """
        deletes = self.delete_records_purgatory.delayed
        low_watermark = partition.low_watermark() if deletes else 0
        before, offset = replica.log_end_offset, wanted.fetch_offset
        now = self.clock.monotonic()
        replica.fetched(offset, wanted.fetcher_log_start_offset, leader_end, now, epoch)
        if self.awaited_followers.partitions:
            self.awaited_followers.fetched((partition.topic, partition.index), replica.broker_id)
        if self.isr_manager is not None and replica.broker_id not in partition.followers.isr:
            self.isr_manager.maybe_expand(partition, replica)
        if offset != before:
            partition.advance_high_watermark()
        if deletes and partition.low_watermark() > low_watermark:
            self.delete_records_purgatory.check((partition.topic, partition.index))

    def isr_changed(self, partition: Partition) -> None:
        """Handle a change of the ISR: high watermarks may move, and waiting produces may fail."""
        partition.isr_changed()
        if self.produce_purgatory.delayed:
            self.produce_purgatory.check((partition.topic, partition.index))

    def high_watermark_moved(self, partition: Partition) -> None:
        if partition.watchers or partition.end_watchers:
            partition.high_watermark_moved()
        if self.produce_purgatory.delayed:
            self.produce_purgatory.check((partition.topic, partition.index))

    def flush_then(
        self, partition: Partition, base_offset: int, done: Callable[[BaseException | None], None]
    ) -> None:
        """Flush the append at `base_offset` off the loop, then call `done`.

        A partition has one running flush. Appends during a flush share the next one.
        """
        partition.flushes.add(base_offset, done)
        if len(partition.replicas) > 1:
            partition.advance_high_watermark()  # followers fetch during the flush
        if not partition.flushes.running:
            self._flush(partition)

    def _flush(self, partition: Partition) -> None:
        try:
            job = partition.leader_log().begin_flush()
        except (KafkaError, OSError) as error:
            if isinstance(error, OSError):
                self._io_failed(partition, error)
                error = KafkaStorageError(f"{partition.name} could not be brought to the disk: {error}")
            partition.flush_ended(partition.flushes.begin(), error)
            return
        waiting = partition.flushes.begin()

        def flushed(_: object, error: BaseException | None) -> None:
            if error is None and job is not None and partition.log is not None:
                partition.log.end_flush(job, self.clock.ms())
            elif isinstance(error, OSError):
                self._io_failed(partition, error)
                error = KafkaStorageError(f"{partition.name} could not be brought to the disk: {error}")
            partition.flush_ended(waiting, error)
            # A callback may have appended again, and begun the next flush.
            if partition.flushes.next and partition.flushes.running is None:
                self._flush(partition)

        if job is None:
            flushed(None, None)
        else:
            self.scheduler.run_blocking(job.run, flushed)

    def _io_failed(self, partition: Partition, error: OSError) -> None:
        if partition.log is not None:
            self.logs.storage_failed(partition.log, error)

    # -- delete records ----------------------------------------------------------------------------

    def delete_records(
        self,
        offsets: dict[PartitionKey, int],
        timeout_ms: int,
        done: Callable[[dict[PartitionKey, tuple[int, KafkaError | None]]], None],
        on_failure: OnFailure | None = None,
    ) -> None:
        """Move log start offsets; calls `done` with the low watermarks when every replica has deleted its
        records.
        """
        operation = DelayedDeleteRecords(done, on_failure)
        for key, offset in offsets.items():
            try:
                partition = self.partition(*key)
                operation.want(key, partition, partition.delete_records_before(offset))
            except KafkaError as error:
                operation.failed(key, error)
        self.delete_records_purgatory.try_complete_else_watch(operation, list(offsets), timeout_ms)

    # -- life --------------------------------------------------------------------------------------

    def end_waits(self) -> None:
        """Answer the waiting fetches before the broker stops. Waiting produces may still complete."""
        self.fetch_purgatory.shutdown()
        self.follower_fetches.shutdown()
        self.delete_records_purgatory.shutdown()

    def shutdown(self) -> None:
        self.end_waits()
        self.produce_purgatory.shutdown()
        self._worker.close()


def _nothing_more(_: AppendResult) -> None:
    """The default `written`: does nothing."""


def _as_kafka_error(error: BaseException | None) -> KafkaError | None:
    return error if error is None or isinstance(error, KafkaError) else UnknownServerError(str(error))
