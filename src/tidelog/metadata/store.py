"""MetadataStore: brokers, topics, settings and elections in a blocking tree.

A change of several nodes is written in one step, so that a reader, or the next start after a crash, never
sees half of a topic. Each change checks the controller epoch: a former controller gets Fenced and writes
nothing. All calls block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.clock import Clock, SystemClock
from tidelog.metadata import nodes, operations, paths
from tidelog.metadata.operations import CHANGE_EXPIRY_MS, ControllerEpoch, Fenced, decode
from tidelog.metadata.state import NO_STATE_NODE, BrokerRegistration, PartitionState, TopicState
from tidelog.metadata.tree import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Tree,
    ensure_path,
    walk,
)


class MetadataStore:
    def __init__(self, tree: Tree, clock: Clock | None = None) -> None:
        self.tree = tree
        self._clock = clock or SystemClock()
        self._epoch: ControllerEpoch | None = None

    # --- the cluster and this broker

    def prepare(self) -> None:
        """Create the root nodes, unless they exist."""
        for path in paths.PARENTS:
            ensure_path(self.tree, path)
        if self.tree.exists(paths.FEATURE) is None:
            self.tree.create(paths.FEATURE, nodes.encode_feature())

    def cluster_id(self, preferred: str | None = None) -> str:
        """The cluster id. The first call sets it to `preferred` (of the log folders) or a random id."""
        made = preferred or nodes.topic_id_text(nodes.random_id())
        try:
            self.tree.create(paths.CLUSTER_ID, nodes.encode_cluster_id(made), make_parents=True)
            return made
        except NodeExists:
            data, _ = self.tree.get(paths.CLUSTER_ID)
            return decode(paths.CLUSTER_ID, nodes.decode_cluster_id, data)

    def generate_broker_id(self, reserved_max: int = 1000) -> int:
        """A broker id above `reserved.broker.max.id` that was never generated before."""
        ensure_path(self.tree, paths.BROKER_SEQUENCE)
        return reserved_max + self.tree.set(paths.BROKER_SEQUENCE, b"").version

    def register_broker(self, broker_id: int, node: nodes.BrokerNode) -> BrokerRegistration:
        """Create the broker's ephemeral node. NodeExists while another broker has the id."""
        path = paths.broker(broker_id)
        self.tree.create(path, node.encode(), ephemeral=True, make_parents=True)
        return node.state(broker_id, self.tree.get(path)[1].czxid)

    def elect(self, broker_id: int) -> int:
        """Become the controller; returns the new controller epoch. Raises NodeExists if there is one."""
        if self.tree.exists(paths.CONTROLLER_EPOCH) is None:
            self.tree.create(paths.CONTROLLER_EPOCH, nodes.encode_number(0))
        epoch = operations.next_epoch(*self.tree.get(paths.CONTROLLER_EPOCH))
        self.tree.multi(operations.election(nodes.ControllerNode(broker_id, self._clock.ms()), epoch))
        self._epoch = epoch
        return epoch.epoch

    def _change(self, changes: Sequence[Operation]) -> None:
        guard = [] if self._epoch is None else [self._epoch.check]
        try:
            self.tree.multi([*guard, *changes])
        except BadVersion as error:
            if error.path == paths.CONTROLLER_EPOCH:
                raise Fenced from error
            raise

    # --- topics

    def read_topics(self) -> dict[str, TopicState]:
        """All topics with their settings, including those marked for deletion.

        A partition without a state node has no leader and NO_STATE_NODE as its partition epoch.
        A topic written before topics had ids gets one, here and in the tree.
        """
        return {name: self._read_topic(name) for name in self._children(paths.TOPICS)}

    def _read_topic(self, name: str) -> TopicState:
        path = paths.topic(name)
        data, stat = self.tree.get(path)
        node = decode(path, nodes.TopicNode.decode, data)
        if node.topic_id is None:
            node.topic_id = nodes.random_id()
            self._change([SetData(path, node.encode(), stat.version)])
        partitions = {index: self._read_partition(name, index, node) for index in node.partitions}
        configs = self._read_config(f"{paths.CONFIG}/topics/{name}")
        return operations.topic_state(name, node.topic_id, partitions, configs)

    def _read_partition(self, topic: str, index: int, node: nodes.TopicNode) -> PartitionState:
        try:
            found = self.tree.get(paths.partition_state(topic, index))
        except NoNode:
            return operations.partition_state(topic, index, node, None)
        return operations.partition_state(topic, index, node, found)

    def create_topics(self, topics: Iterable[TopicState]) -> None:
        """Write new topics with their settings, assignments and leaders: all of them or none."""
        changes: list[Operation] = []
        for topic in topics:
            changes.append(self._put_config(paths.entity_path("topics", topic.name), topic.configs))
            changes.append(Create(paths.topic(topic.name), operations.topic_node(topic).encode()))
            changes.append(Create(paths.partitions(topic.name)))
            for index, state in topic.partitions.items():
                changes += operations.create_partition(topic.name, index, state)
        self._change(changes)

    def add_partitions(self, topics: Iterable[TopicState]) -> None:
        """Write the new partitions of topics; existing ones are not changed."""
        changes: list[Operation] = []
        for topic in topics:
            changes.append(SetData(paths.topic(topic.name), operations.topic_node(topic).encode()))
            known = self._children(paths.partitions(topic.name))
            for index, state in topic.partitions.items():
                if str(index) not in known:
                    changes += operations.create_partition(topic.name, index, state)
        self._change(changes)

    def write_partitions(self, topic: str, partitions: Mapping[int, PartitionState]) -> None:
        """Write leaders and in-sync replicas, and increment `partition_epoch` of the given states.

        If a partition has another partition epoch than its state, raises BadVersion and writes nothing.
        """
        self.write_partitions_of({topic: partitions})

    def write_partitions_of(self, topics: Mapping[str, Mapping[int, PartitionState]]) -> None:
        """Write leaders and in-sync replicas of partitions of several topics in one step
        (`write_partitions`).
        """
        changes: list[Operation] = []
        for topic, partitions in topics.items():
            changes += self._partition_changes(topic, partitions)
        self._change(changes)
        for partitions in topics.values():
            for state in partitions.values():
                state.partition_epoch += 1

    def _partition_changes(self, topic: str, partitions: Mapping[int, PartitionState]) -> list[Operation]:
        changes: list[Operation] = []
        if self.tree.exists(paths.partitions(topic)) is None:
            changes.append(Create(paths.partitions(topic)))
        for index, state in partitions.items():
            if state.partition_epoch != NO_STATE_NODE:
                changes.append(operations.set_partition_state(topic, index, state))
            elif self.tree.exists(paths.partition(topic, index)) is None:
                changes += operations.create_partition(topic, index, state)
            else:
                changes.append(operations.create_partition_state(topic, index, state))
        return changes

    def mark_for_deletion(self, topics: Iterable[str]) -> None:
        """Mark topics for deletion, which also continues after a crash."""
        self._change([Create(paths.deleted_topic(name)) for name in topics])

    def marked_for_deletion(self) -> list[str]:
        return self._children(paths.DELETE_TOPICS)

    def remove_topic(self, name: str) -> None:
        """Remove every node of a topic, and the mark for its deletion."""
        doomed = [path for path, _, _ in walk(self.tree, paths.topic(name))]
        doomed.reverse()
        doomed += [paths.entity_config(paths.entity_path("topics", name)), paths.deleted_topic(name)]
        self._change([Delete(path) for path in doomed if self.tree.exists(path) is not None])

    # --- settings

    def read_entity_configs(self) -> dict[str, dict[str, str]]:
        """The settings of all entities that have some, except topics, by path below /config."""
        found: dict[str, dict[str, str]] = {}
        for kind in self._children(paths.CONFIG):
            if kind in ("topics", "changes"):
                continue
            for path, data, _ in walk(self.tree, f"{paths.CONFIG}/{kind}"):
                configs = decode(path, nodes.decode_config, data)
                if configs:
                    found[path.removeprefix(f"{paths.CONFIG}/")] = configs
        return found

    def write_config(self, entity_path: str, configs: Mapping[str, str]) -> None:
        """Replace an entity's settings and write a notification for other brokers."""
        path = paths.entity_config(entity_path)
        ensure_path(self.tree, path.rpartition("/")[0])
        ensure_path(self.tree, paths.CONFIG_CHANGES)
        notice = operations.config_notice(entity_path)
        self._change([self._put_config(entity_path, configs), notice, *self._expired_notices()])

    def _put_config(self, entity_path: str, configs: Mapping[str, str]) -> Operation:
        exists = self.tree.exists(paths.entity_config(entity_path)) is not None
        return operations.put_config(entity_path, configs, exists=exists)

    def _expired_notices(self) -> list[Operation]:
        limit = self._clock.ms() - CHANGE_EXPIRY_MS
        expired: list[Operation] = []
        for name in self._children(paths.CONFIG_CHANGES):
            path = f"{paths.CONFIG_CHANGES}/{name}"
            stat = self.tree.exists(path)
            if stat is not None and stat.ctime < limit:
                expired.append(Delete(path))
        return expired

    def _read_config(self, path: str) -> dict[str, str]:
        try:
            return decode(path, nodes.decode_config, self.tree.get(path)[0])
        except NoNode:
            return {}

    # --- producer ids

    def allocate_producer_ids(self, broker_id: int) -> range:
        """Allocate the next block of producer ids; no other call gets it."""
        ensure_path(self.tree, paths.PRODUCER_IDS)
        while True:
            data, stat = self.tree.get(paths.PRODUCER_IDS)
            block = operations.next_producer_ids(data, broker_id)
            try:
                self.tree.set(paths.PRODUCER_IDS, block.encode(), stat.version)
            except BadVersion:
                continue  # another broker was quicker
            return range(block.first, block.last + 1)

    def _children(self, path: str) -> list[str]:
        try:
            return self.tree.children(path)
        except NoNode:
            return []
