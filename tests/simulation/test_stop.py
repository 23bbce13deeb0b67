"""How long a broker takes to stop while others are away."""

from __future__ import annotations

import json

import pytest

from tidelog.metadata.paths import CONTROLLER
from tidelog.simulation.cluster import SimBroker, SimCluster
from tidelog.simulation.world import World

MOST_SECONDS = 15.0


class Run:
    """Three brokers that have elected a controller."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world, 3)
        assert self.cluster.zookeeper is not None
        self.zookeeper = self.cluster.zookeeper
        self.cluster.start()
        assert world.run(30.0, lambda: self.cluster.is_running and CONTROLLER in self.zookeeper.tree.nodes)
        assert world.run(1.0) is False  # metadata arrives
        elected = json.loads(self.zookeeper.tree.get(CONTROLLER)[0])["brokerid"]
        self.controller = next(broker for broker in self.cluster.brokers if broker.id == elected)
        self.other = next(broker for broker in self.cluster.brokers if broker.id != elected)

    def stop(self, broker: SimBroker) -> float:
        """The seconds that a stop takes."""
        began = self.world.now
        broker.stop()
        assert self.world.run(300.0, lambda: broker.process is None), self.world.history.text(30)
        return self.world.now - began


@pytest.mark.parametrize("seed", range(3))
def test_a_stop_waits_for_no_zookeeper_and_no_controller_that_are_gone(seed: int) -> None:
    with World(seed).running() as world:
        run = Run(world)
        run.zookeeper.stop()
        run.controller.kill()
        assert run.stop(run.other) < MOST_SECONDS


def test_a_zookeeper_that_goes_away_during_a_stop_is_not_waited_for() -> None:
    with World(1).running() as world:
        run = Run(world)
        run.controller.pause()
        world.after(1.0, run.zookeeper.stop)
        assert run.stop(run.other) < MOST_SECONDS


def test_the_controller_itself_stops_without_zookeeper() -> None:
    with World(2).running() as world:
        run = Run(world)
        run.zookeeper.stop()
        assert run.stop(run.controller) < MOST_SECONDS


def test_a_controlled_shutdown_takes_moments() -> None:
    with World(3).running() as world:
        run = Run(world)
        assert run.stop(run.other) < 1.0
        assert "stopping without a controlled shutdown" not in world.history.text()
