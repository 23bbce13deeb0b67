"""One run of the simulation: clients work, faults happen, all is repaired, and everything is checked."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field

from tidelog import AsyncAdmin, NewTopic
from tidelog.clients.admin.topics import OffsetSpec
from tidelog.errors import KafkaError
from tidelog.simulation.actors import (
    ANSWERS,
    RECONNECT,
    Administrator,
    Member,
    Orders,
    Reader,
    SteadyWriter,
    TransactionalWriter,
    plain_consumer,
)
from tidelog.simulation.checks.duplicates import check as check_duplicates
from tidelog.simulation.checks.group_checker import check as check_group
from tidelog.simulation.checks.transaction_checker import Final, Log
from tidelog.simulation.checks.transaction_checker import check as check_transactions
from tidelog.simulation.checks.transaction_history import COMMITTED, UNCOMMITTED, Partition
from tidelog.simulation.cluster import LOG_DIR, SECOND_LOG_DIR, SimBroker, SimCluster
from tidelog.simulation.diaries import GroupDiary, TransactionDiary
from tidelog.simulation.disk_faults import ALL, Fault
from tidelog.simulation.history import Event
from tidelog.simulation.invariants import Invariants
from tidelog.simulation.mover import Mover
from tidelog.simulation.nemesis import Nemesis
from tidelog.simulation.process import Process
from tidelog.simulation.world import World

TOPIC, PARTITIONS = "events", 4
GROUP = "readers"
TRANSACTION_TOPICS = {"orders": 2, "stock": 1}
STRATEGIES = ("range", "cooperative-sticky", "consumer")
FAULT_SECONDS = 20.0
RECOVERY_SECONDS = 90.0
CONVERGENCE_SECONDS = 15.0
FOLDER_SECONDS = 8.0
"""How long it may take until nobody leads in a log folder that broke."""
SUSPICION_SECONDS = 5.0
"""How long it may take until the controller suspects a broker that refuses everybody."""
SMALL_QUEUE_EVERY = 5
"""Of so many seeds one has brokers with a small request queue: clients fill it, and brokers must not wait."""


@dataclass(slots=True)
class Outcome:
    seed: int
    problems: list[str]
    history: list[Event]
    seconds: float
    steps: int


@dataclass(slots=True)
class Audit:
    """What the logs and groups have in the end."""

    topics: dict[str, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    final: Final = field(default_factory=lambda: Final("auditor"))


class Story:
    def __init__(
        self,
        seed: int,
        brokers: int = 1,
        fault_seconds: float = FAULT_SECONDS,
        log_level: int = logging.WARNING,
        replicas: int = 1,
        *,
        fills_disks: bool = False,
        fills_whole_disks: bool = False,
        fails_folders: bool = False,
        delays_connections: bool = False,
    ) -> None:
        """With `fills_disks`, brokers have no room for the records of the idempotent producer at times.

        With `fills_whole_disks`, brokers have no room for any file at times, often while a session expires.
        With `fails_folders`, each broker has two log folders, of which one breaks at times.
        With `delays_connections`, the controller sends a request again soon, and the first copy may be late.
        """
        self.world = world = World(seed, log_level)
        self.fills_disks = fills_disks
        self.fills_whole_disks = fills_whole_disks
        self.fails_folders = fails_folders
        self.delays_connections = delays_connections
        self.rng = world.fork("story")
        self.keeps_synced_only = self.rng.random() < 0.4
        settings = {
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.num.partitions": "2",
            "group.min.session.timeout.ms": "1000",
            "group.consumer.session.timeout.ms": "4000",
            "group.consumer.min.session.timeout.ms": "4000",
            "group.consumer.heartbeat.interval.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        }
        if seed % SMALL_QUEUE_EVERY == SMALL_QUEUE_EVERY - 1:
            settings["queued.max.requests"] = "3"
        if self.keeps_synced_only:
            settings["log.flush.interval.messages"] = "1"
        if fails_folders:
            settings["log.dirs"] = f"{LOG_DIR},{SECOND_LOG_DIR}"
        if delays_connections:
            settings["controller.socket.timeout.ms"] = "1000"
        self.replicas = replicas
        if replicas > 1:
            settings |= _replicated(replicas, self.rng)
        self.cluster = SimCluster(world, brokers, settings)
        self.invariants: Invariants | None = None
        if self.cluster.zookeeper is not None:
            self.invariants = Invariants(self.cluster, self.cluster.zookeeper)
        self.groups = GroupDiary(world.history)
        self.transactions = TransactionDiary(world.history)
        self.problems: list[str] = []
        self.fault_seconds = fault_seconds
        self.audit = Audit()
        self._writer_orders = Orders()
        self._member_orders = Orders()
        self._writing = 0  # actors that have to end before logs are final
        self._instances: dict[str, int] = {}
        self._clients: list[Process] = []
        self._members = 0
        self.steady = SteadyWriter(
            self.bootstrap,
            TOPIC,
            PARTITIONS,
            self._writer_orders,
            lambda text: world.history.add("steady", text),
        )

        self.administrator = Administrator(
            self.bootstrap, self._writer_orders, lambda text: world.history.add("admin", text), replicas
        )

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def transaction_partitions(self) -> list[Partition]:
        return [(topic, index) for topic, count in TRANSACTION_TOPICS.items() for index in range(count)]

    # The run

    def run(self) -> Outcome:
        with self.world.running():
            try:
                self._run()
            except _GiveUp as error:
                self.problems.append(str(error))
        if self.invariants is not None:
            self.problems += self.invariants.problems
        self.problems += self.world.failures
        return Outcome(
            self.world.seed, self.problems, self.world.history.events, self.world.now, self.world.steps
        )

    def _run(self) -> None:
        world = self.world
        self.cluster.start()
        self._do("setup", self._create_topics)
        self._start_clients()
        nemesis = Nemesis(
            self.cluster,
            world.fork("nemesis"),
            self.groups,
            keeps_synced_only=self.keeps_synced_only,
            clients=lambda: [process for process in self._clients if process.is_alive],
            replication=self.invariants.replication if self.invariants and self.replicas > 1 else None,
            fills_disks_of=TOPIC if self.fills_disks else None,
            fails_folders=self.fails_folders,
            fills_whole_disks=self.fills_whole_disks,
            delays_connections=self.delays_connections,
        )
        if self.invariants is not None:
            self.invariants.on_state_written = nemesis.state_written
        nemesis.begin()
        world.run(self.fault_seconds)
        nemesis.end()
        self._wait(lambda: self.cluster.is_running, "all brokers have started")
        if self.fails_folders:
            self._break_a_folder()
        if self.replicas > 1:
            for _ in range(self.rng.randint(1, 2)):
                self._suspect_a_broker()
        if self.invariants is not None:
            self._converge(self.invariants)
        self._writer_orders.stopping = True
        self._wait(lambda: self._writing == 0, "all writers have ended")
        self._do("auditor", self._audit)
        if self.invariants is not None:
            self.invariants.check_logs()
        self._member_orders.stopping = True
        self.problems += self.steady.problems
        self.problems += self.administrator.problems(self.audit.topics)
        self._check()

    def _break_a_folder(self) -> None:
        """Break a last folder, start its broker without it, and bring all folders back."""
        broker = self.rng.choice(self.cluster.brokers)
        folder = self.rng.choice((LOG_DIR, SECOND_LOG_DIR))
        disk = self.world.host(broker.host).disk
        disk.faults.add(Fault(errno.EIO, ALL, folder=folder))
        self.world.history.add("story", f"the folder {folder} of {broker.name} breaks")
        self.world.run(FOLDER_SECONDS, lambda: folder in broker.offline_log_dirs)
        self._check_broken_replicas("after a folder broke")
        if broker.offline_log_dirs == [folder]:
            self._restart(broker)
            self._check_broken_replicas("after a start without a folder")
        disk.heal()
        for other in self.cluster.brokers:
            if other.offline_log_dirs:
                self._restart(other)
            if folders := other.offline_log_dirs:
                self.problems.append(f"{other.name} does not use {folders}, which are whole again")

    def _suspect_a_broker(self) -> None:
        """Refuse connections to a broker that lives until it is suspected, and let it answer again.

        The second time it may be out of sync, with the states of its partitions that the controller knows.
        """
        self.world.run(SUSPICION_SECONDS, lambda: self.cluster.controller is not None)
        controller = self.cluster.controller
        broker = next(broker for broker in reversed(self.cluster.brokers) if broker is not controller)
        hosts = [name for name in sorted(self.world.hosts) if name != broker.host]
        self.world.history.add("story", f"connections to {broker.name} are refused")
        for host in hosts:
            self.world.network.refuse(host, broker.host)
        broker.reset_connections()
        self.world.run(SUSPICION_SECONDS, lambda: broker.id in self._suspected())
        suspected = self._suspected()
        self.world.history.add("story", f"connections to {broker.name} are accepted, suspected: {suspected}")
        for host in hosts:
            self.world.network.accept(host, broker.host)
        self.world.run(SUSPICION_SECONDS, lambda: broker.id not in self._suspected())

    def _suspected(self) -> list[int]:
        """The brokers that a controller suspects."""
        return sorted({found for broker in self.cluster.brokers for found in broker.suspected_broker_ids})

    def _check_broken_replicas(self, when: str) -> None:
        if self.invariants is not None:
            broken = self.invariants.replication.broken_replicas
            self.world.run(FOLDER_SECONDS, lambda: not list(broken()))
            for text in broken():
                raise _GiveUp(f"{when} {text}")

    def _restart(self, broker: SimBroker) -> None:
        broker.stop()
        self._wait(lambda: not broker.is_running, f"{broker.name} has stopped")
        self._wait(lambda: self.cluster.is_running, f"{broker.name} runs again")

    def _converge(self, invariants: Invariants) -> None:
        self.world.run(CONVERGENCE_SECONDS, lambda: not invariants.differences())
        self.problems += [f"in the end {text}" for text in invariants.differences()]

    def _check(self) -> None:
        written = {partition: sorted(values) for partition, values in self.steady.written.items()}
        self.problems += check_group(self.groups.lines, self.audit.ends, self.audit.committed, written)
        self.problems += check_duplicates(self.groups.lines)
        found = check_transactions(self.transactions.lines, [self.audit.final])
        self.problems += [f"{problem.rule}: {problem.text}" for problem in found]

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = RECOVERY_SECONDS) -> None:
        if not self.world.run(seconds, condition):
            raise _GiveUp(f"not within {seconds:.0f} s after the last fault: {what}")

    def _do(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Let a client do something that has to succeed in time."""
        done = False
        failure: KafkaError | None = None

        async def main(_: Process) -> None:
            nonlocal failure
            try:
                await work()
            except KafkaError as error:
                failure = error

        def exited() -> None:
            nonlocal done
            done = True

        self.world.start(name, f"client-{name}", main, exited)
        self._wait(lambda: done, f"{name} is done")
        if failure is not None:
            raise _GiveUp(f"{name} fails: {failure!r}")

    # Clients

    def _start_clients(self) -> None:
        self.strategy = self.rng.choice(STRATEGIES)
        self._start_writer("steady", self.steady.main)
        self._start_writer("admin", self.administrator.main)
        if self.replicas > 1:
            self._start_writer("mover", self._mover().main)
        for number in range(1, 3):
            self._start_transactional(f"txn{number}")
        for _ in range(self.rng.randint(1, 3)):
            self._start_member()
        for isolation in (COMMITTED, UNCOMMITTED):
            reader = Reader(
                f"reader-{isolation[5:]}",
                self.bootstrap,
                self.transaction_partitions,
                isolation,
                self.transactions,
                self._member_orders,
            )
            self._clients.append(self.world.start(reader.name, f"client-{reader.name}", reader.main))

    def _mover(self) -> Mover:
        return Mover(
            self.bootstrap,
            [broker.id for broker in self.cluster.brokers],
            self.replicas,
            self._writer_orders,
            lambda text: self.world.history.add("mover", text),
        )

    def _start_writer(self, name: str, main: Callable[[Process], Coroutine[None, None, None]]) -> None:
        self._writing += 1

        def exited() -> None:
            self._writing -= 1

        self._clients.append(self.world.start(name, f"client-{name}", main, exited))

    def _start_transactional(self, transactional_id: str) -> None:
        number = self._instances[transactional_id] = self._instances.get(transactional_id, 0) + 1
        name = f"{transactional_id}@{number}"
        writer = TransactionalWriter(
            name,
            number,
            transactional_id,
            self.bootstrap,
            self.transaction_partitions,
            self.transactions,
            self._writer_orders,
        )

        def exited() -> None:
            self._writing -= 1
            if not self._writer_orders.stopping and self._instances[transactional_id] == number:
                self._start_transactional(transactional_id)

        self._writing += 1
        host = f"client-{transactional_id}"
        process = self.world.start(name, host, writer.main, exited)
        self._clients.append(process)
        if self.rng.random() < 0.5:
            self.world.after(self.rng.uniform(1.0, 10.0), lambda: self._take_over(process, transactional_id))

    def _take_over(self, process: Process, transactional_id: str) -> None:
        """Start the next producer of the transactional id. The last one is killed, or goes on as a zombie."""
        if process.is_alive and not self._writer_orders.stopping:
            if self.rng.random() < 0.5:
                self.world.history.add(process.name, "is killed")
                self.world.kill(process)
                self._writing -= 1
            self._start_transactional(transactional_id)

    def _start_member(self) -> None:
        self._members += 1
        name = f"member-{self._members}"
        orders = self._member_orders
        member = Member(name, self.bootstrap, GROUP, TOPIC, self.strategy, self.groups, orders)
        process = self.world.start(name, f"client-{name}", member.main)
        self._clients.append(process)
        if self.rng.random() < 0.5:
            self.world.after(self.rng.uniform(1.0, 12.0), lambda: self._kill_member(process))

    def _kill_member(self, process: Process) -> None:
        if process.is_alive and not self._writer_orders.stopping:
            self.world.history.add(process.name, "is killed")
            self.world.kill(process)
            self._start_member()

    # Before and after

    def _admin(self) -> AsyncAdmin:
        return AsyncAdmin(
            {"bootstrap.servers": self.bootstrap, "default.api.timeout.ms": 10_000, **RECONNECT, **ANSWERS}
        )

    async def _create_topics(self) -> None:
        topics = {TOPIC: PARTITIONS, **TRANSACTION_TOPICS}
        async with self._admin() as admin:
            await admin.create_topics(
                [NewTopic(name, count, self.replicas) for name, count in topics.items()]
            )

    async def _audit(self) -> None:
        """Wait until the group has read everything and no transaction is open, then read all logs."""
        events = [(TOPIC, index) for index in range(PARTITIONS)]
        audit, final = self.audit, self.audit.final
        async with self._admin() as admin:
            audit.topics = await _partition_counts(admin)
            audit.ends = await _ends(admin, events, UNCOMMITTED)
            deadline = self.world.now + RECOVERY_SECONDS / 2
            while self.world.now < deadline:
                try:
                    audit.committed = await _group_offsets(admin, GROUP)
                    final.ends = await _ends(admin, self.transaction_partitions, UNCOMMITTED)
                    final.stable_ends = await _ends(admin, self.transaction_partitions, COMMITTED)
                    for transactional_id in self._instances:
                        group = f"group-{transactional_id}"
                        final.offsets[group] = await _group_offsets(
                            admin, group, self.transaction_partitions
                        )
                        final.waiting[group] = []
                except KafkaError as error:
                    self.world.history.add("auditor", f"has to ask again: {error!r}")
                    await asyncio.sleep(0.1)
                    continue
                if audit.committed == {k: v for k, v in audit.ends.items() if v} and (
                    final.ends == final.stable_ends
                ):
                    break
                await asyncio.sleep(0.5)
        for transactional_id in self._instances:
            group = f"group-{transactional_id}"
            if group not in final.offsets:
                self.problems.append(f"the offsets of {group} are not stable in time")
        final.committed = await _read(self.bootstrap, self.transaction_partitions, COMMITTED)
        final.uncommitted = await _read(self.bootstrap, self.transaction_partitions, UNCOMMITTED)


