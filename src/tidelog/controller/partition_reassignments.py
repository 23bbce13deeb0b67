"""PartitionReassignments: moves partitions to other brokers, and changes how many replicas they have.

The tree names the adding and removing replicas of a topic while a reassignment runs, so that the next
controller goes on with it. The steps of a reassignment:

1. The tree gets all replicas, old and new; replicas that a replaced reassignment was adding are deleted.
2. All replicas get the next leader epoch, and the adding ones are created.
3. When the ISR has every replica of the target, one of them leads, the others are removed from the ISR and
   deleted, and the tree gets the target.

Many partitions pass each step together. An election that fails leaves its reassignment running: the next
change of the ISR, or the return of a broker, tries step 3 again.

A tool may also request reassignments by the node /admin/reassign_partitions. The controller removes a
partition from the node when it has moved.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tidelog.controller.event_manager import ControllerState
from tidelog.controller.partition_state_machine import ElectionStrategy
from tidelog.controller.replica_assignment import ReplicaAssignment
from tidelog.controller.states import PartitionAndReplica, PartitionStatus, ReplicaStatus
from tidelog.controller.term import ControllerTerm
from tidelog.controller.watches import ChangeWatch
from tidelog.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    NoReassignmentInProgress,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from tidelog.metadata.state import PartitionState
from tidelog.metadata.tree import WatchEvent
from tidelog.partitions import TopicPartition
from tidelog.slices import in_slices

_log = logging.getLogger("tidelog.controller")

Assignments = dict[TopicPartition, ReplicaAssignment]
Errors = dict[TopicPartition, KafkaError]


class PartitionReassignments:
    def __init__(self, term: ControllerTerm) -> None:
        self._term = term
        self._context = term.context
        self._requests = ChangeWatch(self._requested)

    def close(self) -> None:
        self._requests.close()

    def _requested(self, _event: WatchEvent) -> None:
        self._term.put(
            ControllerState.ALTER_PARTITION_REASSIGNMENT,
            "ZkPartitionReassignment",
            self.zk_partition_reassignment,
        )

    # --- requests

    async def alter(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, allow_replication_factor_change: bool
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin reassignments; None for the replicas cancels one. Returns the error of each partition."""
        planned: Assignments = {}
        errors: Errors = {}
        for partition, target in wanted.items():
            try:
                planned[partition] = self._plan(
                    partition, target, is_factor_fixed=not allow_replication_factor_change
                )
            except KafkaError as error:
                errors[partition] = error
        # The newest request wins, from AlterPartitionReassignments or from the node of tools.
        await self._term.store.remove_reassignment_requests(dict.fromkeys(planned))
        errors |= await self._begin(planned)
        return {partition: errors.get(partition) for partition in wanted}

    def listed(self, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, PartitionState]:
        """The partitions that are being reassigned, among `partitions` or among all."""
        named = self._context.partitions_being_reassigned if partitions is None else partitions
        found = ((partition, self._context.partitions.get(partition)) for partition in named)
        return {
            partition: state
            for partition, state in found
            if state is not None and (state.adding or state.removing)
        }

    async def zk_partition_reassignment(self) -> None:
        """Begin the reassignments that a tool has requested by the node /admin/reassign_partitions."""
        wanted = await self._term.cluster.read_reassignments(self._requests.set())
        planned: Assignments = {}
        errors: Errors = {}
        for partition, target in (wanted or {}).items():
            try:
                assignment = self._plan(partition, target, may_be_offline=True)
            except KafkaError as error:
                errors[partition] = error
                continue
            if not self._is_running(partition, assignment):
                planned[partition] = assignment
        errors |= await self._begin(planned)
        if errors:
            for partition, reason in errors.items():
                _log.warning("%s is not reassigned: %s", partition, reason)
            await self._term.store.remove_reassignment_requests(dict.fromkeys(errors))

    def _is_running(self, partition: TopicPartition, assignment: ReplicaAssignment) -> bool:
        return (
            partition in self._context.partitions_being_reassigned
            and ReplicaAssignment.of(self._context.partitions[partition]) == assignment
        )

    def _plan(
        self,
        partition: TopicPartition,
        target: Sequence[int] | None,
        *,
        is_factor_fixed: bool = False,
        may_be_offline: bool = False,
    ) -> ReplicaAssignment:
        """The assignment during a reassignment to `target`, or back to the origin for None."""
        state = self._context.partitions.get(partition)
        present = ReplicaAssignment([]) if state is None else ReplicaAssignment.of(state)
        if target is None:
            if not present.is_being_reassigned:
                raise NoReassignmentInProgress("The partition is not being reassigned.")
            planned = present.reassigned_to(present.origin)
        else:
            _check_target(target)
            planned = present.reassigned_to(target)
            live = self._context.live_broker_ids
            absent = [replica for replica in planned.adding if replica not in live]
            if absent and not may_be_offline:
                raise InvalidReplicaAssignment(
                    f"The brokers {absent} of the replica list {[*target]} are not alive; "
                    f"the live brokers are {sorted(live)}."
                )
            if is_factor_fixed and state is not None and len(target) != len(present.target):
                raise InvalidReplicationFactor(
                    f"The replication factor would change from {len(present.target)} to {len(target)}."
                )
        if state is None:
            raise UnknownTopicOrPartition("The partition does not exist.")
        if self._context.is_topic_queued_for_deletion(partition.topic):
            raise UnknownTopicOrPartition("The topic is being deleted.")
        if state.isr and not any(member in planned.replicas for member in state.isr):
            # Otherwise only replicas that the running reassignment adds have all records.
            raise InvalidReplicaAssignment(
                f"None of the replicas {planned.replicas} is in sync: the leader election would be unclean."
            )
        return planned

    # --- events that let reassignments go on

    async def resume(self) -> None:
        """Go on with the reassignments of the last controller, and begin the reassignments of the node."""
        running = list(self._context.partitions_being_reassigned)
        await self.zk_partition_reassignment()
        await self._resume(running)

    async def resume_on_brokers(self, broker_ids: Collection[int]) -> None:
        """Go on with reassignments whose target has brokers that came back."""
        context = self._context
        await self._resume(
            partition
            for partition in context.partitions_being_reassigned
            if context.is_topic_queued_for_deletion(partition.topic)
            or any(
                replica in broker_ids
                for replica in ReplicaAssignment.of(context.partitions[partition]).target
            )
        )

    async def _resume(self, partitions: Iterable[TopicPartition]) -> None:
        running = [p for p in partitions if p in self._context.partitions_being_reassigned]
        await self._abandon([p for p in running if self._context.is_topic_queued_for_deletion(p.topic)])
        resumed = {
            partition: ReplicaAssignment.of(self._context.partitions[partition])
            for partition in running
            if partition in self._context.partitions_being_reassigned
        }
        if resumed:
            _log.info("reassignments go on: %s", ", ".join(map(str, resumed)))
            await self._go_on(resumed)

    async def _abandon(self, partitions: Sequence[TopicPartition]) -> None:
        """End reassignments of topics that are being deleted.

        No leader is elected for such a topic any more. Its reassignment could wait for a leader for ever, and
        the deletion for the reassignment.
        """
        for partition in partitions:
            _log.info("the reassignment of %s ends: its topic is being deleted", partition)
            del self._context.partitions_being_reassigned[partition]
        if partitions:
            await self._term.store.remove_reassignment_requests(dict.fromkeys(partitions))
            await self._term.deletion.resume_for_topics({p.topic: None for p in partitions})

    def isr_changed(self, partitions: Iterable[TopicPartition]) -> None:
        """Complete the reassignments whose new replicas are in sync now, in an event of its own."""
        if any(self._may_complete(partition) for partition in partitions):
            self._term.put(
                ControllerState.ALTER_PARTITION_REASSIGNMENT,
                "PartitionReassignmentIsrChange",
                self._complete_all,
            )

    async def _complete_all(self) -> None:
        await self._complete([p for p in self._context.partitions_being_reassigned if self._may_complete(p)])

    def _may_complete(self, partition: TopicPartition) -> bool:
        """Whether every replica of the target is in sync."""
        if partition not in self._context.partitions_being_reassigned:
            return False
        state = self._context.partitions[partition]
        assignment = ReplicaAssignment.of(state)
        return not assignment.is_being_reassigned or all(r in state.isr for r in assignment.target)

    # --- the steps

    async def _begin(self, planned: Assignments) -> Errors:
        """Write new assignments and go on with them; returns the errors of those not written."""
        if not planned:
            return {}
        before = {
            partition: ReplicaAssignment.of(self._context.partitions[partition]) for partition in planned
        }
        changed = {p: assignment for p, assignment in planned.items() if before[p] != assignment}
        errors = await self._write(changed)
        begun = {p: assignment for p, assignment in planned.items() if p not in errors}
        unneeded: list[PartitionAndReplica] = []
        async for some in in_slices(begun.items()):
            for partition, assignment in some:
                _log.info("reassigning %s from %s to %s", partition, before[partition], assignment)
                self._put_assignment(partition, assignment)
                self._context.partitions_being_reassigned[partition] = None
                unneeded += (
                    PartitionAndReplica(*partition, replica)
                    for replica in before[partition].replicas
                    if replica not in assignment.replicas
                )
        await self._remove_replicas(unneeded)
        await self._go_on(begun)
        return errors

    async def _write(self, assignments: Assignments) -> Errors:
        states = {
            partition: replace(
                self._context.partitions[partition],
                replicas=assignment.replicas,
                adding=assignment.adding,
                removing=assignment.removing,
            )
            for partition, assignment in assignments.items()
        }
        refused = await self._term.store.set_replicas(states)
        return {
            partition: UnknownServerError(f"The assignment cannot be written: {refused[partition.topic]}")
            for partition in assignments
            if partition.topic in refused
        }

    def _put_assignment(self, partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        self._context.put_assignment(partition, assignment.replicas, assignment.adding, assignment.removing)

    async def _go_on(self, assignments: Assignments) -> None:
        self._term.deletion.mark_ineligible(
            {partition.topic: None for partition in assignments}, "a reassignment is running"
        )
        waiting = {p: assignment for p, assignment in assignments.items() if not self._may_complete(p)}
        new = [
            replica
            for partition, assignment in waiting.items()
            for broker_id in assignment.adding
            if self._context.may_move_replica(
                replica := PartitionAndReplica(*partition, broker_id), ReplicaStatus.NEW
            )
        ]
        await self._send_assignments(waiting, without=set(new))
        # This change sends LeaderAndIsr to the brokers of new replicas, with the flag for new replicas.
        await self._term.replicas.handle_state_changes(new, ReplicaStatus.NEW)
        # A partition that never had a leader has no records: a new replica may be the first to lead.
        leaderless = [partition for partition in waiting if self._context.leadership(partition) is None]
        await self._term.partitions.trigger_online_state_change(leaderless)
        await self._complete([partition for partition in assignments if self._may_complete(partition)])

    async def _complete(self, partitions: Sequence[TopicPartition]) -> None:
        """Let a replica of the target lead, remove the others, and write the target."""
        if not partitions:
            return
        context = self._context
        moving = {partition: ReplicaAssignment.of(context.partitions[partition]) for partition in partitions}
        added = [PartitionAndReplica(*p, replica) for p, moved in moving.items() for replica in moved.adding]
        await self._term.replicas.handle_state_changes(added, ReplicaStatus.ONLINE)
        for partition, moved in moving.items():
            self._put_assignment(partition, ReplicaAssignment(moved.target))
        led = {p: moved for p, moved in moving.items() if self._keeps_leader(p)}
        await self._send_assignments(led)
        unled = [partition for partition in moving if partition not in led]
        elected = await self._term.partitions.handle_state_changes(
            unled, PartitionStatus.ONLINE, ElectionStrategy.REASSIGNMENT
        )
        for partition in unled:
            if not isinstance(elected.get(partition), PartitionState):
                self._put_assignment(partition, moving.pop(partition))
        removed = [
            PartitionAndReplica(*p, replica) for p, moved in moving.items() for replica in moved.removing
        ]
        await self._remove_replicas(removed)
        errors = await self._write({p: ReplicaAssignment(moved.target) for p, moved in moving.items()})
        for partition, error in errors.items():
            _log.error("the reassignment of %s is not completed in the tree: %s", partition, error)
        await self._completed([partition for partition in moving if partition not in errors])

    def _keeps_leader(self, partition: TopicPartition) -> bool:
        state = self._context.partitions[partition]
        return state.leader in state.replicas and self._context.is_replica_online(state.leader, partition)

    async def _completed(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        for partition in partitions:
            _log.info("reassigned %s to %s", partition, self._context.replicas(partition))
            del self._context.partitions_being_reassigned[partition]
        # A tool may have asked for another target meanwhile.
        await self._term.store.remove_reassignment_requests(
            {partition: self._context.replicas(partition) for partition in partitions}
        )
        await self._term.send_update_metadata(partitions=partitions)
        await self._term.deletion.resume_for_topics({partition.topic: None for partition in partitions})

    async def _remove_replicas(self, replicas: Sequence[PartitionAndReplica]) -> None:
        """Remove replicas from the ISR and delete them.

        A broker that is down gets the request when it is back, if the term has not ended by then.
        """
        for replica in replicas:
            removed = self._context.removed_replicas.setdefault(replica.replica, {})
            removed[replica.topic_partition] = None
        for status in (
            ReplicaStatus.OFFLINE,
            ReplicaStatus.DELETION_STARTED,
            ReplicaStatus.DELETION_SUCCESSFUL,
            ReplicaStatus.NON_EXISTENT,
        ):
            await self._term.replicas.handle_state_changes(replicas, status)

    async def _send_assignments(
        self, partitions: Collection[TopicPartition], *, without: Collection[PartitionAndReplica] = ()
    ) -> None:
        """Raise leader epochs and send the replicas their assignment."""
        states = await self._term.raise_leader_epochs(partitions)
        if states:
            self._term.batch.new_batch()
            async for group in in_slices(states.items()):
                for partition, state in group:
                    receivers = [
                        r for r in state.replicas if PartitionAndReplica(*partition, r) not in without
                    ]
                    self._term.batch.add_leader_and_isr(receivers, partition, state, is_new=False)
            await self._term.batch.send_requests()


def _check_target(target: Sequence[int]) -> None:
    if not target:
        raise InvalidReplicaAssignment("The replica list is empty.")
    if len(set(target)) < len(target):
        raise InvalidReplicaAssignment(f"The replica list {[*target]} has a broker more than once.")
    if any(replica < 0 for replica in target):
        raise InvalidReplicaAssignment(f"The replica list {[*target]} has a broker id below 0.")
