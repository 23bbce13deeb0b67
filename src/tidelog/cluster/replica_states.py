"""ReplicaStates: applies the requests of the controller to the partitions of this broker.

LeaderAndIsr, StopReplica and UpdateMetadata are applied one after the other. The first two are fenced twice:
a request of an older controller is refused as a whole, and each partition is fenced by its leader epoch and
its partition epoch. This broker leads a partition only when its log is durable, and confirms a deletion only
when a crash cannot bring the files back. A follower fetches from a new leader when all appends from the old
one have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.cluster.leadership import Leadership
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_fetcher_manager import ReplicaFetcherManager
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.cluster.topic_overrides import TopicOverrides
from tidelog.errors import (
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    StaleControllerEpoch,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.metadata.state import INTERNAL_TOPICS, NO_TOPIC_ID, PartitionState
from tidelog.metadata.tree import TreeUnavailable
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tidelog.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tidelog.slices import Slices, TaskSlices, finished
from tidelog.storage.config import LogConfig
from tidelog.storage.log_creation import WantedLog

log = logging.getLogger("tidelog.cluster")

CHANGES_NS: Final = 500_000
"""How long the changes of a request keep the loop from other requests at a time."""

ROOM_SECONDS: Final = 5.0
"""When the controller is asked again for the states of partitions whose logs had no room."""

NO_EPOCH: Final = -1
"""The leader epoch of a StopReplica that is not fenced."""

EPOCH_DURING_DELETE: Final = -2
"""The leader epoch of a StopReplica for a topic that is deleted: it overrides every epoch."""


@dataclass(slots=True)
class PartitionChange:
    """The new state of a partition of this broker."""

    topic: str
    topic_id: bytes
    index: int
    state: PartitionState
    is_new: bool

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.index


def check_leader_and_isr(
    current: Partition | None, log_id: bytes | None, change: PartitionChange, me: int
) -> None:
    """Raise the KafkaError if a LeaderAndIsr may not change a partition; `log_id` is the topic id of its log.

    As in Kafka, a state that is not newer is refused with STALE_CONTROLLER_EPOCH. The controller ignores this
    error, which it also gets when it repeats a request whose answer was lost.
    """
    state = change.state
    ids = (log_id or NO_TOPIC_ID, current.topic_id if current is not None else NO_TOPIC_ID)
    for known in ids:
        if NO_TOPIC_ID not in (known, change.topic_id) and known != change.topic_id:
            raise InconsistentTopicId(f"the topic id is {known.hex()} here, not {change.topic_id.hex()}")
    if current is not None:
        present = (current.leader_epoch, current.partition_epoch)
        if (state.leader_epoch, state.partition_epoch) <= present:
            raise StaleControllerEpoch(
                f"leader epoch {state.leader_epoch}, partition epoch {state.partition_epoch} are not newer "
                f"than {present[0]} and {present[1]}"
            )
    if me not in state.replicas:
        raise UnknownTopicOrPartition(f"broker {me} is none of the replicas {state.replicas}")


def check_stop_replica(current: Partition | None, leader_epoch: int) -> None:
    """Raise FencedLeaderEpoch if a StopReplica with this leader epoch may not stop a partition."""
    if current is None or leader_epoch in (NO_EPOCH, EPOCH_DURING_DELETE):
        return
    if leader_epoch < current.leader_epoch:
        raise FencedLeaderEpoch(
            f"leader epoch {leader_epoch} is older than the present {current.leader_epoch}"
        )


class ReplicaStates:
    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        overrides: TopicOverrides,
        log_config: Callable[[Mapping[str, str]], LogConfig],
        coordinators: Mapping[str, Leadership],
    ) -> None:
        """`log_config` makes the settings of a log from those that its topic overrides."""
        self._replicas = replicas
        self._logs = replicas.logs
        self._metadata = metadata
        self._overrides = overrides
        self._log_config = log_config
        self._coordinators = coordinators
        self._lock = asyncio.Lock()
        self._waits_for_room = False
        self.controller_epoch = 0
        """The highest epoch of a controller so far."""
        self._newest_connection = (0, 0)  # the epoch of its controller, and its number
        self.fetchers: ReplicaFetcherManager | None = None
        """Fetch the partitions that other brokers lead."""
        self.on_hosted: Callable[[Partition], None] | None = None
        """Called for each partition that this broker leads or follows from now on."""
        self.on_lacking_room: Callable[[], None] | None = None
        """Called every few seconds while logs lack room: the controller has to send its states again."""

    # -- requests

    def check_connection(self, controller_epoch: int, number: int) -> None:
        """Raise StaleControllerEpoch if the controller has opened a newer connection since.

        A controller has one connection at a time, with rising numbers. It has repeated the request over the
        newer connection and sent others after it. Applied now, the request could bring a deleted partition
        back.
        """
        epoch, newest = self._newest_connection
        if controller_epoch == epoch and number < newest:
            raise StaleControllerEpoch("the controller has sent the request again, over a newer connection")
        if controller_epoch >= epoch:
            self._newest_connection = (controller_epoch, number)

    async def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        async with self._lock:
            self._check_controller(request.controller_id, request.controller_epoch)
            await self._metadata.apply(request)
        return UpdateMetadataResponse()

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        async with self._lock:
            self._check_controller(request.controller_id, request.controller_epoch)
            slices = TaskSlices(CHANGES_NS)
            outcomes: dict[PartitionKey, int] = {}
            changes = await self._accepted(request, outcomes, slices)
            self._stop_fetching([change.key for change in changes if self._has_new_leader(change)])
            await self._make_logs(changes, slices)
            self._wait_for_room()
            followed: list[Partition] = []
            for change in changes:
                outcomes[change.key] = await self._outcome(change.key, self._apply(change, followed))
                await slices.item()
            if self.fetchers is not None:
                self.fetchers.add(followed)
                self.fetchers.end_idle()
        return await finished(_leader_and_isr_response(request, outcomes))

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        async with self._lock:
            self._check_controller(request.controller_id, request.controller_epoch)
            slices = TaskSlices(CHANGES_NS)
            outcomes: dict[PartitionKey, int] = {}
            deleted: list[PartitionKey] = []
            for topic in request.topic_states:
                for partition in topic.partition_states:
                    key = (topic.topic_name, partition.partition_index)
                    outcomes[key] = await self._outcome(key, self._stop(key, partition))
                    await slices.item()
                    if partition.delete_partition and not outcomes[key]:
                        deleted.append(key)
            if self.fetchers is not None:
                self.fetchers.end_idle()
            await self._sync_deletions(deleted, outcomes)
        return StopReplicaResponse(
            partition_errors=[
                StopReplicaResponse.StopReplicaPartitionError(
                    topic_name=topic, partition_index=index, error_code=code
                )
                for (topic, index), code in outcomes.items()
            ]
        )

    def topic_config_changed(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Replace the settings that a topic overrides."""
        if self._overrides.changed(topic, overrides):
            self._replicas.update_config(topic, self._log_config(overrides))

    def broker_settings_changed(self) -> None:
        """Update the settings of all topics: the broker's settings are their defaults."""
        for topic in list(self._replicas.topics):
            self._replicas.update_config(topic, self._log_config(self._overrides.of(topic)))

    def partitions_offline(self, lost: Iterable[PartitionKey]) -> None:
        """Take the partitions of a failed log folder offline; their coordinators resign."""
        lost = list(lost)
        self._stop_fetching(lost)
        self._replicas.partitions_offline(lost)
        for topic, index in lost:
            self._resign(topic, index)

    # -- becoming leader or follower

    def _check_controller(self, controller_id: int, epoch: int) -> None:
        if epoch < self.controller_epoch:
            raise StaleControllerEpoch(
                f"controller {controller_id} has epoch {epoch}, the latest known is {self.controller_epoch}"
            )
        self.controller_epoch = epoch

    async def _accepted(
        self, request: LeaderAndIsrRequest, outcomes: dict[PartitionKey, int], slices: TaskSlices
    ) -> list[PartitionChange]:
        """The changes of a request that may be applied; `outcomes` gets the error codes of the others."""
        changes = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                change = PartitionChange(
                    topic.topic_name, topic.topic_id, state.partition_index, _state(state), state.is_new
                )
                try:
                    self._check(change)
                    changes.append(change)
                except KafkaError as error:
                    level = logging.INFO if isinstance(error, StaleControllerEpoch) else logging.WARNING
                    log.log(level, "the controller's state of %s-%d is refused: %s", *change.key, error)
                    outcomes[change.key] = error.code
                await slices.item()
        return changes

    def _check(self, change: PartitionChange) -> None:
        partition = self._replicas.find_partition(*change.key)
        local_log = self._logs.get(*change.key)
        if partition is not None and partition.offline and change.key in self._logs.failed:
            raise KafkaStorageError(self._logs.failed[change.key])
        log_id = None if local_log is None else local_log.topic_id
        check_leader_and_isr(partition, log_id, change, self._replicas.broker_id)

    async def _make_logs(self, changes: list[PartitionChange], slices: TaskSlices) -> None:
        """Create the missing logs durably, off the loop.

        A failed creation makes `_apply` raise for its partition.
        """
        try:
            await self._overrides.load([change.topic for change in changes])
        except TreeUnavailable as error:
            # A log with other settings could lose records. The controller sends its states again when this
            # broker has a new session.
            log.error("the settings of new logs cannot be read: %s", error)
            raise UnknownServerError(f"the settings of new logs cannot be read: {error}") from error
        for is_new in (True, False):
            logs: list[WantedLog] = []
            for change in changes:
                if change.is_new is is_new:
                    logs.append(self._wanted_log(change))
                    await slices.item()
            if logs:
                await self._create_logs(logs, is_new)

    def _wanted_log(self, change: PartitionChange) -> WantedLog:
        topic_id = None if change.topic_id == NO_TOPIC_ID else change.topic_id
        return WantedLog(change.topic, change.index, topic_id, self._config_of(change.topic))

    async def _create_logs(self, logs: list[WantedLog], is_new: bool) -> None:
        creation: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finished(lacking_room: set[PartitionKey]) -> None:
            for topic, index in lacking_room:
                log.error("there is no room for the log of %s-%d", topic, index)
            if not creation.done():
                creation.set_result(None)

        self._logs.creator.create_later(logs, finished, is_new=is_new)
        await creation

    def _wait_for_room(self) -> None:
        if self._logs.creator.lacking_room and not self._waits_for_room:
            self._waits_for_room = True
            self._replicas.scheduler.schedule(ROOM_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        self._waits_for_room = False
        if self._logs.creator.lacking_room and self.on_lacking_room is not None:
            self.on_lacking_room()
        self._wait_for_room()

    def _has_new_leader(self, change: PartitionChange) -> bool:
        partition = self._replicas.find_partition(*change.key)
        return partition is None or partition.leader_epoch != change.state.leader_epoch

    def _stop_fetching(self, keys: Iterable[PartitionKey]) -> None:
        if self.fetchers is not None:
            self.fetchers.remove(keys)

    async def _apply(self, change: PartitionChange, followed: list[Partition]) -> None:
        """Apply a change. Adds the partition to `followed` if it has to be fetched from a new leader."""
        partition = self._replicas.find_partition(*change.key)
        if partition is None:
            self._change(change)
        elif change.state.leader_epoch == partition.leader_epoch:
            self._change(change)
            return
        else:
            await _between_appends(partition, lambda: self._change(change))
        partition = self._replicas.find_partition(*change.key)
        if partition is not None and not partition.is_leader:
            followed.append(partition)

    def _change(self, change: PartitionChange) -> None:
        leads = change.state.leader == self._replicas.broker_id
        become = self._replicas.become_leader if leads else self._replicas.become_follower
        partition = become(
            change.topic,
            change.topic_id,
            change.index,
            change.state,
            # The settings may have changed while the logs were created.
            self._config_of(change.topic),
            is_internal=change.topic in INTERNAL_TOPICS,
            is_new=change.is_new,
        )
        coordinator = self._coordinators.get(change.topic)
        if coordinator is not None and leads:
            coordinator.elected(partition)
        elif coordinator is not None:
            coordinator.resigned(change.index)
        if self.on_hosted is not None:
            self.on_hosted(partition)

    def _config_of(self, topic: str) -> LogConfig:
        return self._log_config(self._overrides.of(topic))

    # -- stopping

    async def _stop(self, key: PartitionKey, state: StopReplicaRequest.StopReplicaPartitionState) -> None:
        partition = self._replicas.find_partition(*key)
        if (partition is not None or key in self._logs.failed) and self._logs.may_be_offline(key):
            raise KafkaStorageError(self._logs.why_offline(key))
        check_stop_replica(partition, state.leader_epoch)
        self._stop_fetching([key])
        if state.delete_partition:
            self._resign(*key)
            if partition is not None and partition.log is not None and partition.log.is_truncating:
                await _between_appends(partition, lambda: None)
            self._replicas.delete_partition(*key)
            if key[0] not in self._replicas.topics:
                self._overrides.forget(key[0])
        elif partition is not None and partition.is_leader:
            stopped = partition
            await _between_appends(partition, lambda: self._replicas.stop_leading(stopped))
            self._resign(*key)

    def _resign(self, topic: str, index: int) -> None:
        coordinator = self._coordinators.get(topic)
        if coordinator is not None:
            coordinator.resigned(index)

    async def _sync_deletions(self, deleted: list[PartitionKey], outcomes: dict[PartitionKey, int]) -> None:
        if not deleted:
            return
        sync: asyncio.Future[KafkaStorageError | None] = asyncio.get_running_loop().create_future()

        def finished(error: KafkaStorageError | None) -> None:
            if not sync.done():
                sync.set_result(error)

        self._logs.deletions.sync(finished)
        error = await sync
        if error is not None:
            log.error("the deletion of %d partitions is not durable: %s", len(deleted), error)
            outcomes.update(dict.fromkeys(deleted, error.code))

    async def _outcome(self, key: PartitionKey, change: Awaitable[None]) -> int:
        try:
            await change
        except KafkaError as error:
            log.error("%s-%d cannot be as the controller wants it: %s", *key, error)
            return error.code
        except Exception:
            log.exception("%s-%d cannot be as the controller wants it", *key)
            return UnknownServerError.code
        return 0


def _leader_and_isr_response(
    request: LeaderAndIsrRequest, outcomes: Mapping[PartitionKey, int]
) -> Slices[LeaderAndIsrResponse]:
    response = LeaderAndIsrResponse(topics=[])
    for topic_state in request.topic_states:
        topic_answer = LeaderAndIsrResponse.LeaderAndIsrTopicError(
            topic_id=topic_state.topic_id, partition_errors=[]
        )
        response.topics.append(topic_answer)
        for partition in topic_state.partition_states:
            index = partition.partition_index
            topic_answer.partition_errors.append(
                LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                    partition_index=index, error_code=outcomes[topic_state.topic_name, index]
                )
            )
            yield
    return response


def _state(state: LeaderAndIsrRequest.LeaderAndIsrPartitionState) -> PartitionState:
    return PartitionState(
        state.replicas,
        state.leader,
        state.leader_epoch,
        state.isr,
        state.partition_epoch,
        state.controller_epoch,
        state.adding_replicas,
        state.removing_replicas,
    )


async def _between_appends(partition: Partition, change: Callable[[], None]) -> None:
    """Call `change` between two appends of the partition, and wait for it. Raises its exception."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def make_change() -> None:
        try:
            change()
        except Exception as error:
            if not outcome.done():
                outcome.set_exception(error)
        else:
            if not outcome.done():
                outcome.set_result(None)

    partition.appends.between(make_change)
    await outcome
