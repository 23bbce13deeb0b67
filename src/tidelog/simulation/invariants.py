"""Promises of a cluster that hold after every step, and those that hold once faults have ended.

1. The controller epoch only grows, and each epoch has one controller.
2. Only the controller of the current epoch changes the state of a partition.
3. The leader epoch of a partition only grows, in the tree and on each broker. A new leader has a new epoch.
4. No two brokers ever lead a partition with the same leader epoch.
5. A broker obeys no controller once it has heard of one with a later epoch.
6. In the end all brokers have the metadata of the tree, the leaders of the tree lead, and no broker has a
   replica of a partition that the tree does not have.
7. A running broker does not wait on its loop until a disk has synced a file.
8. Leaders and in-sync replicas leave a log folder that broke, if another replica is in sync.
9. In the end each batch in a log has the leader epoch that the leader epoch cache has at its offset.

The promises of replicas among each other are in `replication`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tidelog.metadata import paths
from tidelog.metadata.simulated import SimulatedZooKeeper
from tidelog.metadata.tree import Create, Delete, Operation, SetData
from tidelog.records.batch import iter_batches
from tidelog.server.broker import Broker, BrokerState
from tidelog.server.zookeeper_membership import ZooKeeperMembership
from tidelog.simulation.cluster import SimBroker, SimCluster
from tidelog.simulation.process import Process
from tidelog.simulation.replication import Replication
from tidelog.storage.log import Log

TOPIC = re.compile(r"/brokers/topics/([^/]+)")
STATE = re.compile(r"/brokers/topics/(.+)/partitions/(\d+)/state")
TREE = "zookeeper"

Partition = tuple[str, int]


class Invariants:
    """Watches a cluster; adds to `problems` what must not happen."""

    def __init__(self, cluster: SimCluster, zookeeper: SimulatedZooKeeper) -> None:
        self.problems: list[str] = []
        self._cluster = cluster
        self._world = cluster.world
        self._zookeeper = zookeeper
        self._controllers: dict[int, int] = {}  # by epoch
        self._epoch = 0
        self._states: dict[Partition, tuple[int, int]] = {}  # leader and leader epoch in the tree
        # By topic id: a late request may make a topic again after its deletion.
        self._leaders: dict[tuple[bytes, Partition, int], int] = {}  # by leader epoch
        self._seen: dict[tuple[Process, bytes, Partition], int] = {}  # leader epochs on a broker
        self._heard: dict[Process, int] = {}  # the controller epoch of the metadata on a broker
        self.replication = Replication(cluster, zookeeper, self._wrong)
        self.on_state_written: Callable[[], None] | None = None
        """Called when the state of a partition is written to the tree."""
        zookeeper.on_commit = self._committed
        for broker in cluster.brokers:
            self._world.host(broker.host).on_loop_sync = partial(self._synced_on_loop, broker)
        self._world.after_turn = self._after_turn

    def _wrong(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)
            self._world.history.add("checker", text)

    # The tree

    def _committed(self, zxid: int, session: int, operations: list[Operation]) -> None:
        elected = None
        for operation in operations:
            if isinstance(operation, Create) and operation.path == paths.CONTROLLER:
                elected = int(json.loads(operation.data)["brokerid"])
            elif isinstance(operation, Create | SetData) and operation.path == paths.CONTROLLER_EPOCH:
                self._epoch_written(int(operation.data))
            elif isinstance(operation, Create | SetData) and (match := STATE.fullmatch(operation.path)):
                self._state_written((match[1], int(match[2])), json.loads(operation.data))
            elif isinstance(operation, Create | SetData) and (match := TOPIC.fullmatch(operation.path)):
                partitions = json.loads(operation.data)["partitions"]
                self.replication.assignment_written(match[1], partitions, self._epoch)
            elif isinstance(operation, Delete) and (match := STATE.fullmatch(operation.path)):
                self._states.pop((match[1], int(match[2])), None)
                self.replication.state_deleted((match[1], int(match[2])))
            elif isinstance(operation, Delete) and operation.path == paths.CONTROLLER:
                self._world.history.add(TREE, "there is no controller")
        if elected is not None:
            self._world.history.add(TREE, f"broker {elected} is the controller, epoch {self._epoch}")
            other = self._controllers.setdefault(self._epoch, elected)
            if other != elected:
                self._wrong(f"controller epoch {self._epoch} belongs to brokers {other} and {elected}")

    def _epoch_written(self, epoch: int) -> None:
        if epoch < self._epoch or (epoch == self._epoch and epoch > 1):
            self._wrong(f"the controller epoch becomes {epoch} after {self._epoch}")
        self._epoch = epoch

    def _state_written(self, partition: Partition, state: dict[str, Any]) -> None:
        leader, epoch, isr = state["leader"], state["leader_epoch"], state["isr"]
        name = f"{partition[0]}-{partition[1]}"
        self._world.history.add(TREE, f"{name}: leader {leader}, epoch {epoch}, ISR {isr}")
        if state["controller_epoch"] != self._epoch:
            self._wrong(f"{name} is changed by controller epoch {state['controller_epoch']} in {self._epoch}")
        known_leader, known_epoch = self._states.get(partition, (-1, -1))
        if epoch < known_epoch or (epoch == known_epoch and leader != known_leader):
            self._wrong(f"{name}: leader {leader} with epoch {epoch} after {known_leader} with {known_epoch}")
        self._states[partition] = (leader, epoch)
        self.replication.state_written(partition, leader, epoch, isr)
        if self.on_state_written is not None:
            self.on_state_written()

    # The brokers

    def _after_turn(self, process: Process) -> None:
        for broker in self._cluster.brokers:
            if broker.process is process and broker.server is not None:
                self._check_controller(broker, broker.server)
                self._check_leaders(broker, broker.server, process)
                self._check_metadata(broker, broker.server, process)
                if broker.server.replicas is not None:
                    faults = process.host.disk.faults
                    faults.is_suspended = True
                    self.replication.after_turn(broker, broker.server, process)
                    faults.is_suspended = False

    def _check_controller(self, broker: SimBroker, server: Broker) -> None:
        membership = server.membership
        if not isinstance(membership, ZooKeeperMembership) or membership.candidate is None:
            return
        controller = membership.candidate
        if controller.is_active and (epoch := controller.epoch):
            other = self._controllers.setdefault(epoch, broker.id)
            if other != broker.id:
                self._wrong(f"brokers {other} and {broker.id} are both the controller of epoch {epoch}")

    def _check_leaders(self, broker: SimBroker, server: Broker, process: Process) -> None:
        if server.replicas is None:
            return
        for partition in server.replicas.partitions():
            key, epoch = (partition.topic, partition.index), partition.leader_epoch
            topic_id = partition.topic_id
            if partition.log is None:
                continue  # never led or followed: its log could not be opened or made
            known = self._seen.get((process, topic_id, key))
            if known == epoch:
                continue
            self._seen[process, topic_id, key] = epoch
            if known is not None and epoch < known:
                self._wrong(
                    f"{broker.name}: the epoch of {key[0]}-{key[1]} goes back from {known} to {epoch}"
                )
            if partition.is_leader:
                other = self._leaders.setdefault((topic_id, key, epoch), broker.id)
                if other != broker.id:
                    self._wrong(f"brokers {other} and {broker.id} lead {key[0]}-{key[1]} with epoch {epoch}")

    def _check_metadata(self, broker: SimBroker, server: Broker, process: Process) -> None:
        if server.replicas is None or server.replicas.metadata is None:
            return
        epoch = server.replicas.metadata.snapshot.controller_epoch
        heard = self._heard.get(process, 0)
        if epoch != heard:
            self._heard[process] = epoch
            if epoch < heard:
                self._wrong(f"{broker.name} obeys the controller of epoch {epoch} after that of {heard}")

    def _synced_on_loop(self, broker: SimBroker, process: Process, path: str) -> None:
        server = broker.server
        if broker.process is process and server is not None and server.state is BrokerState.RUNNING_AS_BROKER:
            self._wrong(f"{broker.name} syncs {path} on its loop")

    # In the end

    def check_logs(self) -> None:
        """Compare the leader epochs in the batches of all logs with the leader epoch caches."""
        for broker in self._cluster.brokers:
            if broker.server is not None and broker.server.replicas is not None:
                for partition in broker.server.replicas.partitions():
                    if partition.log is not None and (wrong := _wrong_epochs(partition.log)):
                        self._wrong(f"{broker.name}: {partition.name}: {wrong[0]}")
        self.replication.check_logs()

    def differences(self) -> list[str]:
        """In what the brokers do not agree with the tree; empty when metadata has converged."""
        found = [
            f"{broker.name} {text}" for broker in self._cluster.brokers for text in self._differences(broker)
        ]
        return found or list(self.replication.differences(self._epoch))

    def _differences(self, broker: SimBroker) -> Iterator[str]:
        server, tree = broker.server, self._zookeeper.tree
        if server is None or not broker.is_running or server.replicas is None:
            yield "does not run"
            return
        metadata = server.replicas.metadata
        assert metadata is not None
        snapshot = metadata.snapshot
        registered = sorted(int(name) for name in tree.children(paths.BROKER_IDS))
        if sorted(snapshot.brokers) != registered:
            yield f"knows the brokers {sorted(snapshot.brokers)}, registered are {registered}"
        if paths.CONTROLLER not in tree.nodes:
            yield "has no controller"
        elif snapshot.controller_id != (wanted := json.loads(tree.get(paths.CONTROLLER)[0])["brokerid"]):
            yield f"knows the controller {snapshot.controller_id}, elected is {wanted}"
        for replica in server.replicas.partitions():
            key = (replica.topic, replica.index)
            if key not in self._states and not self.replication.is_forgotten(broker.id, key, self._epoch):
                yield f"has a replica of {replica.name}, which does not exist"
        for (topic, index), (leader, epoch) in self._states.items():
            known = snapshot.topics.get(topic)
            state = None if known is None else known.partitions.get(index)
            if state is None or (state.leader, state.leader_epoch) != (leader, epoch):
                have = None if state is None else (state.leader, state.leader_epoch)
                yield f"has {have} as leader and epoch of {topic}-{index}, the tree has {(leader, epoch)}"
            if leader == broker.id:
                partition = server.replicas.find_partition(topic, index)
                if partition is None or not partition.is_leader or partition.leader_epoch != epoch:
                    yield f"does not lead {topic}-{index} with epoch {epoch}"
            if leader < 0:
                yield f"knows no leader of {topic}-{index}"


def _wrong_epochs(log: Log) -> list[str]:
    """The batches whose leader epoch is not the one of the cache."""
    entries = log.leader_epochs.entries()
    wrong = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, log.size)
        data = b"" if found.slice is None else found.slice.read()
        for _, header in iter_batches(data):
            epoch = max((epoch for epoch, start in entries if start <= header.base_offset), default=-1)
            if header.partition_leader_epoch != epoch:
                wrong.append(
                    f"the batch at {header.base_offset} has leader epoch {header.partition_leader_epoch}, "
                    f"the leader epoch cache has {epoch}"
                )
            offset = header.next_offset
    return wrong
