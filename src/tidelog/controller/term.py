"""ControllerTerm: the context, the state machines and the channels of a controller between election and
resignation.

Each election makes a new term with an empty context and the new epoch. So an earlier term cannot act in a
later one: its writes check an old epoch, and its events are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from tidelog.controller import election
from tidelog.controller.channel_manager import ControllerChannelManager
from tidelog.controller.context import ControllerContext
from tidelog.controller.event_manager import ControllerState
from tidelog.controller.partition_state_machine import ElectionStrategy, PartitionStateMachine
from tidelog.controller.parts import ControllerParts
from tidelog.controller.replica_state_machine import ReplicaStateMachine
from tidelog.controller.request_batch import BatchNotEmpty, ControllerBrokerRequestBatch, ResponseListener
from tidelog.controller.state_change_log import StateChangeLog
from tidelog.controller.states import PartitionAndReplica, PartitionStatus, ReplicaStatus
from tidelog.controller.topic_deletion import TopicDeletionManager
from tidelog.metadata.controller_store import ControllerStore
from tidelog.metadata.operations import ControllerEpoch
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition

_log = logging.getLogger("tidelog.controller")

PutEvent = Callable[[ControllerState, str, Callable[[], Awaitable[None]]], None]
"""Puts an event of this term into the controller's queue: its kind, its name, its work."""


class ControllerTerm:
    def __init__(
        self, parts: ControllerParts, epoch: ControllerEpoch, put: PutEvent, on_response: ResponseListener
    ) -> None:
        self.parts = parts
        self.epoch = epoch
        self.put = put
        self.cluster = parts.cluster
        self.store = ControllerStore(parts.cluster, epoch)
        self.context = ControllerContext()
        self.context.epoch, self.context.epoch_version = epoch
        self.log = StateChangeLog(parts.broker_id, self.context)
        self.channels = ControllerChannelManager(
            parts.transport, parts.channels, self.log, on_queue_time=parts.record_queue_time
        )
        self.batch = ControllerBrokerRequestBatch(
            parts.broker_id,
            self.context,
            self.channels,
            self.log,
            on_response,
            inter_broker_listener=parts.inter_broker_listener,
        )
        self.replicas = ReplicaStateMachine(self.context, self.store, self.batch, self.log)
        self.partitions = PartitionStateMachine(
            self.context, self.store, self.batch, self.log, parts.settings, parts.stats
        )
        self.deletion = TopicDeletionManager(
            self.context, self.store, self.partitions, self.replicas, self.batch, parts.settings
        )

    def drop_unsent(self) -> bool:
        """Empty the batch after an event that failed; returns whether it had requests."""
        try:
            self.batch.new_batch()
        except BatchNotEmpty:
            self.batch.clear()
            return True
        return False

    async def send_update_metadata(
        self, broker_ids: Iterable[int] | None = None, partitions: Iterable[TopicPartition] = ()
    ) -> None:
        """Send UpdateMetadata to brokers, by default to all, with the live brokers and these partitions."""
        self.batch.new_batch()
        targets = self.context.live_or_shutting_down_brokers if broker_ids is None else broker_ids
        self.batch.add_update_metadata(targets, partitions)
        await self.batch.send_requests()

    async def send_full_metadata(self, broker_ids: Iterable[int] | None = None) -> None:
        """Send UpdateMetadata with all partitions to brokers, by default to all. They forget deleted topics.

        If some topic cannot be read, it would look deleted: the request does not let brokers forget topics
        then.
        """
        self.batch.new_batch()
        targets = self.context.live_or_shutting_down_brokers if broker_ids is None else broker_ids
        self.batch.add_update_metadata(targets, self.context.partitions_with_leadership())
        await self.batch.send_requests(full_metadata=not self.context.unreadable_topics)

    async def create_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Give new partitions of the context their first leaders, and send the requests to brokers."""
        replicas = self.context.replicas_of_partitions(partitions)
        await self.partitions.handle_state_changes(partitions, PartitionStatus.NEW)
        await self.replicas.handle_state_changes(replicas, ReplicaStatus.NEW)
        await self.partitions.handle_state_changes(
            partitions, PartitionStatus.ONLINE, ElectionStrategy.OFFLINE_PARTITION
        )
        await self.replicas.handle_state_changes(replicas, ReplicaStatus.ONLINE)

    async def raise_leader_epochs(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionState]:
        """Write the next leader epoch of partitions, with the same leader and ISR; returns their states.

        Partitions without a state, or whose state a later controller wrote, are left out.
        """
        results: dict[TopicPartition, PartitionState] = {}
        states = {p: state for p in partitions if (state := self.context.leadership(p)) is not None}
        while states:
            outcome = await self.store.update_partition_states(
                {
                    partition: election.led_by(state, state.leader, state.isr, self.context.epoch)
                    for partition, state in states.items()
                }
            )
            for partition, error in outcome.failed.items():
                _log.error("the leader epoch of %s is not written: %s", partition, error)
            for partition, state in outcome.updated.items():
                self.context.put_partition(partition, state)
                results[partition] = state
            known = {partition: self.context.partitions[partition] for partition in outcome.retriable}
            found = await self.store.read_partition_states(known) if known else {}
            states = {p: state for p, state in found.items() if state.controller_epoch <= self.context.epoch}
        return results

    async def take_replicas_offline(self, replicas: Sequence[PartitionAndReplica]) -> None:
        """Elect other leaders for replicas whose broker or log folder is gone, and update all brokers."""
        existing: list[PartitionAndReplica] = []
        deleted: list[PartitionAndReplica] = []
        for replica in replicas:
            queued = self.context.is_topic_queued_for_deletion(replica.topic)
            (deleted if queued else existing).append(replica)
        updates = self.batch.metadata_updates
        leaderless = self.context.partitions_with_offline_leader()
        await self.partitions.handle_state_changes(leaderless, PartitionStatus.OFFLINE)
        await self.partitions.trigger_online_state_change()
        await self.replicas.handle_state_changes(existing, ReplicaStatus.OFFLINE)
        if deleted:
            # An offline replica cannot be deleted: the deletion continues when it is back.
            await self.deletion.fail_replicas(deleted)
        if self.batch.metadata_updates == updates:
            await (
                self.send_update_metadata()
            )  # no partition has changed, so the brokers lack the live brokers
