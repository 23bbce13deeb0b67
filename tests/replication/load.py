"""ClientLoad: clients of all kinds that go on while a cluster changes, and what must hold of them in the end.

Idempotent producers with acks=all, a group of consumers, a reader of every offset, and a copy loop that is
exactly-once.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.writer import SteadyWriter, check_writes
from tests.exactly_once.moving import Moving
from tests.groups.story import Flavour
from tests.groups.story import Story as GroupStory
from tests.replication.elastic_cluster import ElasticCluster
from tests.replication.readers import Sightings, SteadyReader
from tests.support.contents import produce, read_with_client
from tests.support.wait import eventually, patience
from tidelog.simulation.checks.transaction_history import FAIL, INFO, NEMESIS

TOPIC, BULK = "steady", "bulk"
PARTITIONS = 3
COPIES = 1_500
"""How many records the copy loop moves in all."""

BULK_BYTES = 4 << 20
"""What a replica of each partition of BULK has to copy at least."""


class ClientLoad:
    """`with ClientLoad(cluster, folder) as load`, then changes of the cluster, and `finish()`."""

    def __init__(self, cluster: ElasticCluster, folder: Path, *, copies_with: str = "kafka-python") -> None:
        """`copies_with` is the client of the copy loop.

        Not librdkafka 2.16: its send_offsets_to_transaction may not return when a group coordinator stops
        (tests/transactions/test_lost_coordinators.py).
        """
        self.cluster = cluster
        brokers = list(cluster.brokers)[:3]
        turned = [brokers[n:] + brokers[:n] for n in range(3)]
        for topic in (TOPIC, BULK):
            cluster.create(topic, *turned)
        values = [bytes(16_384)] * (BULK_BYTES // 16_384)
        produce(cluster.bootstrap, {(BULK, index): values for index in range(PARTITIONS)})
        self._partitions = [(TOPIC, index) for index in range(PARTITIONS)]
        self._sightings = Sightings()
        self._writer = SteadyWriter(cluster.bootstrap, TOPIC, PARTITIONS, "n")
        self._copies = Moving(
            cluster, folder / "copies", "load", records=COPIES, batch=20, flavours=(copies_with,)
        )
        flavour = Flavour("confluent-kafka", "consumer:uniform")
        self._group = GroupStory(cluster, folder / "group", [flavour], "load")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._writer)
            stack.enter_context(SteadyReader(self.cluster.bootstrap, self._partitions, self._sightings))
            stack.enter_context(self._copies)
            stack.enter_context(self._group)
            names = [self._group.join().name for _ in range(2)]
            self._group.group.wait_until_stable(names, patience(30.0))
            self._copies.fill(50)
            eventually(lambda: self._copies.moved() > 0, "the copy loop begins", patience(30.0), 0.05)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def go_on(self) -> None:
        """More of every kind happens."""
        # The brokers that the group was created with may be gone.
        self._group.group.bootstrap = self.cluster.bootstrap
        self._writer.await_more(PARTITIONS, patience(30.0))
        self._copies.fill(50)
        self._copies.go_on(20)
        before = self._commits()
        eventually(lambda: self._commits() > before, "the group goes on", patience(30.0), 0.05)

    def _commits(self) -> int:
        return sum(line.what == "committed" for line in self._group.history.read())

    def refusals(self) -> list[str]:
        """The errors that the copy loop could not retry."""
        return [
            f"{line.kind} {line.what} {line.detail}"
            for line in self._copies.history.read()
            if line.kind in (FAIL, INFO) and line.who != NEMESIS
        ]

    def finish(self) -> None:
        """Nothing is lost or doubled, the order holds, and the replicas are the same."""
        self.go_on()
        self._writer.stop()
        self._copies.finish()
        self._group.finish()
        self.cluster.await_in_sync()
        found = read_with_client(self.cluster.bootstrap, self._partitions)
        values = {
            key: [(record.value or b"").decode() for record in log.records] for key, log in found.items()
        }
        assert check_writes(self._writer.acknowledged, values, self._writer.sent_anew) == []
        assert self._sightings.check(found, "the last reader") == []
        assert len(self._sightings) > 100
        assert self.cluster.differences() == []
        assert self.cluster.surprises() == []
