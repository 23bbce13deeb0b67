"""PartitionStateMachine: moves partitions between NonExistent, New, Online and Offline.

    New      the partition has replicas; nothing is written Online   its first leader is written, or another
    leader is elected and written; its brokers get LeaderAndIsr Offline  it has no leader; nothing is written
    NonExistent  it is deleted

`handle_state_changes` sends one batch of requests to brokers. It logs and skips changes that the table of
predecessors does not allow. It raises Fenced and TreeUnavailable of the store; the batch is not sent then,
and the controller resigns or starts anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TypeAlias

from tidelog.controller import election
from tidelog.controller.context import ControllerContext
from tidelog.controller.parts import ElectionStats
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.request_batch import ControllerBrokerRequestBatch
from tidelog.controller.state_change_log import StateChangeLog
from tidelog.controller.state_store import StateStore
from tidelog.controller.states import PartitionStatus, StateChangeFailed
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition
from tidelog.slices import in_slices


class ElectionStrategy(Enum):
    OFFLINE_PARTITION = "offline partition"
    """An in-sync replica; another one if the topic's unclean.leader.election.enable allows it."""

    UNCLEAN = "offline partition, unclean"
    """The same, with an unclean election allowed for every topic: an operator asked for it."""

    REASSIGNMENT = "reassignment"
    PREFERRED_REPLICA = "preferred replica"
    CONTROLLED_SHUTDOWN = "controlled shutdown"


ElectionResults: TypeAlias = dict[TopicPartition, PartitionState | Exception]
"""For each partition its elected state, or why there is none (mostly StateChangeFailed)."""


