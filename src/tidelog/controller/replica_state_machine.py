"""ReplicaStateMachine: moves replicas between New, Online, Offline and the states of their deletion.

    New      the broker gets LeaderAndIsr, to create the replica
    Online   the broker gets LeaderAndIsr, to lead or follow
    Offline  the broker gets StopReplica; the replica leaves the ISR
    DeletionStarted      the broker gets StopReplica with the deletion of the replica
    DeletionSuccessful   the broker answered
    DeletionIneligible   the broker is down, or it answered with an error
    NonExistent          the replica leaves the assignment

`handle_state_changes` sends one batch of requests to brokers. It logs and skips changes that the table of
predecessors does not allow. It raises Fenced and TreeUnavailable of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidelog.controller import election
from tidelog.controller.context import ControllerContext
from tidelog.controller.request_batch import ControllerBrokerRequestBatch
from tidelog.controller.state_change_log import StateChangeLog, leadership_text
from tidelog.controller.state_store import StateStore
from tidelog.controller.states import PartitionAndReplica, ReplicaStatus, StateChangeFailed
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition
from tidelog.slices import in_slices


class ReplicaStateMachine:
    def __init__(
        self,
        context: ControllerContext,
        store: StateStore,
        batch: ControllerBrokerRequestBatch,
        log: StateChangeLog,
    ) -> None:
        self._context = context
        self._store = store
        self._batch = batch
        self._log = log

    async def startup(self) -> None:
        """Set the status of every replica of the context, and send LeaderAndIsr to the brokers.

        A new controller calls it after the startup of the PartitionStateMachine. Replicas of dead brokers
        start as ineligible for deletion: their brokers may have died during the deletion of their topic.
        """
        online: list[PartitionAndReplica] = []
        offline: list[PartitionAndReplica] = []
        async for some in in_slices(self._context.all_replicas()):
            for replica, is_online in some:
                status = ReplicaStatus.ONLINE if is_online else ReplicaStatus.DELETION_INELIGIBLE
                self._context.put_replica_status(replica, status)
                (online if is_online else offline).append(replica)
        await self.handle_state_changes(online, ReplicaStatus.ONLINE)
        await self.handle_state_changes(offline, ReplicaStatus.OFFLINE)

    async def handle_state_changes(
        self, replicas: Sequence[PartitionAndReplica], target: ReplicaStatus
    ) -> None:
        """Move replicas to another status, and send the requests to brokers."""
        if not replicas:
            return
        self._batch.new_batch()
        by_broker: dict[int, list[PartitionAndReplica]] = {}
        async for some in in_slices(replicas):
            for replica in some:
                if self._context.may_move_replica(replica, target):
                    by_broker.setdefault(replica.replica, []).append(replica)
                else:
                    self._log.replica_refused(replica, self._context.replica_status(replica), target)
        for broker_id, valid in by_broker.items():
            if target is ReplicaStatus.OFFLINE:
                await self._take_offline(broker_id, valid)
            else:
                await self._move(valid, target)
        await self._batch.send_requests()

    async def _move(self, replicas: Sequence[PartitionAndReplica], target: ReplicaStatus) -> None:
        async for some in in_slices(replicas):
            for replica in some:
                if target is ReplicaStatus.NEW:
                    self._create(replica)
                elif target is ReplicaStatus.ONLINE:
                    self._bring_online(replica)
                elif target is ReplicaStatus.NON_EXISTENT:
                    self._remove(replica)
                else:
                    if target is ReplicaStatus.DELETION_STARTED:
                        self._batch.add_stop_replica([replica.replica], replica.topic_partition, delete=True)
                    self._put_status(replica, target)

    def _put_status(self, replica: PartitionAndReplica, status: ReplicaStatus) -> None:
        self._log.replica_changed(replica, self._context.replica_status(replica), status)
        self._context.put_replica_status(replica, status)

    def _create(self, replica: PartitionAndReplica) -> None:
        """Create a replica. Its broker gets LeaderAndIsr at once, or when the partition gets its first
        leader.
        """
        partition = replica.topic_partition
        state = self._context.leadership(partition)
        if state is not None and state.leader == replica.replica:
            error = StateChangeFailed("it leads the partition, which a new replica cannot")
            status = self._context.replica_status(replica)
            self._log.replica_failed(replica, status, ReplicaStatus.NEW, error)
            return
        if state is not None:
            self._batch.add_leader_and_isr([replica.replica], partition, state, is_new=True)
        self._put_status(replica, ReplicaStatus.NEW)

    def _bring_online(self, replica: PartitionAndReplica) -> None:
        partition = replica.topic_partition
        state = self._context.partitions[partition]
        if self._context.replica_status(replica) is ReplicaStatus.NEW:
            if replica.replica not in state.replicas:
                self._log.error("replica %s was not in the assignment %s", replica, state.replicas)
                replicas = [*state.replicas, replica.replica]
                self._context.put_partition(partition, replace(state, replicas=replicas))
        else:
            led = self._context.leadership(partition)
            if led is not None:
                self._batch.add_leader_and_isr([replica.replica], partition, led, is_new=False)
        self._put_status(replica, ReplicaStatus.ONLINE)

    def _remove(self, replica: PartitionAndReplica) -> None:
        partition = replica.topic_partition
        self._put_status(replica, ReplicaStatus.NON_EXISTENT)
        state = self._context.partitions.get(partition)
        if state is not None:
            remaining, adding, removing = (
                [broker_id for broker_id in brokers if broker_id != replica.replica]
                for brokers in (state.replicas, state.adding, state.removing)
            )
            self._context.put_assignment(partition, remaining, adding, removing)
        del self._context.replica_statuses[replica]

    # --- offline replicas

    async def _take_offline(self, broker_id: int, replicas: Sequence[PartitionAndReplica]) -> None:
        states: dict[TopicPartition, PartitionState] = {}
        async for some in in_slices(replicas):
            for replica in some:
                partition = replica.topic_partition
                self._batch.add_stop_replica([broker_id], partition, delete=False)
                state = self._context.leadership(partition)
                if self._context.is_topic_queued_for_deletion(partition.topic):
                    # The ISR of a deleted topic is not used any more: no write for each replica.
                    self._put_status(replica, ReplicaStatus.OFFLINE)
                elif state is not None:
                    states[partition] = state
                else:
                    live = self._context.live_or_shutting_down_brokers
                    self._batch.add_update_metadata(live, (partition,))
                    self._put_status(replica, ReplicaStatus.OFFLINE)
        async for updated in in_slices(list((await self._remove_from_isr(broker_id, states)).items())):
            for partition, state in updated:
                self._left_isr(broker_id, partition, state)

    def _left_isr(self, broker_id: int, partition: TopicPartition, state: PartitionState) -> None:
        others = [replica for replica in state.replicas if replica != broker_id]
        self._batch.add_leader_and_isr(others, partition, state, is_new=False)
        self._put_status(PartitionAndReplica(*partition, broker_id), ReplicaStatus.OFFLINE)

    async def _remove_from_isr(
        self, broker_id: int, states: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        """Remove a replica from the ISR of partitions.

        Repeat that for partitions that another writer changed. Returns the states without the replica, for
        the partitions that are in the tree.
        """
        results: dict[TopicPartition, PartitionState] = {}
        while states:
            smaller: dict[TopicPartition, PartitionState] = {}
            async for some in in_slices(states.items()):
                for partition, state in some:
                    if broker_id in state.isr:
                        smaller[partition] = election.without_replica(state, broker_id, self._context.epoch)
                    else:
                        results[partition] = state
            if not smaller:
                break
            outcome = await self._store.update_partition_states(smaller)
            for partition, error in outcome.failed.items():
                self._failed(broker_id, partition, error)
            async for updated in in_slices(outcome.updated.items()):
                for partition, state in updated:
                    self._left(broker_id, partition, state)
                    results[partition] = state
            states = await self._read_again(broker_id, outcome.retriable)
        return results

    def _left(self, broker_id: int, partition: TopicPartition, state: PartitionState) -> None:
        self._log.info("partition %s: %s without replica %d", partition, leadership_text(state), broker_id)
        self._context.put_partition(partition, state)

    async def _read_again(
        self, broker_id: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, PartitionState]:
        """Read the states of partitions whose version in the tree differs from the context."""
        if not partitions:
            return {}
        known = {partition: self._context.partitions[partition] for partition in partitions}
        found = await self._store.read_partition_states(known)
        current: dict[TopicPartition, PartitionState] = {}
        for partition in partitions:
            state = found.get(partition)
            if state is None:
                self._failed(broker_id, partition, StateChangeFailed("its state is not in the tree"))
            elif state.controller_epoch > self._context.epoch:
                by = f"a controller with epoch {state.controller_epoch}"
                self._failed(broker_id, partition, StateChangeFailed(f"its state was written by {by}"))
            else:
                current[partition] = state
                self._context.put_partition(partition, state)
        return current

    def _failed(self, broker_id: int, partition: TopicPartition, error: Exception) -> None:
        replica = PartitionAndReplica(*partition, broker_id)
        status = self._context.replica_status(replica)
        self._log.replica_failed(replica, status, ReplicaStatus.OFFLINE, error)
