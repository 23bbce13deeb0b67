"""Planner: plans requests about topics on a snapshot of the cluster.

A plan has results for the client, and states to write.

A plan changes nothing, so a request with validate_only uses it, too. It is made in slices, because a request
may have many topics. The controller makes no other change meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

from tidelog.controller import validation
from tidelog.controller.election import first_state
from tidelog.controller.interface import (
    ZERO_ID,
    ConfigEntity,
    ConfigKind,
    ConfigRules,
    DeletedTopic,
    MutationQuota,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    TopicResult,
    TopicToDelete,
)
from tidelog.controller.placement import place_partitions
from tidelog.errors import (
    InvalidRequest,
    KafkaError,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.metadata.nodes import random_id
from tidelog.metadata.state import INTERNAL_TOPICS, BrokerRegistration, TopicState
from tidelog.slices import Slices, mapped


@dataclass(slots=True)
class ControllerSettings:
    """The broker settings of the controller, read for each change."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: float = 300.0
    leader_imbalance_per_broker_percentage: int = 10
    broker_suspicion_enable: bool = True


class ClusterView(Protocol):
    """The input of a plan: ClusterState, or the context of an elected controller.

    `topics` are without topics that are being deleted, `brokers` are the brokers that may get replicas.
    """

    @property
    def topics(self) -> Mapping[str, TopicState]: ...

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]: ...

    @property
    def controller_epoch(self) -> int: ...

    def topic_by_id(self, topic_id: bytes) -> TopicState | None: ...