def _replicated(replicas: int, rng: random.Random) -> dict[str, str]:
    """Settings of brokers whose topics have replicas, also the internal ones."""
    in_sync = str(replicas - 1)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": in_sync,
        "log.roll.ms": rng.choice(("604800000", "800")),
        "log.cleaner.backoff.ms": "600000",  # the checks compare batches
        "replica.lag.time.max.ms": rng.choice(("1500", "4000")),
        "replica.fetch.backoff.ms": "200",
        "replica.socket.timeout.ms": "2000",
        "leader.imbalance.check.interval.seconds": rng.choice(("3", "300")),
    }


class _GiveUp(Exception):
    pass


async def _partition_counts(admin: AsyncAdmin) -> dict[str, int]:
    described = await admin.describe_topics(list(await admin.list_topics()))
    return {name: len(topic.partitions) for name, topic in described.items()}


async def _ends(admin: AsyncAdmin, partitions: list[Partition], isolation: str) -> dict[Partition, int]:
    found = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), isolation_level=isolation)
    return {(topic, index): info.offset for (topic, index), info in found.items()}


async def _group_offsets(
    admin: AsyncAdmin, group: str, partitions: list[Partition] | None = None
) -> dict[Partition, int]:
    """The offsets of a group, of named partitions also if only an open transaction has one."""
    found = await admin.list_consumer_group_offsets({group: partitions}, require_stable=True)
    return {(topic, index): offset.offset for (topic, index), offset in found[group].items()}


async def _read(bootstrap: str, partitions: list[Partition], isolation: str) -> dict[Partition, Log]:
    """Everything that a consumer gets up to the end."""
    consumer = plain_consumer(bootstrap, partitions, isolation)
    found: dict[Partition, Log] = {partition: [] for partition in partitions}
    async with consumer:
        ends = await consumer.end_offsets(partitions)
        consumer.seek_to_beginning()
        while any([await consumer.position(partition) < ends[partition] for partition in ends]):
            for record in await consumer.poll(0.5):
                found[record.topic, record.partition].append((record.offset, (record.value or b"").decode()))
    return found
