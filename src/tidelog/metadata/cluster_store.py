"""ClusterStore: brokers, the controller, topics, settings and notifications in a live ZooKeeper.

Kafka's counterpart is KafkaZkClient. All calls are coroutines of the broker's loop. Reads of many nodes are
pipelined. If the answer to a write is lost, the store reads the node to find out the outcome. So a call
returns its real outcome or raises SessionExpired. The writes of an elected controller are in
tidelog.metadata.controller_store.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from tidelog.clock import Clock
from tidelog.metadata import nodes, operations, paths
from tidelog.metadata.async_tree import AsyncTree, ConnectionLost, ensure_path, subtree
from tidelog.metadata.operations import CHANGE_EXPIRY_MS, ControllerEpoch, decode
from tidelog.metadata.registration import create_ephemeral
from tidelog.metadata.state import BrokerRegistration, PartitionState, TopicState
from tidelog.metadata.tree import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    SetData,
    Stat,
    Watch,
    child_of,
    parent_of,
)
from tidelog.metadata.tree_writes import Step, write_steps
from tidelog.partitions import TopicPartition
from tidelog.slices import in_slices

T = TypeVar("T")

NO_TOPIC_ID = bytes(16)
"""The id of a topic that was written before topics had ids."""

_log = logging.getLogger("tidelog.metadata")


def decode_or_log(path: str, decoder: Callable[[bytes], T], data: bytes) -> T | None:
    """Decode a node, or log the failure and return None, because one bad node must not stop the work on
    others.
    """
    try:
        return decode(path, decoder, data)
    except nodes.BadNode as error:
        _log.error("%s", error)
        return None


class KRaftController(Exception):
    """/controller names a KRaft controller: a broker in ZooKeeper mode cannot work with it."""


class ConfigChangeNotice(NamedTuple):
    """A node below /config/changes: its number, and the entity whose settings changed ("topics/demo")."""

    sequence: int
    entity_path: str


class Notifications(NamedTuple, Generic[T]):
    """The paths of notifications, and the partitions or brokers that they name."""

    paths: list[str]
    subjects: list[T]


class ClusterStore:
    def __init__(self, tree: AsyncTree, clock: Clock, rng: random.Random) -> None:
        self.tree = tree
        self._clock = clock
        self._rng = rng
        self._sessions: set[int] = set()

    # --- the cluster

    async def prepare(self) -> None:
        """Create the root nodes, unless they exist."""
        for path in paths.PARENTS:
            await ensure_path(self.tree, path)
        await self._create_once(paths.FEATURE, nodes.encode_feature())

    async def cluster_id(self, preferred: str | None = None) -> str:
        """The cluster id. The first broker sets it to `preferred` (of its log folders) or a random id."""
        await ensure_path(self.tree, parent_of(paths.CLUSTER_ID))
        made = preferred or nodes.topic_id_text(nodes.random_id(self._rng))
        data, _ = await self._create_once(paths.CLUSTER_ID, nodes.encode_cluster_id(made))
        return decode(paths.CLUSTER_ID, nodes.decode_cluster_id, data)

    async def _create_once(self, path: str, data: bytes) -> tuple[bytes, Stat]:
        """Create a node, unless it exists; returns what it has now."""
        while True:
            try:
                return await self.tree.get(path)
            except NoNode:
                pass
            try:
                await self.tree.create(path, data)
            except (NodeExists, ConnectionLost):
                pass

    async def generate_broker_id(self, reserved_max: int = 1000) -> int:
        """A broker id above `reserved.broker.max.id` that was never generated before."""
        await ensure_path(self.tree, paths.BROKER_SEQUENCE)
        while True:
            try:
                return reserved_max + (await self.tree.set(paths.BROKER_SEQUENCE, b"")).version
            except ConnectionLost:
                continue  # a lost answer may leave a gap between the ids

    # --- brokers

    async def register_broker(
        self, broker_id: int, node: nodes.BrokerNode, *, wait_seconds: float
    ) -> BrokerRegistration:
        """Create the broker's ephemeral node. Raises NodeExists while another broker has the id.

        A quickly restarted broker waits up to `wait_seconds` for the end of its last session. A node of an
        earlier session of this store is replaced at once.
        """
        earlier = self._sessions - {self.tree.session_id}
        path = paths.broker(broker_id)
        stat = await create_ephemeral(
            self.tree, path, node.encode(), wait_seconds=wait_seconds, earlier_sessions=earlier
        )
        self._sessions.add(stat.ephemeral_owner)
        return node.state(broker_id, stat.czxid)

    async def update_broker(self, broker_id: int, node: nodes.BrokerNode) -> None:
        """Replace the addresses of a registered broker. Raises NoNode if it is not registered any more."""
        while True:
            try:
                await self.tree.set(paths.broker(broker_id), node.encode())
                return
            except ConnectionLost:
                continue  # the same data can be written twice

    async def read_brokers(
        self, watch: Watch | None = None, *, watch_each: Watch | None = None
    ) -> dict[int, BrokerRegistration]:
        """The live brokers. `watch` is called when one registers or leaves, `watch_each` when one's data
        changes or it leaves."""
        broker_ids = sorted(int(name) for name in await self._children(paths.BROKER_IDS, watch))
        found = await asyncio.gather(*(self.read_broker(broker_id, watch_each) for broker_id in broker_ids))
        return {broker.broker_id: broker for broker in found if broker is not None}

    async def read_broker(self, broker_id: int, watch: Watch | None = None) -> BrokerRegistration | None:
        """One live broker, or None. The watch is called when its data changes or it leaves."""
        path = paths.broker(broker_id)
        try:
            data, stat = await self.tree.get(path, watch)
        except NoNode:
            return None
        return decode(path, nodes.BrokerNode.decode, data).state(broker_id, stat.czxid)

    # --- the controller

    async def read_controller(self, watch: Watch | None = None) -> int | None:
        """The id of the active controller, or None. The watch is called when the controller changes.

        Raises KRaftController if the cluster is being migrated to KRaft.
        """
        if watch is not None:
            await self.tree.exists(paths.CONTROLLER, watch)
        found = await self._controller()
        return None if found is None else found[0]

    async def elect(self, broker_id: int) -> ControllerEpoch | None:
        """Become the controller; returns the new epoch, or None if another broker is the controller.

        Raises KRaftController if the cluster is being migrated to KRaft.
        """
        node = nodes.ControllerNode(broker_id, self._clock.ms())
        while True:
            present = await self._create_once(paths.CONTROLLER_EPOCH, nodes.encode_number(0))
            epoch = operations.next_epoch(*present)
            try:
                await self.tree.multi(operations.election(node, epoch))
                return epoch
            except (NodeExists, BadVersion, ConnectionLost):
                controller = await self._controller()
            if controller is None:
                continue  # a controller came and went, or this write was lost
            if controller[1].ephemeral_owner != self.tree.session_id:
                return None
            # Only the answer was lost: this session has the node, and so the epoch in the tree is its own.
            data, stat = await self.tree.get(paths.CONTROLLER_EPOCH)
            return ControllerEpoch(decode(paths.CONTROLLER_EPOCH, nodes.decode_number, data), stat.version)

    async def _controller(self) -> tuple[int, Stat] | None:
        try:
            data, stat = await self.tree.get(paths.CONTROLLER)
        except NoNode:
            return None
        node = decode(paths.CONTROLLER, nodes.ControllerNode.decode, data)
        if node.kraft_epoch >= 0:
            raise KRaftController(
                f"{paths.CONTROLLER} belongs to the KRaft controller {node.broker_id}: "
                "the cluster is being migrated to KRaft, where brokers on ZooKeeper cannot stay"
            )
        return node.broker_id, stat

    async def resign(self) -> None:
        """Delete /controller if this session owns it, so that another broker is elected."""
        while True:
            stat = await self.tree.exists(paths.CONTROLLER)
            if stat is None or stat.ephemeral_owner != self.tree.session_id:
                return
            try:
                await self.tree.delete(paths.CONTROLLER)
                return
            except NoNode:
                return
            except ConnectionLost:
                continue

    # --- topics

    async def read_topic_names(self, watch: Watch | None = None) -> list[str]:
        """The watch is called when a topic is created or deleted."""
        return await self._children(paths.TOPICS, watch)

    async def read_topics(self, names: Iterable[str], watch: Watch | None = None) -> dict[str, TopicState]:
        """Topics without their settings. The watch is called when the assignment of a topic changes.

        Topics without a readable node are left out. A partition without a state node has no leader and
        NO_STATE_NODE as its partition epoch; one whose state cannot be read has no leader and no ISR. A topic
        written before topics had ids has NO_TOPIC_ID.
        """
        assignments = await self.read_assignments(names, watch)
        wanted = [(name, index) for name, node in assignments.items() for index in node.partitions]
        found = await self.tree.get_all([paths.partition_state(name, index) for name, index in wanted])
        topics = {
            name: operations.topic_state(name, node.topic_id or NO_TOPIC_ID, {}, {})
            for name, node in assignments.items()
        }
        async for some in in_slices(wanted):
            for name, index in some:
                state = found.get(paths.partition_state(name, index))
                topics[name].partitions[index] = _partition_state(name, index, assignments[name], state)
        return topics

    async def read_assignments(
        self, names: Iterable[str], watch: Watch | None = None
    ) -> dict[str, nodes.TopicNode]:
        """The readable nodes of topics. The watch is called when the assignment of a topic changes."""
        by_path = {paths.topic(name): name for name in names}
        if watch is None:
            found = await self.tree.get_all(by_path)
        else:
            found = await self._get_all_watched(list(by_path), watch)
        assignments: dict[str, nodes.TopicNode] = {}
        async for some in in_slices(found.items()):
            for path, (data, _) in some:
                node = decode_or_log(path, nodes.TopicNode.decode, data)
                if node is not None:
                    assignments[by_path[path]] = node
        return assignments

    async def _get_all_watched(self, wanted: Sequence[str], watch: Watch) -> dict[str, tuple[bytes, Stat]]:
        async def get(path: str) -> tuple[bytes, Stat] | None:
            try:
                return await self.tree.get(path, watch)
            except NoNode:
                return None

        found: list[tuple[bytes, Stat] | None] = []
        async for some in in_slices(wanted):
            found += await asyncio.gather(*map(get, some))
        return {path: node for path, node in zip(wanted, found, strict=True) if node is not None}

    async def topics_to_delete(self, watch: Watch | None = None) -> list[str]:
        """The topics marked for deletion. The watch is called when a mark is added or removed."""
        return await self._children(paths.DELETE_TOPICS, watch)

    # --- settings

    async def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings that topics override. A topic with a missing or malformed node has none."""
        by_topic = {name: paths.entity_config(paths.entity_path("topics", name)) for name in topics}
        found = await self.tree.get_all(by_topic.values())
        configs: dict[str, dict[str, str]] = {}
        async for some in in_slices(by_topic.items()):
            for name, path in some:
                configs[name] = _settings(path, found[path][0]) if path in found else {}
        return configs

    async def read_config(self, entity_path: str) -> dict[str, str]:
        """The settings of an entity, by its path below /config; empty if it has none."""
        path = paths.entity_config(entity_path)
        try:
            return decode(path, nodes.decode_config, (await self.tree.get(path))[0])
        except NoNode:
            return {}

    async def read_entity_configs(self) -> dict[str, dict[str, str]]:
        """The settings of all entities that have some, except topics, by path below /config."""
        kinds = [kind for kind in await self._children(paths.CONFIG) if kind not in ("topics", "changes")]
        below = await asyncio.gather(*(subtree(self.tree, child_of(paths.CONFIG, kind)) for kind in kinds))
        found = await self.tree.get_all([path for some in below for path in some])
        configs = {path: _settings(path, data) for path, (data, _) in found.items()}
        return {path.removeprefix(f"{paths.CONFIG}/"): some for path, some in configs.items() if some}

    async def write_config(self, entity_path: str, configs: Mapping[str, str]) -> None:
        """Replace an entity's settings and write a notification for all brokers."""
        path = paths.entity_config(entity_path)
        await ensure_path(self.tree, parent_of(path))
        exists = True
        while True:
            change = operations.put_config(entity_path, configs, exists=exists)
            try:
                await self.tree.multi([change, operations.config_notice(entity_path)])
                return
            except (NoNode, NodeExists):
                exists = not exists
            except ConnectionLost:
                continue  # the same settings can be written twice

    async def change_config(
        self, entity_path: str, after: Callable[[Mapping[str, str]], Mapping[str, str] | None]
    ) -> None:
        """Replace an entity's settings by the result of `after` for them, and notify all brokers.

        The result None changes nothing. If another broker changes the settings at the same time, `after` is
        called again with the new settings, so that no change is lost. Malformed settings are replaced:
        otherwise no request could repair them.
        """
        path = paths.entity_config(entity_path)
        while True:
            version: int | None = None
            present: dict[str, str] = {}
            try:
                data, stat = await self.tree.get(path)
                present, version = _settings(path, data), stat.version
            except NoNode:
                await ensure_path(self.tree, parent_of(path))
            wanted = after(present)
            if wanted is None or wanted == present:
                return
            written = nodes.encode_config(wanted)
            change = Create(path, written) if version is None else SetData(path, written, version)
            try:
                await self.tree.multi([change, operations.config_notice(entity_path)])
                return
            except (BadVersion, ConnectionLost, NodeExists, NoNode):
                continue  # look what they are now

    async def read_config_changes(self, after: int, watch: Watch | None = None) -> list[ConfigChangeNotice]:
        """The notifications with a number above `after`, in order; -1 for all.

        Those that are much older than the newest one are deleted.

        The watch is called when a notification is added or deleted.
        """
        by_path = {
            child_of(paths.CONFIG_CHANGES, name): _sequence(name)
            for name in await self._children(paths.CONFIG_CHANGES, watch)
        }
        found = await self.tree.get_all(operations.unread(by_path, after))
        # By ZooKeeper's clock: a broker whose own clock is ahead would delete what the others have not read.
        limit = max((stat.ctime for _, stat in found.values()), default=0) - CHANGE_EXPIRY_MS
        await self._delete([path for path, (_, stat) in found.items() if stat.ctime < limit])
        notices = [
            ConfigChangeNotice(by_path[path], entity_path)
            for path, (data, _) in found.items()
            if by_path[path] > after
            and (entity_path := decode_or_log(path, nodes.decode_config_change, data)) is not None
        ]
        return sorted(notices)

    # --- notifications for the controller

    async def read_isr_changes(self, watch: Watch | None = None) -> Notifications[TopicPartition]:
        """The partitions whose in-sync replicas were changed by their leaders."""
        found = await self._read_notifications(paths.ISR_CHANGES, watch)
        partitions = {
            TopicPartition(*partition): None
            for path, data in found.items()
            for partition in decode_or_log(path, nodes.decode_partitions, data) or ()
        }
        return Notifications(list(found), list(partitions))

    async def read_log_dir_events(self, watch: Watch | None = None) -> Notifications[int]:
        """The brokers that lost a log folder."""
        found = await self._read_notifications(paths.LOG_DIR_EVENTS, watch)
        broker_ids = {
            decode_or_log(path, nodes.decode_log_dir_event, data): None for path, data in found.items()
        }
        return Notifications(list(found), [broker_id for broker_id in broker_ids if broker_id is not None])

    async def _read_notifications(self, parent: str, watch: Watch | None) -> dict[str, bytes]:
        names = await self._children(parent, watch)
        found = await self.tree.get_all([child_of(parent, name) for name in names])
        return {path: data for path, (data, _) in found.items()}

    async def write_log_dir_event(self, broker_id: int) -> None:
        """Notify the controller that this broker lost a log folder."""
        await self._create_notification(paths.LOG_DIR_EVENT_PREFIX, nodes.encode_log_dir_event(broker_id))

    async def write_isr_change(self, partitions: Sequence[TopicPartition]) -> None:
        """Notify the controller of changed in-sync replicas."""
        await self._create_notification(paths.ISR_CHANGE_PREFIX, nodes.encode_partitions(partitions))

    async def _create_notification(self, prefix: str, data: bytes) -> None:
        while True:
            try:
                await self.tree.create(prefix, data, sequential=True)
                return
            except ConnectionLost:
                continue  # the same notification can be read twice

    # --- requests of tools, in nodes

    async def read_preferred_elections(self, watch: Watch | None = None) -> list[TopicPartition] | None:
        """The partitions of /admin/preferred_replica_election; None without that node.

        The watch is called when the node is created or deleted.
        """
        data = await self._read_request(paths.PREFERRED_ELECTION, watch)
        if data is None:
            return None
        found = decode_or_log(paths.PREFERRED_ELECTION, nodes.decode_partitions, data)
        return [TopicPartition(*partition) for partition in found or ()]

    async def read_reassignments(self, watch: Watch | None = None) -> dict[TopicPartition, list[int]] | None:
        """The new replicas of /admin/reassign_partitions; None without that node.

        The watch is called when the node is created, changed or deleted.
        """
        data = await self._read_request(paths.REASSIGN_PARTITIONS, watch)
        if data is None:
            return None
        found = decode_or_log(paths.REASSIGN_PARTITIONS, nodes.decode_reassignment, data) or {}
        return {TopicPartition(*partition): replicas for partition, replicas in found.items()}

    async def _read_request(self, path: str, watch: Watch | None) -> bytes | None:
        if watch is not None:
            await self.tree.exists(path, watch)
        try:
            return (await self.tree.get(path))[0]
        except NoNode:
            return None

    # --- producer ids

    async def allocate_producer_ids(self, broker_id: int) -> range:
        """Allocate the next block of producer ids; no other call gets it."""
        while True:
            data, stat = await self._create_once(paths.PRODUCER_IDS, b"")
            block = operations.next_producer_ids(data, broker_id)
            try:
                await self.tree.set(paths.PRODUCER_IDS, block.encode(), stat.version)
            except (BadVersion, ConnectionLost):
                # Another broker was quicker, or the outcome is not known. A controller that was replaced may
                # have written the same block for the same broker, so the node does not tell whose it is.
                continue
            return range(block.first, block.last + 1)

    async def _children(self, path: str, watch: Watch | None = None) -> list[str]:
        try:
            return await self.tree.children(path, watch)
        except NoNode:
            return []

    async def _delete(self, doomed: Sequence[str]) -> None:
        """Delete nodes that another broker may delete as well."""
        await write_steps(self.tree, [Step.of(path, Delete(path)) for path in doomed])


def _partition_state(
    topic: str, index: int, node: nodes.TopicNode, found: tuple[bytes, Stat] | None
) -> PartitionState:
    try:
        return operations.partition_state(topic, index, node, found)
    except nodes.BadNode as error:
        _log.error("%s", error)
        # The partition has a state that cannot be read. No leader may be written over it.
        version = 0 if found is None else found[1].version
        return replace(operations.partition_state(topic, index, node, None), partition_epoch=version)


def _settings(path: str, data: bytes) -> dict[str, str]:
    """The settings of one entity. As in Kafka, malformed settings count as none."""
    return decode_or_log(path, nodes.decode_config, data) or {}


def _sequence(name: str) -> int:
    """The number that ZooKeeper appended to the name of a sequential node."""
    digits = name[-10:]
    return int(digits) if digits.isdecimal() else -1
