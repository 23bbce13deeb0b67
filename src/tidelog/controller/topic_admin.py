"""TopicAdmin: creates and deletes topics and adds partitions, for requests of clients.

A request with many topics needs few multis, passes the state machines once and leads to one request to each
broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidelog.controller.context import ControllerContext
from tidelog.controller.interface import (
    DeletedTopic,
    MutationQuota,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    TopicResult,
    TopicToDelete,
)
from tidelog.controller.planning import Planner
from tidelog.controller.term import ControllerTerm
from tidelog.controller.topic_changes import TopicChanges
from tidelog.errors import KafkaError, ReassignmentInProgress, TopicAlreadyExists, UnknownServerError
from tidelog.metadata.cluster_store import NO_TOPIC_ID
from tidelog.metadata.state import (
    INTERNAL_TOPICS,
    BrokerRegistration,
    TopicState,
)
from tidelog.metadata.tree import NodeExists, TreeError
from tidelog.partitions import TopicPartition
from tidelog.slices import in_turns


class ContextTopics(Mapping[str, TopicState]):
    """The topics of a context that are not being deleted. A TopicState is made when it is looked up."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def __getitem__(self, name: str) -> TopicState:
        if name not in self:
            raise KeyError(name)
        partitions = {
            partition.partition: self._context.partitions[partition]
            for partition in self._context.partitions_of(name)
        }
        topic_id = self._context.topic_ids.get(name, NO_TOPIC_ID)
        return TopicState(name, topic_id, dict(sorted(partitions.items())), {}, name in INTERNAL_TOPICS)

    def __contains__(self, name: object) -> bool:
        return name in self._context.topics and name not in self._context.topics_to_be_deleted

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._context.topics if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ContextView:
    """A context as the input of plans; implements tidelog.controller.planning.ClusterView."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.topics = ContextTopics(context)

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """Brokers that are shutting down get no new replicas."""
        live = self._context.live_or_shutting_down_brokers
        return {
            broker_id: live[broker_id] for broker_id in live if broker_id in self._context.live_broker_ids
        }

    @property
    def controller_epoch(self) -> int:
        return self._context.epoch

    def topic_by_id(self, topic_id: bytes) -> TopicState | None:
        name = self._context.topic_names.get(topic_id)
        return None if name is None else self.topics.get(name)


class TopicAdmin:
    def __init__(self, term: ControllerTerm, topics: TopicChanges) -> None:
        self._term = term
        self._context = term.context
        self._topics = topics

    def _planner(self, quota: MutationQuota | None) -> Planner:
        deleting = self._context.topics_to_be_deleted.keys()
        parts = self._term.parts
        return Planner(ContextView(self._context), deleting, parts.settings, parts.rules, parts.rng, quota)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, quota: MutationQuota | None = None
    ) -> list[TopicResult]:
        results, made = await in_turns(self._planner(None if validate_only else quota).topics(topics))
        if validate_only or not made:
            return results
        refused = await self._term.store.create_topics(made)
        await self._topics.add_created_topics([topic for topic in made if topic.name not in refused])
        return [
            TopicResult(result.name, error=_creation_error(result.name, refused[result.name]))
            if result.name in refused
            else result
            for result in results
        ]

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool, quota: MutationQuota | None = None
    ) -> list[PartitionsResult]:
        moving = {partition.topic for partition in self._context.partitions_being_reassigned}
        # First, as in Kafka: during a reassignment, the replicas do not show the replication factor.
        errors: dict[str, KafkaError] = {
            topic.name: ReassignmentInProgress(
                f"A partition reassignment is in progress for the topic '{topic.name}'."
            )
            for topic in topics
            if topic.name in moving
        }
        planner = self._planner(None if validate_only else quota)
        results, grown = await in_turns(planner.growth([t for t in topics if t.name not in errors]))
        if not validate_only:
            errors |= await self._grow(grown)
        planned = {result.name: result for result in results}
        return [
            PartitionsResult(name, errors[name]) if name in errors else planned[name]
            for name in dict.fromkeys(topic.name for topic in topics)
        ]

    async def _grow(self, topics: Sequence[TopicState]) -> dict[str, KafkaError]:
        refused = await self._term.store.set_assignments({topic.name: topic for topic in topics})
        added = {
            TopicPartition(topic.name, index): state
            for topic in topics
            if topic.name not in refused
            for index, state in topic.partitions.items()
            if TopicPartition(topic.name, index) not in self._context.partitions
        }
        if added:
            await self._topics.add_planned_partitions(added)
        return {name: UnknownServerError(f"The topic cannot be written: {e}") for name, e in refused.items()}

    async def delete_topics(
        self, topics: Sequence[TopicToDelete], quota: MutationQuota | None = None
    ) -> list[DeletedTopic]:
        results, doomed = await in_turns(self._planner(quota).deletions(topics))
        names = [topic.name for topic in doomed]
        if names:
            await self._term.store.mark_for_deletion(names)
            await self._term.deletion.enqueue_topics(names)
        return results


def _creation_error(name: str, error: TreeError) -> KafkaError:
    if isinstance(error, NodeExists):
        return TopicAlreadyExists(f"Topic '{name}' already exists.")
    return UnknownServerError(f"The topic cannot be written: {error}")
