"""A large creation of topics goes through the loops of the brokers in small turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tidelog import AsyncAdmin, NewTopic
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.cluster.replica_states import ReplicaStates
from tidelog.controller.context import ControllerContext
from tidelog.metadata import operations
from tidelog.metadata.simulated.tree import SimulatedTree
from tidelog.metadata.tree_writes import MAX_MULTI_OPERATIONS
from tidelog.simulation.cluster import SimCluster
from tidelog.simulation.loop import SimLoop
from tidelog.simulation.process import Process
from tidelog.simulation.world import World
from tidelog.slices import ITEMS_PER_TURN

TOPICS: Final = 400
PARTITIONS_OF_A_TOPIC: Final = 2
REPLICAS: Final = 3


class Turns:
    """The most calls of each function in one turn of a broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[str] = Counter()
        self.all: Counter[str] = Counter()
        self.making_and_sending = 0
        self._now: Counter[str] = Counter()
        self._monkeypatch = monkeypatch

    def count(self, owner: object, name: str, size: Callable[..., int] = lambda *_: 1) -> None:
        function = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self._now[name] += size(*arguments)
            return function(*arguments, **named)

        self._monkeypatch.setattr(owner, name, counted)

    def end(self, _: Process) -> None:
        self.making_and_sending += bool(self._now["topic_node"] and self._now["multi"])
        for name, count in self._now.items():
            self.most[name] = max(self.most[name], count)
            self.all[name] += count
        self._now.clear()


@pytest.fixture
def world() -> Iterator[World]:
    with World(1).running() as world:
        yield world


def test_no_turn_of_a_broker_handles_many_partitions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimCluster(world, 3)
    cluster.start()
    assert world.run(60, lambda: cluster.is_running)
    turns = Turns(monkeypatch)
    turns.count(ReplicaManager, "become_leader")
    turns.count(ReplicaManager, "become_follower")
    turns.count(ReplicaStates, "_wanted_log")
    turns.count(ControllerContext, "put_partition")
    turns.count(SimulatedTree, "multi", lambda _, made: len(made))
    turns.count(operations, "topic_node")
    world.after_turn = turns.end
    created: list[bool] = []

    async def create(process: Process) -> None:
        async with AsyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
            topics = [NewTopic(f"t-{n}", PARTITIONS_OF_A_TOPIC, REPLICAS) for n in range(TOPICS)]
            await admin.create_topics(topics)
            created.append(True)

    world.start("client", "client", create)
    assert world.run(60, lambda: bool(created))
    partitions = TOPICS * PARTITIONS_OF_A_TOPIC
    assert turns.all["become_leader"] == partitions
    assert turns.all["become_follower"] == partitions * (REPLICAS - 1)
    assert turns.most["become_leader"] + turns.most["become_follower"] <= 2 * SimLoop.items_per_slice
    assert turns.most["_wanted_log"] <= SimLoop.items_per_slice
    assert turns.most["put_partition"] <= 2 * ITEMS_PER_TURN
    assert turns.most["multi"] <= MAX_MULTI_OPERATIONS + 1
    assert turns.making_and_sending == 0, "the steps of a multi are made in another turn than it is encoded"
