"""ControllerContext: the active controller's knowledge of the cluster.

The controller fills a context when it is elected, and resets it when it resigns: live brokers, topics (with
`put_topic_id` and `put_partition` for every partition in the tree), reassignments and deletions. After that,
events change it: the state machines change statuses and leadership, the controller's events change the rest.
Every container that is iterated keeps the order of insertion, so that the same events lead to the same
requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import replace

from tidelog.controller.states import (
    PARTITION_PREDECESSORS,
    REPLICA_PREDECESSORS,
    PartitionAndReplica,
    PartitionStatus,
    ReplicaStatus,
)
from tidelog.metadata.state import NO_LEADER, NO_STATE_NODE, BrokerRegistration, PartitionState
from tidelog.partitions import PartitionKey, TopicPartition

ZERO_TOPIC_ID = bytes(16)
INITIAL_EPOCH = 0


class ControllerContext:
    """PartitionStates are values: a change replaces the state of a partition by `put_partition`.

    A partition whose state has the partition epoch NO_STATE_NODE has replicas but no leadership yet.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything when the controller resigns."""
        self.epoch = INITIAL_EPOCH
        self.epoch_version = INITIAL_EPOCH
        """The version of /controller_epoch in the tree."""
        self.live_or_shutting_down_brokers: dict[int, BrokerRegistration] = {}
        self.shutting_down_broker_ids: set[int] = set()
        self.suspected_broker_ids: set[int] = set()
        """Brokers that seem to be gone, while they are registered (see suspected_brokers)."""
        self.live_broker_ids: frozenset[int] = frozenset()
        """The live brokers that neither shut down nor are suspected."""
        self.topic_ids: dict[str, bytes] = {}
        self.topic_names: dict[bytes, str] = {}
        self.partitions: dict[TopicPartition, PartitionState] = {}
        """Read it freely; change it by `put_partition` and `remove_topic`."""
        self.unreadable_topics: set[str] = set()
        """Topics in the tree that the context does not have: their nodes cannot be read."""
        self.partition_statuses: dict[TopicPartition, PartitionStatus] = {}
        self.replica_statuses: dict[PartitionAndReplica, ReplicaStatus] = {}
        self.offline_replicas_of_broker: dict[int, set[PartitionKey]] = {}
        """The partitions of each live broker that were in a log folder that failed."""
        self.partitions_being_reassigned: dict[TopicPartition, None] = {}
        self.removed_replicas: dict[int, dict[TopicPartition, None]] = {}
        """For each broker the replicas that reassignments removed, until it answers that it deleted them."""
        self.topics_to_be_deleted: dict[str, None] = {}
        self.topics_ineligible_for_deletion: set[str] = set()
        self.topics_with_deletion_started: set[str] = set()
        self.offline_partition_count = 0
        self.preferred_replica_imbalance_count = 0
        self._topics: dict[str, dict[int, TopicPartition]] = {}
        self._on_broker: dict[int, dict[TopicPartition, None]] = {}

    # --- brokers

    def set_live_brokers(self, brokers: Iterable[BrokerRegistration]) -> None:
        self.live_or_shutting_down_brokers = {broker.broker_id: broker for broker in brokers}
        self._brokers_changed()

    def add_live_brokers(self, brokers: Iterable[BrokerRegistration]) -> None:
        """Add brokers, or replace their registrations."""
        self.live_or_shutting_down_brokers.update((broker.broker_id, broker) for broker in brokers)
        self._brokers_changed()

    def remove_live_brokers(self, broker_ids: Iterable[int]) -> None:
        """Remove brokers, with the states of their shutdown and of their failed log folders."""
        for broker_id in broker_ids:
            self.live_or_shutting_down_brokers.pop(broker_id, None)
            self.shutting_down_broker_ids.discard(broker_id)
            self.suspected_broker_ids.discard(broker_id)
            self.offline_replicas_of_broker.pop(broker_id, None)
        self._brokers_changed()

    def begin_shutdown(self, broker_id: int) -> None:
        """Note that a live broker stops. It stays reachable, but leads no partition from now on."""
        self.shutting_down_broker_ids.add(broker_id)
        self._brokers_changed()

    def begin_suspicion(self, broker_id: int) -> None:
        """Note that a live broker seems to be gone. It leads no partition from now on."""
        self.suspected_broker_ids.add(broker_id)
        self._brokers_changed()

    def end_suspicion(self, broker_id: int) -> None:
        self.suspected_broker_ids.discard(broker_id)
        self._brokers_changed()

    @property
    def leaving_broker_ids(self) -> set[int]:
        """The registered brokers that may not lead: they are shutting down or suspected."""
        return self.shutting_down_broker_ids | self.suspected_broker_ids

    def _brokers_changed(self) -> None:
        leaving = self.leaving_broker_ids
        self.live_broker_ids = frozenset(
            broker_id for broker_id in self.live_or_shutting_down_brokers if broker_id not in leaving
        )

    def broker_epoch(self, broker_id: int) -> int:
        """The epoch of a live broker; -1 if it is not live."""
        broker = self.live_or_shutting_down_brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    def is_replica_online(
        self, broker_id: int, partition: PartitionKey, *, include_shutting_down: bool = False
    ) -> bool:
        if include_shutting_down:
            live = broker_id in self.live_or_shutting_down_brokers
        else:
            live = broker_id in self.live_broker_ids
        return live and partition not in self.offline_replicas_of_broker.get(broker_id, ())

    def update_offline_replicas(
        self, broker_id: int, *, offline: Iterable[PartitionKey], online: Iterable[PartitionKey] = ()
    ) -> list[TopicPartition]:
        """Set the replicas of a live broker in failed log folders; returns the newly offline ones."""
        known = self.offline_replicas_of_broker.setdefault(broker_id, set())
        known.difference_update(online)
        new = [TopicPartition(*partition) for partition in offline if partition not in known]
        known.update(new)
        return new

    # --- topics and partitions

    @property
    def topics(self) -> KeysView[str]:
        """All topics, including those to be deleted."""
        return self._topics.keys()

    def put_topic_id(self, topic: str, topic_id: bytes) -> None:
        """Add a topic. Raises ValueError if it has another id, or another topic has this id."""
        if topic_id != ZERO_TOPIC_ID:
            if self.topic_ids.get(topic, topic_id) != topic_id:
                raise ValueError(f"topic {topic} has another id than {topic_id.hex()}")
            if self.topic_names.get(topic_id, topic) != topic:
                raise ValueError(f"topics {topic} and {self.topic_names[topic_id]} have the same id")
            self.topic_ids[topic] = topic_id
            self.topic_names[topic_id] = topic
        self._topics.setdefault(topic, {})

    def put_partition(self, partition: TopicPartition, state: PartitionState) -> None:
        """Set the replicas and leadership of a partition; its topic is added if it is new."""
        before = self.partitions.get(partition)
        if before is None:
            self._topics.setdefault(partition.topic, {})[partition.partition] = partition
        self._count_imbalance(partition.topic, before, -1)
        self._count_imbalance(partition.topic, state, 1)
        self.partitions[partition] = state
        replicas_before = before.replicas if before is not None else ()
        if replicas_before == state.replicas:
            return
        for broker_id in replicas_before:
            if broker_id not in state.replicas:
                self._on_broker[broker_id].pop(partition, None)
        for broker_id in state.replicas:
            self._on_broker.setdefault(broker_id, {})[partition] = None

    def put_assignment(
        self, partition: TopicPartition, replicas: list[int], adding: list[int], removing: list[int]
    ) -> None:
        """Change the replicas of a partition and keep its leadership; a new partition has none."""
        before = self.partitions.get(partition)
        if before is None:
            before = PartitionState([], NO_LEADER, -1, [], NO_STATE_NODE)
        self.put_partition(partition, replace(before, replicas=replicas, adding=adding, removing=removing))

    def remove_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        topic_id = self.topic_ids.pop(topic, None)
        if topic_id is not None:
            self.topic_names.pop(topic_id, None)
        for partition in self._topics.pop(topic, {}).values():
            self._remove_partition(partition)
        self.topics_to_be_deleted.pop(topic, None)
        self.topics_with_deletion_started.discard(topic)
        self.topics_ineligible_for_deletion.discard(topic)

    def _remove_partition(self, partition: TopicPartition) -> None:
        state = self.partitions.pop(partition)
        self._count_imbalance(partition.topic, state, -1)
        for broker_id in state.replicas:
            self._on_broker[broker_id].pop(partition, None)
            self.replica_statuses.pop(PartitionAndReplica(*partition, broker_id), None)
        for offline in self.offline_replicas_of_broker.values():
            offline.discard(partition)
        if self.partition_statuses.get(partition) is not None:
            self.put_partition_status(partition, PartitionStatus.NON_EXISTENT)
            del self.partition_statuses[partition]
        self.partitions_being_reassigned.pop(partition, None)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return list(self._topics.get(topic, {}).values())

    def replicas(self, partition: TopicPartition) -> list[int]:
        """The brokers in the assignment of a partition; empty if it is not known."""
        state = self.partitions.get(partition)
        return [] if state is None else state.replicas

    def leadership(self, partition: TopicPartition) -> PartitionState | None:
        """The state of a partition that has a leader, or had one; None before its first leader."""
        state = self.partitions.get(partition)
        return None if state is None or state.partition_epoch == NO_STATE_NODE else state

    def partitions_with_leadership(self) -> list[TopicPartition]:
        """The partitions with a leadership that brokers may get, without those to be deleted."""
        return [
            partition
            for partition, state in self.partitions.items()
            if state.partition_epoch != NO_STATE_NODE and partition.topic not in self.topics_to_be_deleted
        ]

    def partitions_with_offline_leader(self) -> list[TopicPartition]:
        """The partitions without a live leader, without those to be deleted."""
        return [
            partition
            for partition, state in self.partitions.items()
            if state.partition_epoch != NO_STATE_NODE
            and not self.is_replica_online(state.leader, partition)
            and partition.topic not in self.topics_to_be_deleted
        ]

    # --- partitions and replicas of brokers

    def partitions_on_broker(self, broker_id: int) -> list[TopicPartition]:
        """The partitions with a replica on a broker."""
        return list(self._on_broker.get(broker_id, ()))

    def partitions_with_leader_on(self, broker_id: int) -> list[TopicPartition]:
        """The partitions that a broker leads, without those to be deleted."""
        return [
            partition
            for partition in self._on_broker.get(broker_id, ())
            if self.partitions[partition].leader == broker_id
            and partition.topic not in self.topics_to_be_deleted
        ]

    def replicas_on_broker(self, broker_id: int) -> list[PartitionAndReplica]:
        return [
            PartitionAndReplica(*partition, broker_id) for partition in self._on_broker.get(broker_id, ())
        ]

    def replicas_on_brokers(self, broker_ids: Iterable[int]) -> list[PartitionAndReplica]:
        return [replica for broker_id in broker_ids for replica in self.replicas_on_broker(broker_id)]

    def replicas_of_topic(self, topic: str) -> list[PartitionAndReplica]:
        return list(self._replicas_of_topic(topic))

    def replicas_of_partitions(self, partitions: Iterable[TopicPartition]) -> list[PartitionAndReplica]:
        return [
            PartitionAndReplica(*partition, broker_id)
            for partition in partitions
            for broker_id in self.replicas(partition)
        ]

    def _replicas_of_topic(self, topic: str) -> Iterator[PartitionAndReplica]:
        for partition in self._topics.get(topic, {}).values():
            for broker_id in self.partitions[partition].replicas:
                yield PartitionAndReplica(*partition, broker_id)

    def all_replicas(self) -> Iterator[tuple[PartitionAndReplica, bool]]:
        """All replicas, and whether they are online."""
        for partition, state in self.partitions.items():
            for broker_id in state.replicas:
                yield PartitionAndReplica(*partition, broker_id), self.is_replica_online(broker_id, partition)

    # --- statuses, which the state machines set

    def put_partition_status(self, partition: TopicPartition, status: PartitionStatus) -> None:
        before = self.partition_statuses.get(partition)
        self.partition_statuses[partition] = status
        if partition.topic not in self.topics_with_deletion_started:
            offline = PartitionStatus.OFFLINE
            self.offline_partition_count += (status is offline) - (before is offline)

    def put_replica_status(self, replica: PartitionAndReplica, status: ReplicaStatus) -> None:
        self.replica_statuses[replica] = status

    def partition_status(self, partition: TopicPartition) -> PartitionStatus:
        return self.partition_statuses.get(partition, PartitionStatus.NON_EXISTENT)

    def replica_status(self, replica: PartitionAndReplica) -> ReplicaStatus:
        return self.replica_statuses.get(replica, ReplicaStatus.NON_EXISTENT)

    def may_move_partition(self, partition: TopicPartition, status: PartitionStatus) -> bool:
        return self.partition_status(partition) in PARTITION_PREDECESSORS[status]

    def may_move_replica(self, replica: PartitionAndReplica, status: ReplicaStatus) -> bool:
        return self.replica_status(replica) in REPLICA_PREDECESSORS[status]

    def partitions_in(self, *statuses: PartitionStatus) -> list[TopicPartition]:
        return [partition for partition, status in self.partition_statuses.items() if status in statuses]

    def replicas_in(self, topic: str, status: ReplicaStatus) -> list[PartitionAndReplica]:
        return [
            replica for replica in self._replicas_of_topic(topic) if self.replica_status(replica) is status
        ]

    def are_all_replicas_in(self, topic: str, status: ReplicaStatus) -> bool:
        return all(self.replica_status(replica) is status for replica in self._replicas_of_topic(topic))

    def is_any_replica_in(self, topic: str, status: ReplicaStatus) -> bool:
        return any(self.replica_status(replica) is status for replica in self._replicas_of_topic(topic))

    # --- deletions

    def queue_topic_deletion(self, topics: Iterable[str]) -> None:
        """Add topics that are to be deleted.

        The counts of leaders and of the imbalance exclude them from now on.
        """
        for topic in topics:
            if topic not in self.topics_to_be_deleted:
                for partition in self._topics.get(topic, {}).values():
                    self._count_imbalance(topic, self.partitions[partition], -1)
                self.topics_to_be_deleted[topic] = None

    def begin_topic_deletion(self, topics: Iterable[str]) -> None:
        """Note that the partitions of these topics are offline for the deletion."""
        self.topics_with_deletion_started.update(topics)

    def is_topic_queued_for_deletion(self, topic: str) -> bool:
        return topic in self.topics_to_be_deleted

    # --- metrics

    def _count_imbalance(self, topic: str, state: PartitionState | None, change: int) -> None:
        """Count partitions whose leader is not the first replica of their assignment."""
        if state is None or not state.replicas or topic in self.topics_to_be_deleted:
            return
        preferred = state.replicas[0]
        if state.partition_epoch == NO_STATE_NODE or state.leader == preferred or preferred in state.adding:
            return
        self.preferred_replica_imbalance_count += change

    def summary(self) -> Mapping[str, int]:
        """The controller's gauges by Kafka's names."""
        replicas_to_delete = replicas_ineligible = 0
        for topic in self.topics_to_be_deleted:
            for replica in self._replicas_of_topic(topic):
                status = self.replica_status(replica)
                replicas_to_delete += status is not ReplicaStatus.DELETION_SUCCESSFUL
                replicas_ineligible += status is ReplicaStatus.DELETION_INELIGIBLE
        return {
            "GlobalTopicCount": len(self._topics),
            "GlobalPartitionCount": len(self.partitions),
            "OfflinePartitionsCount": self.offline_partition_count,
            "PreferredReplicaImbalanceCount": self.preferred_replica_imbalance_count,
            "TopicsToDeleteCount": len(self.topics_to_be_deleted),
            "TopicsIneligibleToDeleteCount": len(self.topics_ineligible_for_deletion),
            "ReplicasToDeleteCount": replicas_to_delete,
            "ReplicasIneligibleToDeleteCount": replicas_ineligible,
        }
