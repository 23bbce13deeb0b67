"""Three replicas on three broker processes lose nothing that was acknowledged, whatever fails.

A story has idempotent producers with acks=all, transactions, a copy loop that is exactly-once, groups of both
protocols, and readers at leaders and followers. Meanwhile a nemesis kills, pauses and stops brokers, cuts
links between them, pauses ZooKeeper and fills disks, with full recovery between two faults and without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.chaos.controllers import check_controllers
from tests.chaos.faulty_cluster import BROKERS
from tests.chaos.writer import SteadyWriter, check_writes
from tests.exactly_once.moving import Moving
from tests.exactly_once.story import READERS, Cast
from tests.exactly_once.story import Story as TransactionStory
from tests.groups.story import Flavour
from tests.groups.story import Story as GroupStory
from tests.replication.nemesis import ReplicationNemesis
from tests.replication.readers import Sightings, SteadyReader
from tests.replication.replicas import differences, partition_folders
from tests.replication.replicated_cluster import ReplicatedCluster
from tests.support.contents import read_with_client
from tests.support.scale import scale
from tests.support.wait import patience
from tidelog import Admin, NewTopic

SECONDS = scale(30, 600)
"""How long the faults of each run go on."""

PARTITIONS = 6
INTERNAL = ("__consumer_offsets", "__transaction_state")


class ManyBrokers:
    """Implements `Running` of tests.groups and tests.exactly_once: a restart hits a broker by seed."""

    has_two_phase = True

    def __init__(self, cluster: ReplicatedCluster, nemesis: ReplicationNemesis) -> None:
        self._cluster = cluster
        self._nemesis = nemesis

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self) -> None:
        self.restart(kill=True)

    def restart(self, *, kill: bool) -> None:
        victim = self._nemesis.chance.choice(BROKERS)
        (self._nemesis.kill if kill else self._nemesis.stop)(victim)
        self._cluster.await_recovery()

    def pause(self) -> None:
        self._cluster.pause(BROKERS[0])

    def resume(self) -> None:
        self._cluster.resume(BROKERS[0])

    def surprises(self) -> list[str]:
        return self._cluster.surprises()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.parametrize("recovers", [True, False], ids=["one-at-a-time", "without-recovery"])
def test_nothing_acknowledged_is_lost(cluster: ReplicatedCluster, tmp_path: Path, recovers: bool) -> None:
    seed = f"recovers-{recovers}"
    nemesis = ReplicationNemesis(cluster, seed, recovers=recovers)
    brokers = ManyBrokers(cluster, nemesis)
    topic = f"steady-{recovers}".lower()
    partitions = [(topic, index) for index in range(PARTITIONS)]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS)])
    sightings = Sightings()
    with ExitStack() as stack:
        writer = stack.enter_context(SteadyWriter(cluster.bootstrap, topic, PARTITIONS, f"{seed} "))
        writer.await_more(PARTITIONS, patience(30.0))
        for rack in ("", "r2", "r3")[: scale(2, 3)]:
            stack.enter_context(SteadyReader(cluster.bootstrap, partitions, sightings, rack=rack))
        transactions = stack.enter_context(
            TransactionStory(brokers, tmp_path / "transactions", seed, _cast(seed))
        )
        groups = [
            stack.enter_context(GroupStory(brokers, tmp_path / str(flavour), [flavour], f"{seed}-{flavour}"))
            for flavour in _flavours()
        ]
        stack.enter_context(_told(groups))  # on a busy machine coordinators move before the first fault
        for group in groups:
            group.group.wait_until_stable([group.join().name for _ in range(2)], patience(30.0))
        moving = _moving(brokers, tmp_path / "moving", seed) if scale(0, 1) and recovers else None
        if moving is not None:
            stack.enter_context(moving)
        began = time.monotonic()
        while time.monotonic() < began + SECONDS:
            if moving is not None:
                moving.fill(200)
                moving.revive()
            transactions.revive()
            nemesis.act()
        print(f"faults: {dict(nemesis.faults)}")
        cluster.await_recovery()
        writer.await_more(PARTITIONS, patience(30.0))
        writer.stop()
        transactions.finish()
        for group in groups:
            group.finish()
        if moving is not None:
            moving.finish()
        cluster.await_recovery()
        found = read_with_client(cluster.bootstrap, partitions)
    values = {
        key: [(record.value or b"").decode() for record in log.records] for key, log in found.items()
    }
    assert check_writes(writer.acknowledged, values, writer.sent_anew) == []
    assert sightings.check(found, "the last reader") == []
    assert len(sightings) > 100
    assert replica_differences(cluster) == []
    assert check_controllers(cluster.logs(), cluster.controller_epoch()) == []
    assert cluster.surprises() == []


@contextmanager
def _told(groups: list[GroupStory]) -> Iterator[None]:
    """Faults go on all the time: a commit that takes longer than a moment may have been sent twice."""
    ends = threading.Event()

    def tell() -> None:
        while not ends.wait(0.2):
            for group in groups:
                group.broker_failed("failed")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ends.set()
        teller.join()


def _cast(seed: str) -> Cast:
    return Cast(
        flavours=("by-hand", "two-phase", "kafka-python")[: scale(1, 3)],
        suffix=f"-{seed}".lower(),
        readers=READERS[: scale(1, 4)],
        last_readers=("confluent-kafka", "kafka-python")[: scale(1, 2)],
        patience=60.0,
    )


def _flavours() -> list[Flavour]:
    return [
        Flavour("confluent-kafka", "consumer:uniform"),
        *[Flavour("kafka-python", "range"), Flavour("aiokafka", "range")][: scale(1, 2)],
    ]


def _moving(brokers: ManyBrokers, folder: Path, seed: str) -> Moving:
    return Moving(brokers, folder, seed, records=20_000, batch=50, flavours=("kafka-python",))


def replica_differences(cluster: ReplicatedCluster) -> list[str]:
    """What differs between replicas, of topics that are not compacted, when nobody writes."""
    data = {broker_id: cluster[broker_id].data for broker_id in BROKERS}
    problems: list[str] = []
    compared = 0
    for name, folders in partition_folders(data).items():
        if not name.startswith(INTERNAL):
            problems += differences(folders, below=1 << 62)
            compared += len(folders) == len(BROKERS)
    assert compared >= PARTITIONS
    return problems
