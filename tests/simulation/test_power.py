"""What a broker promises of records that were not flushed: a kill loses none, a power cut the newest ones.

A disk that lies about syncs loses more. The broker starts all the same, and serves records in order.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.scale import scale
from tidelog import AsyncAdmin, NewTopic
from tidelog.simulation.actors import ANSWERS, RECONNECT, Orders, SteadyWriter, plain_consumer
from tidelog.simulation.checks.transaction_history import UNCOMMITTED
from tidelog.simulation.cluster import SimCluster
from tidelog.simulation.process import Process
from tidelog.simulation.world import World

TOPIC, PARTITIONS = "events", 2
Log = list[tuple[int, str]]


class Run:
    """One broker and a producer of acks=1, while the broker is killed or loses its power again and again."""

    def __init__(self, seed: int, *, lies: bool = False) -> None:
        self.world = World(seed)
        self.cluster = SimCluster(self.world, 1)
        self.broker = self.cluster.brokers[0]
        self.broker.restart_seconds = 0.5
        self.logs: dict[int, Log] = {}
        self._lies = lies
        self._orders = Orders()
        self.writer = SteadyWriter(
            self.cluster.bootstrap,
            TOPIC,
            PARTITIONS,
            self._orders,
            lambda text: self.world.history.add("steady", text),
            acks="1",
            is_idempotent=False,
        )

    def run(self, *, power: bool) -> None:
        rng = random.Random(self.world.seed)
        with self.world.running():
            self.cluster.start()
            self._do("setup", self._create)
            self.world.start("steady", "client-steady", self.writer.main)
            for _ in range(4):
                self.world.run(rng.uniform(0.5, 4.0))
                self.world.host(self.broker.host).disk.lies = self._lies
                self.world.run(rng.uniform(0.5, 4.0))
                self.broker.lose_power() if power else self.broker.kill()
                self.world.run(rng.uniform(0.1, 2.0))
                self.broker.start()
                assert self.world.run(30.0, lambda: self.broker.is_running), self.world.history.text(50)
            self._orders.stopping = True
            self.world.run(10.0)
            self._do("reader", self._read)
        assert self.world.failures == []

    def _do(self, name: str, main) -> None:  # type: ignore[no-untyped-def]
        done: list[bool] = []
        self.world.start(name, f"client-{name}", main, lambda: done.append(True))
        assert self.world.run(60.0, lambda: bool(done)), self.world.history.text(50)

    async def _create(self, process: Process) -> None:
        async with AsyncAdmin({"bootstrap.servers": self.cluster.bootstrap, **RECONNECT, **ANSWERS}) as admin:
            await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])

    async def _read(self, process: Process) -> None:
        partitions = [(TOPIC, index) for index in range(PARTITIONS)]
        self.logs = {index: [] for index in range(PARTITIONS)}
        async with plain_consumer(self.cluster.bootstrap, partitions, UNCOMMITTED) as consumer:
            ends = await consumer.end_offsets(partitions)
            consumer.seek_to_beginning()
            while any([await consumer.position(partition) < ends[partition] for partition in ends]):
                for record in await consumer.poll(0.5):
                    self.logs[record.partition].append((record.offset, (record.value or b"").decode()))
                await asyncio.sleep(0)

    def check_logs(self) -> None:
        """Every record was sent, and offsets have no gap."""
        for log in self.logs.values():
            assert [offset for offset, _ in log] == list(range(len(log)))
            assert {value for _, value in log} <= self.writer.sent

    def lost(self) -> set[str]:
        """The acknowledged records that are not there."""
        there = {value for log in self.logs.values() for _, value in log}
        acknowledged = {value for values in self.writer.written.values() for value in values}
        assert len(acknowledged) > 20
        return acknowledged - there


@pytest.mark.parametrize("seed", range(scale(3, 40)))
def test_a_killed_broker_keeps_all_that_it_acknowledged(seed: int) -> None:
    run = Run(seed)
    run.run(power=False)
    run.check_logs()
    assert run.lost() == set()


@pytest.mark.parametrize("lies", [False, True], ids=["honest disk", "lying disk"])
def test_a_power_cut_leaves_logs_that_can_be_read(lies: bool) -> None:
    lost = 0
    for seed in range(scale(4, 60)):
        run = Run(seed, lies=lies)
        run.run(power=True)
        run.check_logs()
        lost += len(run.lost())
    # Otherwise the simulated power cuts prove nothing.
    assert lost
