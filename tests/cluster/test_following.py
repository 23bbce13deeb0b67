"""LeaderAndIsr and StopReplica start and stop the fetching of partitions that other brokers lead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.cluster.controlled import OTHER, Controlled, leader_and_isr, stop_replica
from tests.cluster.world import SELF
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_fetcher_manager import ReplicaFetcherManager
from tidelog.partitions import PartitionKey

BOTH = (SELF, OTHER)


class Fetchers:
    """Records what the fetchers are told, with the leader and the epoch of a partition at that time."""

    def __init__(self, broker: Controlled) -> None:
        self.events: list[tuple[object, ...]] = []
        self._broker = broker

    def add(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.events.append(("add", partition.index, partition.leader_id, partition.leader_epoch))

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        for topic, index in keys:
            found = self._broker.replicas.find_partition(topic, index)
            self.events.append(("remove", index, -1 if found is None else found.leader_epoch))

    def end_idle(self) -> None:
        pass


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Controlled]:
    made = Controlled(tmp_path / "log")
    yield made
    made.close()


@pytest.fixture
def fetchers(broker: Controlled) -> Fetchers:
    made = Fetchers(broker)
    broker.states.fetchers = cast("ReplicaFetcherManager", made)
    return made


def follow(broker: Controlled, epoch: int, **state: int) -> None:
    request = leader_and_isr(leader=OTHER, replicas=BOTH, leader_epoch=epoch, **state)  # type: ignore[arg-type]
    broker.run(broker.states.leader_and_isr(request))


def test_a_follower_is_fetched_once_its_role_has_changed(broker: Controlled, fetchers: Fetchers) -> None:
    follow(broker, 3)
    assert fetchers.events == [("remove", 0, -1), ("add", 0, OTHER, 3)]


def test_the_fetching_stops_before_a_new_epoch_and_goes_on_after_it(
    broker: Controlled, fetchers: Fetchers
) -> None:
    follow(broker, 3)
    fetchers.events.clear()
    follow(broker, 4)
    assert fetchers.events == [("remove", 0, 3), ("add", 0, OTHER, 4)]


def test_other_replicas_in_sync_do_not_disturb_the_fetching(broker: Controlled, fetchers: Fetchers) -> None:
    follow(broker, 3)
    fetchers.events.clear()
    follow(broker, 3, partition_epoch=1)
    assert fetchers.events == []


def test_a_new_leader_does_not_fetch(broker: Controlled, fetchers: Fetchers) -> None:
    follow(broker, 3)
    fetchers.events.clear()
    request = leader_and_isr(leader=SELF, replicas=BOTH, leader_epoch=4)
    broker.run(broker.states.leader_and_isr(request))
    assert fetchers.events == [("remove", 0, 3)]


@pytest.mark.parametrize("delete", [False, True])
def test_a_stopped_replica_does_not_fetch(broker: Controlled, fetchers: Fetchers, delete: bool) -> None:
    follow(broker, 3)
    fetchers.events.clear()
    broker.run(broker.states.stop_replica(stop_replica("t", 0, delete=delete)))
    assert fetchers.events == [("remove", 0, 3)]


def test_a_replica_in_a_failed_folder_does_not_fetch(broker: Controlled, fetchers: Fetchers) -> None:
    follow(broker, 3)
    fetchers.events.clear()
    broker.states.partitions_offline([("t", 0)])
    assert fetchers.events == [("remove", 0, 3)]
