"""TopicDeletionManager: deletes topics, from the request until no broker has their logs.

The partitions of a topic go offline. The live brokers delete their replicas and answer. When every replica is
deleted, the nodes of the topic are removed from the tree. A topic is ineligible while one of its brokers is
down or one of its partitions is being reassigned; `resume_for_topics` ends that. The marks in the tree
outlive the controller, and the next one begins again with `init` and `try_deletion`.

The controller calls it within its events:
- start: `init` with the marked topics once brokers and topics are known, `try_deletion` after the startup of
  the state machines;
- topics newly marked: `enqueue_topics`;
- TopicDeletionStopReplicaResponseReceived: `handle_stop_replica_response`;
- replicas of a topic to be deleted went offline with their broker or log folder: `fail_replicas`;
- a broker is back, or a reassignment is complete: `resume_for_topics`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from tidelog.controller.context import ControllerContext
from tidelog.controller.partition_state_machine import PartitionStateMachine
from tidelog.controller.planning import ControllerSettings
from tidelog.controller.replica_state_machine import ReplicaStateMachine
from tidelog.controller.request_batch import (
    ControllerBrokerRequestBatch,
    TopicDeletionStopReplicaResponseReceived,
)
from tidelog.controller.state_store import StateStore
from tidelog.controller.states import PartitionAndReplica, PartitionStatus, ReplicaStatus

_log = logging.getLogger("tidelog.controller.deletion")

DeletedTopicsListener: TypeAlias = Callable[[Sequence[str]], None]
"""Called with topics before their nodes are deleted: the controller ends its watches on them.