@dataclass(slots=True)
class Planner:
    """Makes the plan of one request. `deleting` has the topics that are being deleted."""

    state: ClusterView
    deleting: Set[str]
    settings: ControllerSettings
    rules: ConfigRules
    rng: random.Random
    quota: MutationQuota | None = None

    # --- making topics

    def topics(self, topics: Sequence[NewTopic]) -> Slices[tuple[list[TopicResult], list[TopicState]]]:
        """A result for each name, and the states of the topics to create."""
        results: dict[str, TopicResult] = {}
        made: list[TopicState] = []
        times = Counter(topic.name for topic in topics)
        flat_names = {validation.flat_name(name): name for name in self.state.topics}
        partitions = sum(self._count(topic) for topic in topics)
        for topic in topics:
            yield
            try:
                if times[topic.name] > 1:
                    raise InvalidRequest(f"Topic '{topic.name}' is in the request more than once.")
                validation.check_total(partitions)
                state = self._topic(topic, flat_names)
                self._record(len(state.partitions))
            except KafkaError as error:
                results[topic.name] = TopicResult(topic.name, error=error)
                continue
            made.append(state)
            counts = len(state.partitions), state.replication_factor
            results[topic.name] = TopicResult(topic.name, state.topic_id, None, *counts, dict(state.configs))
        return list(results.values()), made

    def _record(self, partitions: int) -> None:
        if self.quota is not None:
            self.quota.record(partitions)

    def _topic(self, topic: NewTopic, flat_names: Mapping[str, str]) -> TopicState:
        validation.check_new_name(topic.name, self.state.topics, self.deleting, flat_names)
        configs = validation.check_configs(topic.configs)
        self.rules.validate(ConfigEntity(ConfigKind.TOPIC, topic.name), configs)
        partitions = {
            index: first_state(replicas, self.state.brokers.keys(), self.state.controller_epoch)
            for index, replicas in self._place(topic).items()
        }
        return TopicState(topic.name, random_id(self.rng), partitions, configs, topic.name in INTERNAL_TOPICS)

    def _place(self, topic: NewTopic) -> dict[int, list[int]]:
        if topic.assignments:
            return validation.check_assignments(topic, self.state.brokers.keys())
        validation.check_counts(topic)
        factor = topic.replication_factor
        factor = self.settings.default_replication_factor if factor == -1 else factor
        return place_partitions(self._racks(), self._count(topic), factor, rng=self.rng)

    def _count(self, topic: NewTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return self.settings.num_partitions if topic.num_partitions == -1 else topic.num_partitions

    def _racks(self) -> dict[int, str | None]:
        return {broker.broker_id: broker.rack for broker in self.state.brokers.values()}

    # --- more partitions

    def growth(
        self, topics: Sequence[NewPartitions]
    ) -> Slices[tuple[list[PartitionsResult], list[TopicState]]]:
        """A result for each name, and the states of the topics with their new partitions."""
        results: dict[str, PartitionsResult] = {}
        grown: list[TopicState] = []
        times = Counter(topic.name for topic in topics)
        for topic in topics:
            yield
            try:
                if times[topic.name] > 1:
                    raise InvalidRequest(f"Topic '{topic.name}' is in the request more than once.")
                state = self._grown(topic)
                self._record(len(state.partitions) - len(self.state.topics[topic.name].partitions))
                grown.append(state)
                results[topic.name] = PartitionsResult(topic.name)
            except KafkaError as error:
                results[topic.name] = PartitionsResult(topic.name, error)
        return list(results.values()), grown

    def _grown(self, request: NewPartitions) -> TopicState:
        topic = self.state.topics.get(request.name)
        if topic is None:
            raise UnknownTopicOrPartition
        present = len(topic.partitions)
        live = self.state.brokers.keys()
        given = validation.check_new_partitions(request, topic, live)
        if given is not None:
            placed = dict(enumerate(given, present))
        else:
            placed = self._continue_round(topic, request.count - present)
        epoch = self.state.controller_epoch
        added = {index: first_state(replicas, live, epoch) for index, replicas in placed.items()}
        return replace(topic, partitions=topic.partitions | added)

    def _continue_round(self, topic: TopicState, added: int) -> dict[int, list[int]]:
        """Continue the round-robin that began with the topic's first partition."""
        racks = self._racks()
        order = sorted(racks)
        first = topic.partitions[0].replicas[0]
        start = order.index(first) if first in racks else 0
        factor = topic.replication_factor
        present = len(topic.partitions)
        return place_partitions(racks, added, factor, first_partition=present, start=start, rng=self.rng)

    # --- deleting topics

    def deletions(
        self, topics: Sequence[TopicToDelete]
    ) -> Slices[tuple[list[DeletedTopic], list[TopicState]]]:
        """A result for each topic of the request, one for duplicates, and the states to delete."""
        results: dict[tuple[str | None, bytes], DeletedTopic] = {}
        doomed: list[TopicState] = []
        found = yield from mapped(self._named, topics)
        times = Counter(state.name for state in found if state is not None)
        asked = Counter((topic.name, topic.topic_id) for topic in topics)
        for topic, state in zip(topics, found, strict=True):
            yield
            key = topic.name, topic.topic_id
            try:
                checked = self._deletable(topic, state, asked[key] > 1 or _is_twice(state, times))
                self._record(len(checked.partitions))
            except KafkaError as error:
                results[key] = DeletedTopic(topic.name, topic.topic_id, error)
                continue
            doomed.append(checked)
            results[key] = DeletedTopic(checked.name, checked.topic_id)
        return list(results.values()), doomed

    def _named(self, topic: TopicToDelete) -> TopicState | None:
        if topic.name is None:
            return self.state.topic_by_id(topic.topic_id)
        return self.state.topics.get(topic.name) if topic.topic_id == ZERO_ID else None

    def _deletable(self, topic: TopicToDelete, state: TopicState | None, twice: bool) -> TopicState:
        if (topic.name is None) == (topic.topic_id == ZERO_ID):
            raise InvalidRequest("A topic to delete is named by name or by id, not by both or neither.")
        if twice:
            raise InvalidRequest(f"Topic '{state.name if state else topic.name}' is named more than once.")
        if state is None and topic.name is None:
            raise UnknownTopicId("There is no topic with this id.")
        if state is None:
            raise UnknownTopicOrPartition(f"There is no topic '{topic.name}'.")
        if not self.settings.delete_topic_enable:
            raise TopicDeletionDisabled("Topics cannot be deleted: delete.topic.enable is false.")
        return state


def _is_twice(state: TopicState | None, times: Counter[str]) -> bool:
    """Whether a request has a topic twice, by name and by id."""
    return state is not None and times[state.name] > 1
