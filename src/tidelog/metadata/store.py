"""MetadataStore: brokers, topics, settings and elections in the tree.

A change of several nodes is written in one step, so that a reader (or the next start after a crash) never
sees half of a topic. Each change checks the controller epoch: a controller that was replaced gets Fenced and
writes nothing. Calls block, as the tree does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tidelog.clock import Clock, SystemClock
from tidelog.metadata import nodes, paths
from tidelog.metadata.state import INTERNAL_TOPICS, NO_LEADER, BrokerRegistration, PartitionState, TopicState
from tidelog.metadata.tree import (
    BadVersion,
    Check,
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

PRODUCER_ID_BLOCK = 1000
"""The size of a block of producer ids, as in Kafka."""

MAX_PRODUCER_ID = 2**63 - 1

CHANGE_EXPIRY_MS = 15 * 60 * 1000
"""How long notifications of changed settings stay, as in Kafka."""

NO_STATE_NODE = -1
"""The partition epoch of a partition whose leader was never written."""


class Fenced(Exception):
    """Another controller was elected; nothing was written."""


class MetadataStore:
    def __init__(self, tree: Tree, clock: Clock | None = None) -> None:
        self.tree = tree
        self._clock = clock or SystemClock()
        self._epoch_version: int | None = None

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
        """Become the controller; returns the new controller epoch. NodeExists while there is another one."""
        if self.tree.exists(paths.CONTROLLER_EPOCH) is None:
            self.tree.create(paths.CONTROLLER_EPOCH, nodes.encode_number(0))
        data, stat = self.tree.get(paths.CONTROLLER_EPOCH)
        epoch = decode(paths.CONTROLLER_EPOCH, nodes.decode_number, data) + 1
        node = nodes.ControllerNode(broker_id, self._clock.ms())
        self.tree.multi(
            [
                Create(paths.CONTROLLER, node.encode(), ephemeral=True),
                SetData(paths.CONTROLLER_EPOCH, nodes.encode_number(epoch), stat.version),
            ]
        )
        self._epoch_version = stat.version + 1
        return epoch

    def _change(self, operations: Sequence[Operation]) -> None:
        guard = [] if self._epoch_version is None else [Check(paths.CONTROLLER_EPOCH, self._epoch_version)]
        try:
            self.tree.multi([*guard, *operations])
        except BadVersion as error:
            if error.path == paths.CONTROLLER_EPOCH:
                raise Fenced("another controller was elected: this one is no longer in charge") from error
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
        return TopicState(name, node.topic_id, partitions, configs, name in INTERNAL_TOPICS)

    def _read_partition(self, topic: str, index: int, node: nodes.TopicNode) -> PartitionState:
        path = paths.partition_state(topic, index)
        replicas, adding, removing = (
            assignment.get(index, []) for assignment in (node.partitions, node.adding, node.removing)
        )
        try:
            data, stat = self.tree.get(path)
        except NoNode:
            return PartitionState(replicas, NO_LEADER, -1, [], NO_STATE_NODE, 0, adding, removing)
        state = decode(path, nodes.PartitionNode.decode, data)
        return PartitionState(
            replicas,
            state.leader,
            state.leader_epoch,
            state.isr,
            stat.version,
            state.controller_epoch,
            adding,
            removing,
        )

    def create_topics(self, topics: Iterable[TopicState]) -> None:
        """Write new topics with their settings, assignments and leaders; all of them or none."""
        operations: list[Operation] = []
        for topic in topics:
            operations.append(self._put_config(paths.entity_path("topics", topic.name), topic.configs))
            operations.append(Create(paths.topic(topic.name), _topic_node(topic).encode()))
            operations.append(Create(paths.partitions(topic.name)))
            for index, state in topic.partitions.items():
                operations += _create_partition(topic.name, index, state)
        self._change(operations)

    def add_partitions(self, topics: Iterable[TopicState]) -> None:
        """Write the new partitions of topics; existing ones are not changed."""
        operations: list[Operation] = []
        for topic in topics:
            operations.append(SetData(paths.topic(topic.name), _topic_node(topic).encode()))
            known = self._children(paths.partitions(topic.name))
            for index, state in topic.partitions.items():
                if str(index) not in known:
                    operations += _create_partition(topic.name, index, state)
        self._change(operations)

    def write_partitions(self, topic: str, partitions: Mapping[int, PartitionState]) -> None:
        """Write leaders and in-sync replicas, and increment `partition_epoch` of the given states.

        BadVersion, and nothing is written, if a partition has another partition epoch than its state.
        """
        self.write_partitions_of({topic: partitions})

    def write_partitions_of(self, topics: Mapping[str, Mapping[int, PartitionState]]) -> None:
        """The same for partitions of several topics, in one step."""
        operations: list[Operation] = []
        for topic, partitions in topics.items():
            operations += self._partition_changes(topic, partitions)
        self._change(operations)
        for partitions in topics.values():
            for state in partitions.values():
                state.partition_epoch += 1

    def _partition_changes(self, topic: str, partitions: Mapping[int, PartitionState]) -> list[Operation]:
        operations: list[Operation] = []
        if self.tree.exists(paths.partitions(topic)) is None:
            operations.append(Create(paths.partitions(topic)))
        for index, state in partitions.items():
            if state.partition_epoch != NO_STATE_NODE:
                path = paths.partition_state(topic, index)
                operations.append(SetData(path, _partition_node(state).encode(), state.partition_epoch))
            elif self.tree.exists(paths.partition(topic, index)) is None:
                operations += _create_partition(topic, index, state)
            else:
                path = paths.partition_state(topic, index)
                operations.append(Create(path, _partition_node(state).encode()))
        return operations

    def mark_for_deletion(self, topics: Iterable[str]) -> None:
        """Mark topics for deletion: from now on they will be deleted, even after a crash."""
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
        notice = Create(paths.CONFIG_CHANGE_PREFIX, nodes.encode_config_change(entity_path), sequential=True)
        self._change([self._put_config(entity_path, configs), notice, *self._expired_notices()])

    def _put_config(self, entity_path: str, configs: Mapping[str, str]) -> Operation:
        path = paths.entity_config(entity_path)
        data = nodes.encode_config(configs)
        # An older Kafka that died during a deletion may have left settings without a topic.
        return Create(path, data) if self.tree.exists(path) is None else SetData(path, data)

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
            first = decode(paths.PRODUCER_IDS, nodes.ProducerIdBlock.decode, data).last + 1 if data else 0
            if first + PRODUCER_ID_BLOCK - 1 > MAX_PRODUCER_ID:
                raise ValueError(f"there are no producer ids left: the last block ended at {first - 1}")
            block = nodes.ProducerIdBlock(broker_id, first, first + PRODUCER_ID_BLOCK - 1)
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


T = TypeVar("T")


def decode(path: str, decoder: Callable[[bytes], T], data: bytes) -> T:
    """Decode a node; BadNode with its path if that fails."""
    try:
        return decoder(data)
    except nodes.BadNode as error:
        raise nodes.BadNode(f"{path} in the tree cannot be understood: {error}") from error


def _topic_node(topic: TopicState) -> nodes.TopicNode:
    partitions = {index: state.replicas for index, state in topic.partitions.items()}
    adding = {index: state.adding for index, state in topic.partitions.items() if state.adding}
    removing = {index: state.removing for index, state in topic.partitions.items() if state.removing}
    return nodes.TopicNode(partitions, topic.topic_id, adding, removing)


def _partition_node(state: PartitionState) -> nodes.PartitionNode:
    return nodes.PartitionNode(state.leader, state.leader_epoch, state.isr, state.controller_epoch)


def _create_partition(topic: str, index: int, state: PartitionState) -> list[Operation]:
    data = _partition_node(state).encode()
    return [Create(paths.partition(topic, index)), Create(paths.partition_state(topic, index), data)]