A topic with the same name may be created as soon as the nodes are gone.
"""


class TopicDeletionManager:
    def __init__(
        self,
        context: ControllerContext,
        store: StateStore,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        batch: ControllerBrokerRequestBatch,
        settings: ControllerSettings,
        *,
        on_deleted: DeletedTopicsListener | None = None,
    ) -> None:
        self._context = context
        self._store = store
        self._partitions = partitions
        self._replicas = replicas
        self._batch = batch
        self._settings = settings
        self._on_deleted = on_deleted

    async def init(self, topics: Collection[str]) -> None:
        """Add the topics that are marked in the tree, without deleting anything yet.

        If delete.topic.enable is false the marks are removed and the topics stay.
        """
        if topics and await self._is_enabled(topics):
            self._context.queue_topic_deletion(topics)
            self.mark_ineligible(self._with_offline_replicas(topics), "a broker is down")
            self.mark_ineligible(self._being_reassigned(), "a reassignment is running")

    async def try_deletion(self) -> None:
        """Begin or continue every deletion that can make progress."""
        await self._resume()

    async def enqueue_topics(self, topics: Collection[str]) -> None:
        """Delete topics that were marked in the tree. Topics that were added before do not change."""
        if not topics or not await self._is_enabled(topics):
            return
        self._context.queue_topic_deletion(topics)
        self.mark_ineligible(self._being_reassigned(), "a reassignment is running")
        await self._resume()

    async def resume_for_topics(self, topics: Iterable[str]) -> None:
        """Continue the deletion of topics, because the reason for their halt may be over.

        A topic with a running reassignment continues to wait.
        """
        moving = self._being_reassigned()
        resumed = [
            topic
            for topic in topics
            if self._context.is_topic_queued_for_deletion(topic) and topic not in moving
        ]
        if resumed:
            self._context.topics_ineligible_for_deletion.difference_update(resumed)
            await self._resume()

    async def fail_replicas(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Halt the deletion of the topics of replicas that cannot be deleted now."""
        failed = self._of_queued_topics(replicas)
        if failed:
            await self._give_up(failed)
            self.mark_ineligible({replica.topic: None for replica in failed}, "a replica was not deleted")
            await self._resume()

    async def complete_replicas(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Note deleted replicas, and complete the deletion of topics without further replicas."""
        deleted = self._of_queued_topics(replicas)
        await self._replicas.handle_state_changes(deleted, ReplicaStatus.DELETION_SUCCESSFUL)
        await self._resume()

    async def handle_stop_replica_response(self, event: TopicDeletionStopReplicaResponseReceived) -> None:
        failed: list[PartitionAndReplica] = []
        deleted: list[PartitionAndReplica] = []
        for partition, error_code in event.partition_errors.items():
            replica = PartitionAndReplica(*partition, event.broker_id)
            if self._context.replica_status(replica) is ReplicaStatus.NON_EXISTENT:
                continue  # a reassignment removed it before the topic was to be deleted
            (failed if event.error_code or error_code else deleted).append(replica)
        await self.fail_replicas(failed)
        if deleted:
            await self.complete_replicas(deleted)

    def mark_ineligible(self, topics: Iterable[str], reason: str) -> None:
        """Halt the deletion of topics. Topics that are not to be deleted are ignored."""
        halted = [topic for topic in topics if self._context.is_topic_queued_for_deletion(topic)]
        if halted:
            self._context.topics_ineligible_for_deletion.update(halted)
            _log.info("deletion of topics %s halted: %s", ", ".join(halted), reason)

    # --- which topics

    async def _is_enabled(self, topics: Collection[str]) -> bool:
        if self._settings.delete_topic_enable:
            return True
        _log.info("topics %s stay: delete.topic.enable is false", ", ".join(topics))
        await self._store.remove_deletion_marks(list(topics))
        return False

    def _with_offline_replicas(self, topics: Iterable[str]) -> list[str]:
        context = self._context
        return [
            topic
            for topic in topics
            if not all(
                context.is_replica_online(replica.replica, replica.topic_partition)
                for replica in context.replicas_of_topic(topic)
            )
        ]

    def _being_reassigned(self) -> dict[str, None]:
        return {partition.topic: None for partition in self._context.partitions_being_reassigned}

    def _of_queued_topics(self, replicas: Iterable[PartitionAndReplica]) -> list[PartitionAndReplica]:
        return [r for r in replicas if self._context.is_topic_queued_for_deletion(r.topic)]

    def _is_eligible(self, topic: str) -> bool:
        context = self._context
        return topic not in context.topics_ineligible_for_deletion and not context.is_any_replica_in(
            topic, ReplicaStatus.DELETION_STARTED
        )

    # --- the steps of a deletion

    async def _resume(self) -> None:
        context = self._context
        complete: list[str] = []
        to_retry: list[str] = []
        eligible: list[str] = []
        for topic in context.topics_to_be_deleted:
            if context.are_all_replicas_in(topic, ReplicaStatus.DELETION_SUCCESSFUL):
                complete.append(topic)
                continue
            if context.is_any_replica_in(
                topic, ReplicaStatus.DELETION_INELIGIBLE
            ) and not context.is_any_replica_in(topic, ReplicaStatus.DELETION_STARTED):
                to_retry.append(topic)
            if self._is_eligible(topic):
                eligible.append(topic)
        if complete:
            await self._complete(complete)
        if to_retry:
            failed = [
                replica
                for topic in to_retry
                for replica in context.replicas_in(topic, ReplicaStatus.DELETION_INELIGIBLE)
            ]
            await self._replicas.handle_state_changes(failed, ReplicaStatus.OFFLINE)
        if eligible:
            await self._delete(eligible)

    async def _complete(self, topics: Sequence[str]) -> None:
        """Remove the nodes of topics without replicas, and forget the topics."""
        if self._on_deleted is not None:
            self._on_deleted(topics)
        deleted = [
            replica
            for topic in topics
            for replica in self._context.replicas_in(topic, ReplicaStatus.DELETION_SUCCESSFUL)
        ]
        await self._replicas.handle_state_changes(deleted, ReplicaStatus.NON_EXISTENT)
        await self._store.delete_topics(topics)
        for topic in topics:
            self._context.remove_topic(topic)
            _log.info("topic %s is deleted", topic)

    async def _delete(self, topics: Sequence[str]) -> None:
        """Take topics offline, remove them from the brokers' metadata, and delete their replicas."""
        context = self._context
        newly_deleted = [topic for topic in topics if topic not in context.topics_with_deletion_started]
        partitions = [partition for topic in newly_deleted for partition in context.partitions_of(topic)]
        await self._partitions.handle_state_changes(partitions, PartitionStatus.OFFLINE)
        await self._partitions.handle_state_changes(partitions, PartitionStatus.NON_EXISTENT)
        # After the changes of the partitions: these count only the offline partitions of other topics.
        context.begin_topic_deletion(newly_deleted)
        self._batch.new_batch()
        partitions_to_announce = [partition for topic in topics for partition in context.partitions_of(topic)]
        self._batch.add_update_metadata(context.live_or_shutting_down_brokers, partitions_to_announce)
        await self._batch.send_requests()
        await self._delete_replicas(topics)

    async def _delete_replicas(self, topics: Sequence[str]) -> None:
        context = self._context
        dead: list[PartitionAndReplica] = []
        alive: list[PartitionAndReplica] = []
        for topic in topics:
            for replica in context.replicas_of_topic(topic):
                if context.replica_status(replica) is not ReplicaStatus.DELETION_SUCCESSFUL:
                    online = context.is_replica_online(replica.replica, replica.topic_partition)
                    (alive if online else dead).append(replica)
        await self._give_up(dead)
        # Followers stop fetching first, so that none of them fetches from a leader that deletes its log.
        await self._replicas.handle_state_changes(alive, ReplicaStatus.OFFLINE)
        await self._replicas.handle_state_changes(alive, ReplicaStatus.DELETION_STARTED)
        self.mark_ineligible({replica.topic: None for replica in dead}, "a broker is down")

    async def _give_up(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Mark replicas as ineligible, if their deletion has begun and is not done."""
        ineligible = ReplicaStatus.DELETION_INELIGIBLE
        halted = [replica for replica in replicas if self._context.may_move_replica(replica, ineligible)]
        await self._replicas.handle_state_changes(halted, ineligible)
