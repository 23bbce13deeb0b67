"""Replicas move between the log dirs of their brokers, and survive a log dir that fails, under load."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.writer import SteadyWriter, check_writes
from tests.replication.elastic_cluster import ElasticCluster
from tests.replication.failing_disk import FailingDiskBroker
from tests.replication.readers import Sightings, SteadyReader
from tests.support.contents import produce, read_with_client
from tests.support.scale import scale
from tests.support.wait import eventually, patience
from tidelog.clients.admin import AlterConfigOp, ConfigResource, ElectionType, Replica, ResourceType

PARTITIONS = 4
BULK = [bytes(16_384)] * 500
SLOW, FAST = "200000", "1000000000"
"""Bytes a second of moves between log dirs."""


class FailingDiskCluster(ElasticCluster):
    broker_class = FailingDiskBroker

    def failing(self, broker_id: int) -> FailingDiskBroker:
        broker = self[broker_id]
        assert isinstance(broker, FailingDiskBroker)
        return broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingDiskCluster]:
    with FailingDiskCluster(tmp_path_factory.mktemp("cluster")) as running:
        running.explained = (*running.explained, "Input/output error")
        yield running


@contextmanager
def load(cluster: ElasticCluster, topic: str) -> Iterator[SteadyWriter]:
    """A producer and a reader of a topic. In the end its records are there once, the same on all replicas."""
    partitions = [(topic, index) for index in range(PARTITIONS)]
    sightings = Sightings()
    with (
        SteadyWriter(cluster.bootstrap, topic, PARTITIONS, "n") as writer,
        SteadyReader(cluster.bootstrap, partitions, sightings),
    ):
        writer.await_more(PARTITIONS, patience(30.0))
        yield writer
        writer.await_more(PARTITIONS, patience(30.0))
        writer.stop()
        cluster.await_in_sync()
        found = read_with_client(cluster.bootstrap, partitions)
    values = {
        key: [text for record in log.records if (text := (record.value or b"").decode()).startswith("n")]
        for key, log in found.items()
    }
    assert check_writes(writer.acknowledged, values, writer.sent_anew) == []
    assert sightings.check(found, "the last reader") == []
    assert cluster.differences() == []
    assert cluster.surprises() == []


def test_a_reassignment_names_the_log_dir(cluster: FailingDiskCluster) -> None:
    topic = "placed"
    cluster.create(topic, *([[1, 2]] * PARTITIONS))
    produce(cluster.bootstrap, {(topic, index): BULK for index in range(PARTITIONS)})
    with load(cluster, topic):
        for target, folder in ((3, 0), (2, 1)):
            log_dir = cluster.log_dirs(target)[folder]
            wanted = {(topic, index): [1, target] for index in range(PARTITIONS)}
            plan = cluster.plan(wanted, {target: log_dir})
            cluster.reassign(plan, "--throttle", "20000000", "--wait")
            cluster.await_moved(wanted)
            for index in range(PARTITIONS):
                assert cluster.folder_of(target, f"{topic}-{index}") == log_dir


@pytest.mark.parametrize("of_leader", [True, False], ids=["leader", "follower"])
def test_a_replica_moves_to_the_other_log_dir(cluster: FailingDiskCluster, of_leader: bool) -> None:
    topic = f"turned-{of_leader}".lower()
    cluster.create(topic, *([[1, 2, 3]] * PARTITIONS))
    produce(cluster.bootstrap, {(topic, index): BULK for index in range(PARTITIONS)})
    broker_id = 1 if of_leader else 2
    with load(cluster, topic) as writer:
        for _ in range(scale(2, 20)):
            before = {index: cluster.folder_of(broker_id, f"{topic}-{index}") for index in range(PARTITIONS)}
            a, b = cluster.log_dirs(broker_id)
            wanted = {index: b if before[index] == a else a for index in range(PARTITIONS)}
            moves = {Replica(topic, index, broker_id): str(path) for index, path in wanted.items()}
            cluster.ask(lambda admin, moves=moves: admin.alter_replica_log_dirs(moves))  # type: ignore[misc]
            eventually(
                lambda wanted=wanted: all(  # type: ignore[misc]
                    cluster.folder_of(broker_id, f"{topic}-{index}") == path for index, path in wanted.items()
                ),
                "the replicas are in the other log dirs",
                patience(30.0),
                0.05,
            )
            writer.await_more(PARTITIONS, patience(30.0))
        assert {cluster.leader(topic, index) for index in range(PARTITIONS)} == {1}


@pytest.mark.parametrize(
    "is_new_disk", [True, False][: scale(1, 2)], ids=["empty-disk", "same-disk"][: scale(1, 2)]
)
def test_leaders_leave_a_log_dir_that_fails(cluster: FailingDiskCluster, is_new_disk: bool) -> None:
    topic = f"failed-{is_new_disk}".lower()
    cluster.create(topic, *([[1, 2, 3], [2, 3, 1]] * (PARTITIONS // 2)))
    names = [f"{topic}-{index}" for index in range(PARTITIONS)]
    good, bad = cluster.log_dirs(1)
    moves = {Replica(topic, index, 1): str(bad if index < 2 else good) for index in range(PARTITIONS)}
    cluster.ask(lambda admin: admin.alter_replica_log_dirs(moves))
    eventually(
        lambda: [cluster.folder_of(1, name) for name in names] == [bad, bad, good, good],
        "the replicas are placed",
        patience(20.0),
    )
    broker = cluster.failing(1)
    with load(cluster, topic) as writer:
        broker.fail(bad)
        # Broker 1 led partition 0 and followed partition 1 in the log dir that failed.
        cluster.await_leader(2, topic, 0)
        for index, isr in enumerate(([2, 3], [2, 3], [1, 2, 3], [1, 2, 3])):
            cluster.await_isr(isr, topic, index)
        assert cluster.leader(topic, 2) == 1
        writer.await_more(PARTITIONS, patience(30.0))
        broker.terminate(patience(30.0))
        if is_new_disk:
            shutil.rmtree(bad)
        broker.heal()
        broker.start()
        cluster.await_members()
        cluster.await_in_sync()
        assert None not in [cluster.folder_of(1, name) for name in names]


class SlowMoves:
    """The replicas of broker 1 move to its other log dir, so slowly that a fault hits them on the way."""

    def __init__(self, cluster: FailingDiskCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.names = [f"{topic}-{index}" for index in range(PARTITIONS)]
        self.source, self.target = cluster.log_dirs(1)

    def begin(self) -> None:
        self._move(self.source)
        self.await_in(self.source)
        self.throttle(SLOW)
        self._move(self.target)
        eventually(lambda: len(self.futures()) == PARTITIONS, "the moves begin", patience(20.0))

    def _move(self, log_dir: Path) -> None:
        moves = {Replica(self.topic, index, 1): str(log_dir) for index in range(PARTITIONS)}
        self.cluster.ask(lambda admin: admin.alter_replica_log_dirs(moves))

    def throttle(self, rate: str) -> None:
        resource = ConfigResource(ResourceType.BROKER, "1")
        change = AlterConfigOp("replica.alter.log.dirs.io.max.bytes.per.second", rate)
        self.cluster.ask(lambda admin: admin.incremental_alter_configs({resource: [change]}))

    def futures(self) -> list[str]:
        folders = self.cluster.left_folders(1)
        return [name for name in folders if name.startswith(self.topic) and name.endswith("-future")]

    def await_in(self, log_dir: Path | None) -> None:
        eventually(
            lambda: (
                [self.cluster.folder_of(1, name) for name in self.names] == [log_dir] * PARTITIONS
                and not self.futures()
            ),
            f"the replicas are in {log_dir}",
            patience(60.0),
            0.05,
        )

    # --- faults

    def kill(self) -> None:
        """The moves go on after the start."""
        self.cluster[1].restart(kill=True)
        self.cluster.await_members()
        assert len(self.futures()) == PARTITIONS
        self.throttle(FAST)
        self.await_in(self.target)

    def change_leader(self) -> None:
        """The moves go on with replicas that follow now."""
        turned = {(self.topic, index): [2, 1, 3] for index in range(PARTITIONS)}
        self.cluster.reassign(self.cluster.plan(turned), "--wait")
        assert all(self.cluster.elect(ElectionType.PREFERRED, *turned).values())
        self.cluster.await_leader(2, self.topic)
        assert len(self.futures()) == PARTITIONS
        self.throttle(FAST)
        self.await_in(self.target)

    def reassign(self) -> None:
        """Nothing of the replicas is left on the broker."""
        away = {(self.topic, index): [2, 3] for index in range(PARTITIONS)}
        self.cluster.reassign(self.cluster.plan(away), "--wait")
        self.cluster.await_moved(away)
        self.await_in(None)
        self.throttle(FAST)

    def fail_target(self) -> None:
        """The replicas stay where they are, in sync."""
        broker = self.cluster.failing(1)
        broker.fail(self.target)
        eventually(lambda: "is offline with" in broker.log(), "the log dir fails", patience(20.0))
        for index in range(PARTITIONS):
            assert self.cluster.folder_of(1, self.names[index]) == self.source
            self.cluster.await_isr([1, 2, 3], self.topic, index)
            assert self.cluster.leader(self.topic, index) == 1
        broker.terminate(patience(30.0))
        broker.heal()
        broker.start()
        self.cluster.await_members()
        self.throttle(FAST)
        self.cluster.await_in_sync()
        eventually(lambda: not self.futures(), "no move is left", patience(30.0))


FAULTS = (SlowMoves.kill, SlowMoves.change_leader, SlowMoves.reassign, SlowMoves.fail_target)


@pytest.mark.parametrize("fault", FAULTS[: scale(1, 4)])
def test_a_move_between_log_dirs_meets_a_fault(
    cluster: FailingDiskCluster, fault: Callable[[SlowMoves], None]
) -> None:
    topic = f"slow-{fault.__name__}".replace("_", "-")
    cluster.create(topic, *([[1, 2, 3]] * PARTITIONS))
    produce(cluster.bootstrap, {(topic, index): BULK for index in range(PARTITIONS)})
    moves = SlowMoves(cluster, topic)
    with load(cluster, topic):
        moves.begin()
        fault(moves)
