"""TopicChanges: the controller's events about topics in the tree: new, changed, to be deleted.

Any broker and any tool on ZooKeeper may create topics, add partitions and mark topics for deletion. The
controller's watches report these changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tidelog.controller.event_manager import ControllerState
from tidelog.controller.term import ControllerTerm
from tidelog.controller.watches import ChangeWatch
from tidelog.metadata.cluster_store import NO_TOPIC_ID
from tidelog.metadata.nodes import random_id
from tidelog.metadata.state import PartitionState, TopicState
from tidelog.metadata.tree import EventType, WatchEvent
from tidelog.partitions import TopicPartition
from tidelog.slices import in_slices

_log = logging.getLogger("tidelog.controller")


class TopicChanges:
    def __init__(self, term: ControllerTerm) -> None:
        self._term = term
        self._context = term.context
        self._names = ChangeWatch(self._topics_changed)
        self._deletions = ChangeWatch(self._deletions_changed)
        self._watch = term.parts.topic_watch
        self._watch.handler = self._partitions_changed

    def close(self) -> None:
        self._names.close()
        self._deletions.close()
        self._watch.handler = None

    def _topics_changed(self, _event: WatchEvent) -> None:
        self._term.put(ControllerState.TOPIC_CHANGE, "TopicChange", self.topic_change)

    def _deletions_changed(self, _event: WatchEvent) -> None:
        self._term.put(ControllerState.TOPIC_DELETION, "TopicDeletion", self.topic_deletion)

    def _partitions_changed(self, event: WatchEvent) -> None:
        if event.type is EventType.CHANGED:
            topic = event.path.rpartition("/")[2]
            self._term.put(
                ControllerState.TOPIC_CHANGE,
                "PartitionModifications",
                lambda: self.partition_modifications(topic),
            )

    # --- the beginning of the term

    async def load(self) -> None:
        """Read all topics with their partitions' leaders into the context, and the deletions."""
        names = await self._term.cluster.read_topic_names(self._names.set())
        await self._add(await self._read(names))
        marked = await self._term.cluster.topics_to_delete(self._deletions.set())
        await self._term.deletion.init(await self._existing(marked))

    async def _read(self, names: Iterable[str]) -> dict[str, TopicState]:
        """Read topics. A topic from a time without topic ids gets an id, in the result and in the tree."""
        names = list(names)
        topics = await self._term.cluster.read_topics(names, self._watch)
        self._context.unreadable_topics.update(name for name in names if name not in topics)
        self._context.unreadable_topics.difference_update(topics)
        while without := [name for name, topic in topics.items() if topic.topic_id == NO_TOPIC_ID]:
            # Another writer may change a node meanwhile: read its topics again.
            await self._term.store.set_topic_ids({name: random_id(self._term.parts.rng) for name in without})
            found = await self._term.cluster.read_topics(without, self._watch)
            topics = {name: topic for name, topic in topics.items() if topic.topic_id != NO_TOPIC_ID} | found
        return topics

    async def _add(self, topics: Mapping[str, TopicState]) -> list[TopicPartition]:
        """Put topics into the context; returns their partitions."""
        for topic in topics.values():
            self._context.put_topic_id(topic.name, topic.topic_id)
        return await self._add_partitions(_partitions_of(topics.values()))

    async def _add_partitions(
        self, partitions: Iterable[tuple[TopicPartition, PartitionState]]
    ) -> list[TopicPartition]:
        added: list[TopicPartition] = []
        async for some in in_slices(partitions):
            for partition, state in some:
                self._put(partition, state)
                added.append(partition)
        return added

    def _put(self, partition: TopicPartition, state: PartitionState) -> None:
        self._context.put_partition(partition, state)
        if state.adding or state.removing:
            self._context.partitions_being_reassigned[partition] = None

    # --- events

    async def topic_change(self) -> None:
        """Handle topics that were created or deleted in the tree."""
        names = await self._term.cluster.read_topic_names(self._names.set())
        present = set(names)
        self._context.unreadable_topics &= present
        for gone in [name for name in self._context.topics if name not in present]:
            self._context.remove_topic(gone)
        await self.add_topics([name for name in names if name not in self._context.topics])

    async def add_topics(self, names: Sequence[str]) -> None:
        """Add new topics of the tree to the context, and give their partitions leaders."""
        if not names:
            return
        topics = await self._read(names)
        if not topics:
            return
        partitions = await self._add(topics)
        _log.info("new topics: %s", ", ".join(topics))
        await self._term.create_partitions(partitions)

    async def add_created_topics(self, topics: Sequence[TopicState]) -> None:
        """Add topics that this controller has created. Their partitions have no state nodes yet."""
        for topic in topics:
            self._context.put_topic_id(topic.name, topic.topic_id)
        partitions = await self._add_planned(_partitions_of(topics))
        _log.info("new topics: %s", ", ".join(topic.name for topic in topics))
        await self._term.create_partitions(partitions)
        found = await self._term.cluster.read_assignments([topic.name for topic in topics], self._watch)
        for topic in topics:
            node = found.get(topic.name)
            if node is not None and len(node.partitions) != len(topic.partitions):
                await self.partition_modifications(topic.name)  # changed before the watch was set

    async def partition_modifications(self, topic: str) -> None:
        """Handle a changed assignment of a topic, which may have more partitions."""
        if topic not in self._context.topics:
            await self.add_topics([topic])  # its node could not be read before, or it is deleted
            return
        found = (await self._read([topic])).get(topic)
        if found is None:
            return
        added = {
            TopicPartition(topic, index): state
            for index, state in found.partitions.items()
            if TopicPartition(topic, index) not in self._context.partitions
        }
        if not added:
            return
        if self._context.is_topic_queued_for_deletion(topic):
            _log.error("partitions %s of topic %s are not created: it is being deleted", [*added], topic)
            await self._restore_assignment(found)
            return
        _log.info("new partitions: %s", ", ".join(map(str, added)))
        await self._term.create_partitions(await self._add_partitions(added.items()))

    async def add_planned_partitions(self, planned: Mapping[TopicPartition, PartitionState]) -> None:
        """Add partitions that this controller has created. They have no state nodes yet."""
        _log.info("new partitions: %s", ", ".join(map(str, planned)))
        await self._term.create_partitions(await self._add_planned(planned.items()))

    async def _add_planned(
        self, planned: Iterable[tuple[TopicPartition, PartitionState]]
    ) -> list[TopicPartition]:
        """Put partitions into the context without the leaders of their plan.

        The state machine elects leaders.
        """
        added: list[TopicPartition] = []
        async for some in in_slices(planned):
            for partition, state in some:
                self._context.put_assignment(partition, state.replicas, state.adding, state.removing)
                added.append(partition)
        return added

    async def _restore_assignment(self, topic: TopicState) -> None:
        known = {
            index: state
            for index, state in topic.partitions.items()
            if TopicPartition(topic.name, index) in self._context.partitions
        }
        await self._term.store.set_assignments({topic.name: replace(topic, partitions=known)})

    async def topic_deletion(self) -> None:
        """Handle topics that were marked for deletion."""
        marked = await self._term.cluster.topics_to_delete(self._deletions.set())
        new = [name for name in marked if not self._context.is_topic_queued_for_deletion(name)]
        await self._term.deletion.enqueue_topics(await self._existing(new))

    async def _existing(self, marked: Sequence[str]) -> list[str]:
        """The marked topics that exist. Removes the marks of the others."""
        known = self._context.topics
        missing = [name for name in marked if name not in known]
        if missing:
            _log.info("there are no topics %s to delete", ", ".join(missing))
            await self._term.store.remove_deletion_marks(missing)
        return [name for name in marked if name in known]


def _partitions_of(topics: Iterable[TopicState]) -> Iterator[tuple[TopicPartition, PartitionState]]:
    for topic in topics:
        for index, state in topic.partitions.items():
            yield TopicPartition(topic.name, index), state
