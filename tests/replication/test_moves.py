"""All partitions of a broker move to one that joins, under load, and clients notice nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.replication.elastic_cluster import ElasticCluster
from tests.replication.load import BULK, BULK_BYTES, PARTITIONS, ClientLoad
from tests.support.scale import scale
from tests.support.wait import eventually, patience

THROTTLE = BULK_BYTES * PARTITIONS // 3
"""Bytes a second: a move takes a few seconds."""

SLOW = 100_000
"""Bytes a second at which a move does not end within a test."""


def join(cluster: ElasticCluster, broker_id: int) -> None:
    cluster.add(broker_id).start()
    cluster.await_members()


def leave(cluster: ElasticCluster, broker_id: int) -> None:
    """The broker is shut down for good. Nothing is left on its disks."""
    cluster.await_empty(broker_id)
    assert cluster[broker_id].terminate(patience(30.0)) == 0
    cluster.await_members()


def test_partitions_move_from_the_controller_to_a_new_broker(tmp_path: Path) -> None:
    with (
        ElasticCluster(tmp_path) as cluster,
        ClientLoad(cluster, tmp_path / "load", copies_with="confluent-kafka") as load,
    ):
        old = cluster.controller
        join(cluster, 4)
        wanted = cluster.replaced(old, 4)
        assert {topic for topic, _ in wanted} >= {"__consumer_offsets", "__transaction_state", BULK}
        shown = cluster.reassign(cluster.plan(wanted), "--throttle", str(THROTTLE), "--wait")
        assert "Clearing broker-level throttles" in shown
        cluster.await_moved(wanted)
        cluster.await_in_sync()
        leave(cluster, old)
        load.go_on()
        load.finish()
        assert load.refusals() == []


class Move:
    """The partitions of a broker move to a new one, so slowly that faults hit them on the way."""

    def __init__(self, cluster: ElasticCluster, old: int, new: int) -> None:
        self.cluster = cluster
        self.old = old
        self.new = new
        self.wanted = cluster.replaced(old, new)

    def begin(self) -> None:
        self._execute(SLOW)
        moving = {(BULK, index) for index in range(PARTITIONS)}
        eventually(lambda: self.cluster.moving() >= moving, "partitions move", patience(10.0))

    def _execute(self, throttle: int, *flags: str) -> None:
        self.cluster.reassign(self.cluster.plan(self.wanted), "--throttle", str(throttle), *flags)

    def complete(self) -> None:
        self._execute(10 * THROTTLE, "--additional")
        self.cluster.await_moved(self.wanted)
        shown = self.cluster.reassign(self.cluster.plan(self.wanted), step="--verify")
        assert "Clearing broker-level throttles" in shown
        self.cluster.await_in_sync()

    # --- faults

    def kill_controller(self) -> None:
        self._kill(self.cluster.controller)

    def kill_new_broker(self) -> None:
        self._kill(self.new)

    def kill_old_broker(self) -> None:
        self._kill(self.old)

    def _kill(self, broker_id: int) -> None:
        self.cluster[broker_id].restart(kill=True)
        self.cluster.await_members()

    def cancel(self) -> None:
        """The new broker has nothing any more. Then the move begins again."""
        self.cluster.cancel(self.cluster.plan(self.wanted))
        assert self.cluster.moving() == set()
        moved = {key for key, one in self.cluster.partitions().items() if self.new in one.replicas}
        names = sorted(f"{topic}-{index}" for topic, index in moved)
        eventually(
            lambda: self.cluster.left_folders(self.new) == names,
            "cancelled replicas are gone",
            patience(20.0),
        )
        self.wanted = self.cluster.replaced(self.old, self.new)
        self.begin()

    def override(self) -> None:
        """Another target: the replicas in another order."""
        self.wanted = {key: [*replicas[1:], replicas[0]] for key, replicas in self.wanted.items()}
        self._execute(SLOW, "--additional")


FAULTS = (Move.kill_new_broker, Move.cancel, Move.kill_controller, Move.override, Move.kill_old_broker)


@pytest.mark.long
def test_moves_survive_kills_cancellation_and_new_targets(tmp_path: Path) -> None:
    faults = list(FAULTS)
    chance = random.Random("moves")
    with ElasticCluster(tmp_path) as cluster, ClientLoad(cluster, tmp_path / "load") as load:
        for new in range(4, 4 + scale(1, 6)):
            move = Move(cluster, new - 3, new)
            join(cluster, new)
            move.begin()
            chance.shuffle(faults)
            for fault in faults[: scale(2, 5)]:
                fault(move)
                load.go_on()
            move.complete()
            leave(cluster, move.old)
            load.go_on()
        load.finish()
