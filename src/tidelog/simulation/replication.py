"""Promises of replicated partitions, checked across brokers and the tree. Elections are clean.

1. The ISR in the tree is never empty. A leader is in it, and was in the one before. Within a leader epoch it
   changes only to what the leader of that epoch asked for.
2. The high watermark of a leader is never above the log end of a member of the ISR.
3. What was below a high watermark of a leader stays: each later leader has the same batches there.
4. In the end every replica is in the ISR, no reassignment is under way, no broker has a replica that is not
   assigned to it, and below the high watermark all replicas have the same bytes. As in Kafka, a broker that
   was away when its replica was removed may keep the replica if the controller changed since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.metadata import paths
from tidelog.records.batch import LENGTH_OVERHEAD, iter_batches

if TYPE_CHECKING:
    from tidelog.cluster.partition import Partition as Replica
    from tidelog.metadata.simulated import SimulatedZooKeeper
    from tidelog.server.broker import Broker
    from tidelog.simulation.cluster import SimBroker, SimCluster
    from tidelog.simulation.process import Process
    from tidelog.storage.log import Log

Partition = tuple[str, int]

ENTERING_SECONDS = 1.0
"""For how long after its start the controller may take a broker for the one that lost its power."""


class _State(NamedTuple):
    leader: int
    epoch: int
    isr: list[int]


class _Batch(NamedTuple):
    next_offset: int
    leader_epoch: int
    crc: int


class _Committed:
    """The batches below the highest high watermark of a leader, by their base offsets."""

    __slots__ = ("batches", "end")

    def __init__(self) -> None:
        self.batches: dict[int, _Batch] = {}
        self.end = 0

    def advance(self, log: Log) -> None:
        """Take the batches up to the high watermark of a leader."""
        if log.high_watermark > self.end:
            self.batches.update(_batches(log, self.end, log.high_watermark))
            self.end = log.high_watermark


class Replication:
    """Watches replicated partitions; calls `wrong` with what must not happen."""

    def __init__(
        self, cluster: SimCluster, zookeeper: SimulatedZooKeeper, wrong: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._tree = zookeeper.tree
        self._wrong = wrong
        self._states: dict[Partition, _State] = {}
        self._assigned: dict[Partition, frozenset[int]] = {}
        self._removed: dict[tuple[int, Partition], int] = {}  # the controller epoch that removed a replica
        self._asked: set[tuple[Partition, int, frozenset[int]]] = set()
        self._marks: dict[tuple[Process, Partition], tuple[int, int]] = {}  # leader epoch, high watermark
        self._committed: dict[Partition, _Committed] = {}
        self._hollow: dict[int, float | None] = {}
        """Brokers that lost what was not synced, and when their next process started."""
        self._in_doubt: set[tuple[int, Partition]] = set()
        """Members of an ISR that may lack what the ISR has: they lost power, and have not left it since."""

    # The tree

    def state_written(self, partition: Partition, leader: int, epoch: int, isr: list[int]) -> None:
        name = f"{partition[0]}-{partition[1]}"
        if not isr:
            self._wrong(f"the ISR of {name} is empty, epoch {epoch}")
        if leader >= 0 and leader not in isr:
            self._wrong(f"{name}: the leader {leader} of epoch {epoch} is not in the ISR {isr}")
        before = self._states.get(partition)
        if before is not None and leader >= 0 and leader not in before.isr:
            self._wrong(f"{name}: the leader {leader} of epoch {epoch} was not in the ISR {before.isr}")
        asked = (partition, epoch, frozenset(isr))
        if (
            before is not None
            and before.epoch == epoch
            and asked not in self._asked
            and {*before.isr} != {*isr}
        ):
            self._wrong(f"{name}: no leader of epoch {epoch} asked for the ISR {isr}")
        self._states[partition] = _State(leader, epoch, isr)
        self._in_doubt -= {(broker, key) for broker, key in self._in_doubt if key == partition} - {
            (broker, partition) for broker in isr
        }
        for broker in isr:
            if before is not None and broker not in before.isr and self._is_hollow(broker):
                self._in_doubt.add((broker, partition))

    def assignment_written(self, topic: str, partitions: dict[str, list[int]], controller_epoch: int) -> None:
        for index, replicas in partitions.items():
            partition = topic, int(index)
            before = self._assigned.get(partition, frozenset())
            self._assigned[partition] = frozenset(replicas)
            for broker in before.difference(replicas):
                self._removed[broker, partition] = controller_epoch

    def state_deleted(self, partition: Partition) -> None:
        self._states.pop(partition, None)
        self._assigned.pop(partition, None)
        self._committed.pop(partition, None)
        self._in_doubt -= {(broker, key) for broker, key in self._in_doubt if key == partition}

    # Power

    def power_lost(self, broker: SimBroker) -> None:
        """What the broker had not synced is lost."""
        self._hollow[broker.id] = None
        self._in_doubt |= {(broker.id, key) for key, state in self._states.items() if broker.id in state.isr}

    def _is_hollow(self, broker_id: int) -> bool:
        if broker_id not in self._hollow:
            return False
        started = self._hollow[broker_id]
        return started is None or self._cluster.world.now < started + ENTERING_SECONDS

    @property
    def is_in_doubt(self) -> bool:
        """Whether losing another broker may lose records for good."""
        return bool(self._in_doubt) or any(self._is_hollow(broker) for broker in self._hollow)

    def is_whole(self) -> bool:
        """Whether any one broker may lose its power: all others have what is committed."""
        registered = {int(name) for name in self._tree.children(paths.BROKER_IDS)}
        return not self.is_in_doubt and all(
            len(registered.intersection(state.isr)) >= 2 and state.leader in registered
            for state in self._states.values()
        )

    # The brokers

    def after_turn(self, broker: SimBroker, server: Broker, process: Process) -> None:
        if broker.is_running and self._hollow.get(broker.id, 0.0) is None:
            self._hollow[broker.id] = self._cluster.world.now
        assert server.replicas is not None
        marks = self._marks
        for partition in server.replicas.partitions():
            log = partition.log
            if log is None or partition.offline or log.closed:
                continue
            key = (partition.topic, partition.index)
            if partition.leader_id != partition.broker_id:
                committed = self._committed.get(key)
                if marks.pop((process, key), None) is not None and committed is not None:
                    # It led until this turn, and may have advanced its high watermark before.
                    committed.advance(log)
                if committed is not None:
                    self._check_follower(broker, partition, log, committed.end)
                continue
            pending = partition.followers.pending
            if pending is not None:
                self._asked.add((key, pending.leader_epoch, frozenset(pending.isr)))
            mark = (partition.leader_epoch, log.high_watermark)
            before = marks.get((process, key))
            if before != mark:
                marks[process, key] = mark
                self._leader_moved(broker, partition, log, before)

    def _check_follower(self, broker: SimBroker, partition: Replica, log: Log, committed: int) -> None:
        if log.high_watermark > committed:
            self._wrong(
                f"{broker.name} follows {partition.name} with the high watermark {log.high_watermark}, "
                f"leaders have had {committed}"
            )
        if log.log_end_offset >= committed or log.is_truncating:
            return
        key = (partition.topic, partition.index)
        state = self._states.get(key)
        if (
            state is not None
            and broker.id in state.isr
            and broker.id in partition.replicas
            and partition.leader_epoch == state.epoch
            and (broker.id, key) not in self._in_doubt
        ):
            self._wrong(
                f"{broker.name} is in the ISR {state.isr} of {partition.name}, its log ends at "
                f"{log.log_end_offset}, committed is {committed}"
            )

    def _leader_moved(
        self, broker: SimBroker, partition: Replica, log: Log, before: tuple[int, int] | None
    ) -> None:
        key, epoch, high_watermark = (
            (partition.topic, partition.index),
            partition.leader_epoch,
            log.high_watermark,
        )
        state = self._states.get(key)
        if state is None:
            return  # it is being deleted
        who = f"broker {broker.id}, leader of {partition.name} with epoch {epoch}"
        committed = self._committed.setdefault(key, _Committed())
        if before is None or before[0] != epoch:
            if state.epoch == epoch:  # else it hears late of what has ended: it commits nothing
                self._check_committed(who, log, committed)
        elif high_watermark < before[1]:
            self._wrong(f"{who}: the high watermark falls from {before[1]} to {high_watermark}")
        if high_watermark <= committed.end:
            return
        committed.advance(log)
        if state.epoch != epoch:
            return
        for member in state.isr:
            if member not in partition.replicas:
                continue  # a reassignment takes it away: it is not elected any more
            end = self._end_of(member, key)
            if end is not None and end < high_watermark:
                self._wrong(
                    f"{who}: the high watermark is {high_watermark}, the log of broker {member} in the ISR "
                    f"{state.isr} ends at {end}"
                )

    def _end_of(self, broker_id: int, key: Partition) -> int | None:
        """The log end offset of a replica; None if it is not known."""
        server = next(broker.server for broker in self._cluster.brokers if broker.id == broker_id)
        if server is None or server.replicas is None or (broker_id, key) in self._in_doubt:
            return None
        found = server.replicas.find_partition(*key)
        if found is None or found.log is None or found.log.closed or found.offline:
            return None
        return found.log.log_end_offset

    def _check_committed(self, who: str, log: Log, committed: _Committed) -> None:
        """A leader has everything that was committed before it."""
        if log.log_end_offset < committed.end:
            self._wrong(f"{who}: its log ends at {log.log_end_offset}, committed is {committed.end}")
        found = dict(_batches(log, log.log_start_offset, committed.end))
        for base, batch in committed.batches.items():
            if base >= log.log_start_offset and base < log.log_end_offset and found.get(base) != batch:
                self._wrong(f"{who}: at {base} it has {found.get(base)}, committed was {batch}")
                return

    # In the end

    def check_logs(self) -> None:
        """Compare the replicas of each partition below its high watermark."""
        servers = {broker.id: broker.server for broker in self._cluster.brokers}
        for key in self._states:
            found: dict[int, Log] = {}
            for broker_id, server in servers.items():
                replica = None
                if server is not None and server.replicas is not None:
                    replica = server.replicas.find_partition(*key)
                if replica is not None and replica.log is not None:
                    found[broker_id] = replica.log
            if not found:
                continue
            start = max(log.log_start_offset for log in found.values())
            end = min(log.high_watermark for log in found.values())
            data = {broker_id: _bytes(log, start, end) for broker_id, log in found.items()}
            first, *others = data
            for other in others:
                if data[other] != data[first]:
                    self._wrong(
                        f"brokers {first} and {other} differ in {key[0]}-{key[1]} between {start} and {end}"
                    )

    def broken_replicas(self) -> Iterator[str]:
        """The replicas in log folders that broke, which lead or are in sync although another one could lead.

        Once the controller knows of them, there are none. Partitions of topics that are being deleted stay as
        they are, as in Kafka.
        """
        deleted = self._tree.children(paths.DELETE_TOPICS)
        for (topic, index), state in self._states.items():
            if topic in deleted:
                continue
            offline = [member for member in state.isr if self._is_offline(member, (topic, index))]
            if offline and len(offline) < len(state.isr):
                yield (
                    f"the replicas of {topic}-{index} on {offline} are in broken folders: its leader is "
                    f"{state.leader}, its ISR {state.isr}"
                )

    def _is_offline(self, broker_id: int, key: Partition) -> bool:
        """Whether a broker that runs has a replica in a log folder that broke."""
        broker = next(broker for broker in self._cluster.brokers if broker.id == broker_id)
        if broker.server is None or broker.server.replicas is None or not broker.offline_log_dirs:
            return False
        found = broker.server.replicas.find_partition(*key)
        return found is None or found.offline

    def is_forgotten(self, broker_id: int, partition: Partition, controller_epoch: int) -> bool:
        """Whether an earlier controller removed this replica: the present one does not know of it."""
        return self._removed.get((broker_id, partition), controller_epoch) != controller_epoch

    def differences(self, controller_epoch: int) -> Iterator[str]:
        """What is not as it is after all faults: empty when followers have caught up and moves have ended."""
        for (topic, index), state in self._states.items():
            name = f"{topic}-{index}"
            node = json.loads(self._tree.get(f"/brokers/topics/{topic}")[0])
            replicas = node["partitions"].get(str(index), [])
            for field in ("adding_replicas", "removing_replicas"):
                if brokers := node.get(field, {}).get(str(index)):
                    yield f"{name} has {field} {brokers}"
            if sorted(replicas) != sorted(state.isr):
                yield f"{name} has the ISR {state.isr} of the replicas {replicas}"
            for broker in self._cluster.brokers:
                server = broker.server
                if server is None or server.replicas is None:
                    continue
                found = server.replicas.find_partition(topic, index)
                is_there = found is not None and found.log is not None
                is_forgotten = self.is_forgotten(broker.id, (topic, index), controller_epoch)
                if is_there and broker.id not in replicas and not is_forgotten:
                    yield f"{broker.name} has a replica of {name}, assigned are {replicas}"
                elif found is None and broker.id in replicas:
                    yield f"{broker.name} has no replica of {name}, assigned are {replicas}"


def _batches(log: Log, start: int, end: int) -> Iterator[tuple[int, _Batch]]:
    """The batches between two offsets."""
    offset = start
    while offset < end:
        found = log.read(offset, log.size)
        data = b"" if found.slice is None else found.slice.read()
        if not data:
            return
        for _, header in iter_batches(data):
            if header.base_offset >= end:
                return
            offset = header.next_offset
            yield header.base_offset, _Batch(offset, header.partition_leader_epoch, header.crc)


def _bytes(log: Log, start: int, end: int) -> bytes:
    """All batches between two offsets."""
    parts: list[bytes] = []
    offset = start
    while offset < end:
        found = log.read(offset, log.size)
        data = b"" if found.slice is None else bytes(found.slice.read())
        if not data:
            break
        for position, header in iter_batches(data):
            if header.base_offset >= end:
                return b"".join(parts)
            offset = header.next_offset
            parts.append(data[position : position + header.batch_length + LENGTH_OVERHEAD])
    return b"".join(parts)