class PartitionStateMachine:
    def __init__(
        self,
        context: ControllerContext,
        store: StateStore,
        batch: ControllerBrokerRequestBatch,
        log: StateChangeLog,
        settings: ControllerSettings,
        stats: ElectionStats | None = None,
    ) -> None:
        self._context = context
        self._store = store
        self._batch = batch
        self._log = log
        self._settings = settings
        self._stats = stats or ElectionStats()

    async def startup(self) -> ElectionResults:
        """Set the status of every partition of the context, and elect leaders for those without one.

        A new controller calls it before the startup of the ReplicaStateMachine.
        """
        context = self._context
        async for some in in_slices(context.partitions):
            for partition in some:
                state = context.leadership(partition)
                if state is None:
                    status = PartitionStatus.NEW
                elif context.is_replica_online(state.leader, partition):
                    status = PartitionStatus.ONLINE
                else:
                    status = PartitionStatus.OFFLINE
                context.put_partition_status(partition, status)
        return await self.trigger_online_state_change()

    async def trigger_online_state_change(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> ElectionResults:
        """Try to bring partitions (by default all) that are new or offline online.

        Partitions to be deleted stay as they are.
        """
        if partitions is None:
            partitions = self._context.partition_statuses
        waiting = [
            partition
            for partition in partitions
            if self._context.partition_status(partition) in (PartitionStatus.NEW, PartitionStatus.OFFLINE)
            and not self._context.is_topic_queued_for_deletion(partition.topic)
        ]
        return await self.handle_state_changes(
            waiting, PartitionStatus.ONLINE, ElectionStrategy.OFFLINE_PARTITION
        )

    async def handle_state_changes(
        self,
        partitions: Sequence[TopicPartition],
        target: PartitionStatus,
        strategy: ElectionStrategy | None = None,
    ) -> ElectionResults:
        """Move partitions to another status, and send the requests to brokers.

        Returns the results of the elections, by `strategy`, for partitions that go from Offline or Online to
        Online. A partition without a new leader keeps its status.
        """
        if not partitions:
            return {}
        self._batch.new_batch()
        valid = await self._valid(partitions, target)
        results: ElectionResults = {}
        if target is PartitionStatus.ONLINE:
            results = await self._bring_online(valid, strategy)
        else:
            async for some in in_slices(valid):
                for partition in some:
                    self._put_status(partition, target)
        await self._batch.send_requests()
        return results

    async def _valid(
        self, partitions: Sequence[TopicPartition], target: PartitionStatus
    ) -> list[TopicPartition]:
        valid: list[TopicPartition] = []
        async for some in in_slices(partitions):
            for partition in some:
                if self._context.may_move_partition(partition, target):
                    valid.append(partition)
                else:
                    status = self._context.partition_status(partition)
                    self._log.partition_refused(partition, status, target)
        return valid

    def _put_status(
        self, partition: TopicPartition, status: PartitionStatus, state: PartitionState | None = None
    ) -> None:
        self._log.partition_changed(partition, self._context.partition_status(partition), status, state)
        self._context.put_partition_status(partition, status)

    async def _bring_online(
        self, partitions: Sequence[TopicPartition], strategy: ElectionStrategy | None
    ) -> ElectionResults:
        new: list[TopicPartition] = []
        led: list[TopicPartition] = []
        for partition in partitions:
            is_new = self._context.partition_status(partition) is PartitionStatus.NEW
            (new if is_new else led).append(partition)
        if new:
            await self._initialize(new)
        if not led:
            return {}
        if strategy is None:
            raise ValueError("an election needs a strategy")
        return await self._elect_leaders(led, strategy)

    # --- new partitions

    async def _initialize(self, partitions: Sequence[TopicPartition]) -> None:
        """Write the first leaders: the first online replica leads, and all online replicas are in sync."""
        states: dict[TopicPartition, PartitionState] = {}
        failed: dict[TopicPartition, Exception] = {}
        async for chunk in in_slices(partitions):
            for partition in chunk:
                state = self._context.partitions[partition]
                online = self._online(partition, state)
                if online:
                    first = election.first_state(state.replicas, online, self._context.epoch)
                    states[partition] = replace(first, adding=state.adding, removing=state.removing)
                else:
                    failed[partition] = StateChangeFailed(f"none of the replicas {state.replicas} is online")
        if states:
            failed |= await self._store.create_partition_states(states)
        async for some in in_slices(states.items()):
            for partition, state in some:
                if partition not in failed:
                    self._context.put_partition(partition, state)
                    self._batch.add_leader_and_isr(state.isr, partition, state, is_new=True)
                    self._put_status(partition, PartitionStatus.ONLINE, state)
        self._log.partitions_failed(failed, PartitionStatus.ONLINE)

    def _online(
        self, partition: TopicPartition, state: PartitionState, *, include_shutting_down: bool = False
    ) -> set[int]:
        return {
            replica
            for replica in state.replicas
            if self._context.is_replica_online(
                replica, partition, include_shutting_down=include_shutting_down
            )
        }

    # --- elections

    async def _elect_leaders(
        self, partitions: Sequence[TopicPartition], strategy: ElectionStrategy
    ) -> ElectionResults:
        """Elect leaders and write them.

        Repeat that for partitions whose state another writer changed meanwhile.
        """
        results: ElectionResults = {}
        states = {partition: self._context.partitions[partition] for partition in partitions}
        while states:
            retriable = await self._try_to_elect(states, strategy, results)
            states = await self._read_again(retriable, results)
        failed = {partition: result for partition, result in results.items() if isinstance(result, Exception)}
        self._log.partitions_failed(failed, PartitionStatus.ONLINE)
        return results

    async def _try_to_elect(
        self,
        states: Mapping[TopicPartition, PartitionState],
        strategy: ElectionStrategy,
        results: ElectionResults,
    ) -> list[TopicPartition]:
        """Add the results of one attempt; returns the partitions that need another one."""
        unclean = await self._unclean_topics(states, strategy)
        elected: dict[TopicPartition, PartitionState] = {}
        async for some in in_slices(states.items()):
            for partition, state in some:
                leader = self._elected(partition, state, strategy, unclean)
                if leader is None:
                    results[partition] = StateChangeFailed(f"no replica may lead ({strategy.value})")
                else:
                    elected[partition] = leader
        if not elected:
            return []
        outcome = await self._store.update_partition_states(elected)
        results.update(outcome.failed)
        async for written in in_slices(outcome.updated.items()):
            for partition, state in written:
                self._led(partition, state, strategy)
                results[partition] = state
        return outcome.retriable

    def _elected(
        self,
        partition: TopicPartition,
        state: PartitionState,
        strategy: ElectionStrategy,
        unclean_topics: frozenset[str],
    ) -> PartitionState | None:
        epoch = self._context.epoch
        if strategy is ElectionStrategy.CONTROLLED_SHUTDOWN:
            online = self._online(partition, state, include_shutting_down=True)
            shutting_down = self._context.leaving_broker_ids
            return election.elect_for_shutdown(state, online, epoch, shutting_down=shutting_down)
        online = self._online(partition, state)
        if strategy is ElectionStrategy.REASSIGNMENT:
            return election.elect_for_reassignment(state, online, epoch)
        if strategy is ElectionStrategy.PREFERRED_REPLICA:
            return election.elect_preferred(state, online, epoch)
        unclean = partition.topic in unclean_topics
        return election.elect_for_offline(state, online, epoch, unclean=unclean)

    async def _unclean_topics(
        self, states: Mapping[TopicPartition, PartitionState], strategy: ElectionStrategy
    ) -> frozenset[str]:
        """The topics that allow an unclean election, among those that need one."""
        if strategy not in (ElectionStrategy.OFFLINE_PARTITION, ElectionStrategy.UNCLEAN):
            return frozenset()
        topics = {
            partition.topic: None
            for partition, state in states.items()
            if not any(self._context.is_replica_online(replica, partition) for replica in state.isr)
            and not self._context.suspected_broker_ids.intersection(state.isr)
            and self._online(partition, state)
        }
        if strategy is ElectionStrategy.UNCLEAN or not topics:
            return frozenset(topics)
        configs = await self._store.topic_configs(topics)
        return frozenset(topic for topic in topics if self._allows_unclean(configs.get(topic, {})))

    def _allows_unclean(self, configs: Mapping[str, str]) -> bool:
        value = configs.get("unclean.leader.election.enable")
        return self._settings.unclean_leader_election_enable if value is None else value.lower() == "true"

    def _led(self, partition: TopicPartition, state: PartitionState, strategy: ElectionStrategy) -> None:
        """Add LeaderAndIsr with the new leader for all replicas of a partition to the batch."""
        self._stats.elections += 1
        self._stats.unclean_elections += state.leader not in self._context.partitions[partition].isr
        self._context.put_partition(partition, state)
        if strategy is ElectionStrategy.REASSIGNMENT:
            recipients = election.target_replicas(state)
        elif strategy is ElectionStrategy.PREFERRED_REPLICA:
            recipients = state.replicas
        else:
            including = strategy is ElectionStrategy.CONTROLLED_SHUTDOWN
            online = self._online(partition, state, include_shutting_down=including)
            recipients = [replica for replica in state.replicas if replica in online]
        self._batch.add_leader_and_isr(recipients, partition, state, is_new=False)
        self._put_status(partition, PartitionStatus.ONLINE, state)

    async def _read_again(
        self, partitions: Sequence[TopicPartition], results: ElectionResults
    ) -> dict[TopicPartition, PartitionState]:
        """Read the states of partitions whose version in the tree differs from the context."""
        if not partitions:
            return {}
        self._log.info("electing leaders again for %d partitions, whose states changed", len(partitions))
        known = {partition: self._context.partitions[partition] for partition in partitions}
        found = await self._store.read_partition_states(known)
        current: dict[TopicPartition, PartitionState] = {}
        for partition in partitions:
            state = found.get(partition)
            if state is None:
                results[partition] = StateChangeFailed("its state is not in the tree")
            elif state.controller_epoch > self._context.epoch:
                by = f"a controller with epoch {state.controller_epoch}"
                results[partition] = StateChangeFailed(f"its state was written by {by}")
            else:
                current[partition] = state
                self._context.put_partition(partition, state)
        return current
