"""LeaderElections: elections that an operator, a tool, a setting or the clock asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from tidelog.controller.event_manager import ControllerState
from tidelog.controller.partition_state_machine import ElectionStrategy
from tidelog.controller.states import PartitionStatus
from tidelog.controller.term import ControllerTerm
from tidelog.controller.watches import ChangeWatch
from tidelog.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidTopic,
    KafkaError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from tidelog.metadata import paths
from tidelog.metadata.state import PartitionState
from tidelog.metadata.tree import WatchEvent
from tidelog.partitions import TopicPartition
from tidelog.protocol.election_type import ElectionType

FIRST_REBALANCE_SECONDS = 5.0
"""The first check of the balance after an election, as in Kafka."""

_log = logging.getLogger("tidelog.controller")


class LeaderElections:
    def __init__(self, term: ControllerTerm) -> None:
        self._term = term
        self._context = term.context
        self._requests = ChangeWatch(self._requested)
        self._timer: asyncio.TimerHandle | None = None

    def _requested(self, _event: WatchEvent) -> None:
        self._term.put(
            ControllerState.MANUAL_LEADER_BALANCE,
            "PreferredReplicaLeaderElection",
            self.preferred_replica_leader_election,
        )

    def close(self) -> None:
        self._requests.close()
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # --- elections on request

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None, election_type: ElectionType
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders; None for all partitions. Returns the error of each partition."""
        if partitions is None:
            partitions = list(self._context.partitions)
        results: dict[TopicPartition, KafkaError | None] = {}
        electable: list[TopicPartition] = []
        for partition in partitions:
            refusal = self._refusal(partition, election_type)
            if refusal is None:
                electable.append(partition)
            else:
                results[partition] = refusal
        strategy = (
            ElectionStrategy.PREFERRED_REPLICA
            if election_type is ElectionType.PREFERRED
            else ElectionStrategy.UNCLEAN
        )
        elected = await self._term.partitions.handle_state_changes(
            electable, PartitionStatus.ONLINE, strategy
        )
        for partition in electable:
            results[partition] = _error_of(elected, partition, election_type)
        return results

    def _refusal(self, partition: TopicPartition, election_type: ElectionType) -> KafkaError | None:
        state = self._context.partitions.get(partition)
        if state is None:
            return UnknownTopicOrPartition("The partition does not exist.")
        if self._context.is_topic_queued_for_deletion(partition.topic):
            return InvalidTopic("The topic is being deleted.")
        if election_type is ElectionType.PREFERRED:
            needed = not state.replicas or state.leader != state.replicas[0]
        else:
            needed = state.leader not in self._context.live_broker_ids
        return None if needed else ElectionNotNeeded("The partition has the leader already.")

    async def preferred_replica_leader_election(self) -> None:
        """Make the elections that a tool has requested by the node /admin/preferred_replica_election; delete
        it.
        """
        partitions = await self._term.cluster.read_preferred_elections(self._requests.set())
        if partitions is None:
            return
        try:
            results = await self.elect_leaders(partitions, ElectionType.PREFERRED)
            for partition, error in results.items():
                if error is not None and not isinstance(error, ElectionNotNeeded):
                    _log.warning("the preferred replica of %s is not elected: %s", partition, error)
        finally:
            await self._term.store.delete_nodes([paths.PREFERRED_ELECTION])

    async def enable_unclean_election(self, topic: str | None) -> None:
        """Elect leaders after unclean.leader.election.enable became true, for a topic or for all."""
        await self._term.partitions.trigger_online_state_change(
            None if topic is None else self._context.partitions_of(topic)
        )

    # --- the balance of leaders

    def schedule_rebalance(self, seconds: float = FIRST_REBALANCE_SECONDS) -> None:
        """Check the balance of leaders after a while, and then regularly, if the setting says so."""
        self._stop_timer()
        if self._term.parts.settings.auto_leader_rebalance_enable:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._check_balance)

    def _check_balance(self) -> None:
        self.schedule_rebalance(self._term.parts.settings.leader_imbalance_check_interval_seconds)
        if self._context.preferred_replica_imbalance_count:
            self._term.put(
                ControllerState.AUTO_LEADER_BALANCE,
                "AutoPreferredReplicaLeaderElection",
                self.auto_preferred_replica_leader_election,
            )

    async def auto_preferred_replica_leader_election(self) -> None:
        """Return leaderships to the preferred leaders with a large imbalance."""
        allowed = self._term.parts.settings.leader_imbalance_per_broker_percentage / 100
        preferred: dict[int, list[TopicPartition]] = {}
        for partition, state in self._context.partitions.items():
            if state.replicas and not self._context.is_topic_queued_for_deletion(partition.topic):
                preferred.setdefault(state.replicas[0], []).append(partition)
        for broker_id, partitions in preferred.items():
            elsewhere = [
                partition
                for partition in partitions
                if (led := self._context.leadership(partition)) is not None and led.leader != broker_id
            ]
            if len(elsewhere) <= allowed * len(partitions):
                continue
            movable = [partition for partition in elsewhere if self._may_lead(broker_id, partition)]
            if movable:
                _log.info("broker %d leads %d partitions again", broker_id, len(movable))
                await self.elect_leaders(movable, ElectionType.PREFERRED)

    def _may_lead(self, broker_id: int, partition: TopicPartition) -> bool:
        state = self._context.partitions[partition]
        return (
            broker_id in state.isr
            and not self._context.partitions_being_reassigned
            and self._context.is_replica_online(broker_id, partition)
        )


def _error_of(
    elected: Mapping[TopicPartition, PartitionState | Exception],
    partition: TopicPartition,
    election_type: ElectionType,
) -> KafkaError | None:
    result = elected.get(partition)
    if isinstance(result, PartitionState):
        return None
    reason = f"Failed to elect a leader for partition {partition}: {result or 'it has no state'}."
    if election_type is ElectionType.PREFERRED:
        return PreferredLeaderNotAvailable(reason)
    return EligibleLeadersNotAvailable(reason)
