"""How long a broker takes to stop while others are away."""

from __future__ import annotations

import json

import pytest

from tidelog import AsyncAdmin, NewTopic
from tidelog.metadata.paths import CONTROLLER, topic
from tidelog.simulation.cluster import SimBroker, SimCluster
from tidelog.simulation.process import Process
from tidelog.simulation.world import World

MOST_SECONDS = 15.0


PATIENT = {"controlled.shutdown.retry.backoff.ms": "5000"}
"""Kafka's default: a broker that asks again is not within moments of its end."""


class Run:
    """Three brokers that have elected a controller."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world, 3, PATIENT)
        assert self.cluster.zookeeper is not None
        self.zookeeper = self.cluster.zookeeper
        self.cluster.start()
        assert world.run(30.0, lambda: self.cluster.is_running and CONTROLLER in self.zookeeper.tree.nodes)
        assert world.run(1.0) is False  # metadata arrives
        elected = self.elected()
        self.controller = next(broker for broker in self.cluster.brokers if broker.id == elected)
        self.other = next(broker for broker in self.cluster.brokers if broker.id != elected)

    def elected(self) -> int | None:
        """The id of the controller."""
        nodes = self.zookeeper.tree.nodes
        found = json.loads(self.zookeeper.tree.get(CONTROLLER)[0]) if CONTROLLER in nodes else None
        return None if found is None else int(found["brokerid"])

    def begin_topic(self, replicas: int) -> Process:
        """A client that creates a topic of six partitions and waits for the answer."""

        async def main(_: Process) -> None:
            async with AsyncAdmin({"bootstrap.servers": self.cluster.bootstrap}) as admin:
                await admin.create_topics([NewTopic("replicated", 6, replicas)])

        return self.world.start("admin", "client", main)

    def create_topic(self, replicas: int) -> None:
        """Create a topic whose replicas are all in sync."""
        client = self.begin_topic(replicas)
        assert self.world.run(30.0, lambda: not client.is_alive)
        assert self.world.run(1.0) is False  # leaders and followers begin

    def ask_to_stop(self, *brokers: SimBroker) -> float:
        """The seconds until all of them have stopped."""
        began = self.world.now
        for broker in brokers:
            broker.stop()
        stopped = self.world.run(300.0, lambda: all(broker.process is None for broker in brokers))
        assert stopped, self.world.history.text(30)
        return self.world.now - began

    def stop(self, broker: SimBroker) -> float:
        """The seconds that a stop takes."""
        return self.ask_to_stop(broker)


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


def test_the_last_broker_does_not_wait_for_others_to_lead() -> None:
    with World(4).running() as world:
        run = Run(world)
        run.create_topic(3)
        for broker in reversed(run.cluster.brokers):
            assert run.stop(broker) < 2.0, broker.name


def test_brokers_that_stop_together_do_not_wait_for_each_other_to_lead() -> None:
    with World(5).running() as world:
        run = Run(world)
        run.create_topic(3)
        assert run.ask_to_stop(*run.cluster.brokers) < 2.0


def test_a_controller_that_stops_is_replaced_at_once_although_a_request_waits_for_its_answer() -> None:
    with World(6).running() as world:
        run = Run(world)
        run.other.pause()
        run.begin_topic(1)  # the answer waits until the paused broker leads its partitions
        assert world.run(5.0, lambda: topic("replicated") in run.zookeeper.tree.nodes)
        run.controller.stop()
        assert world.run(3.0, lambda: run.elected() not in (None, run.controller.id))
