"""The broker that exactly once is proved on: ours, ours with a fault planted in it, or Kafka 4.3 itself with
TIDELOG_TEST_BROKER=kafka4, so that the checker can be shown not to cry wolf.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.faults.client import surprises
from tests.support.broker import Broker
from tests.support.own_cluster import OwnCluster, broker_count

SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "auto.create.topics.enable": "false",
    "transaction.two.phase.commit.enable": "true",
}
ON_KAFKA = os.environ.get("TIDELOG_TEST_BROKER") == "kafka4"


class Running(Protocol):
    """A broker that can be killed or paused, and comes back on the same port."""

    has_two_phase: bool

    @property
    def bootstrap(self) -> str: ...

    def restart(self, *, kill: bool) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def surprises(self) -> list[str]:
        """What it complained of that nobody caused on purpose."""


class PlantedBroker(Broker):
    """One whose code is changed before it starts; see `planted`."""

    bug = ""

    def command(self, ready_file: Path) -> list[str]:
        python, _, _, *rest = super().command(ready_file)
        assert python == sys.executable
        return [python, str(Path(__file__).with_name("planted.py")), self.bug, *rest]


class Ours:
    has_two_phase = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._surprises: list[str] = []

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def restart(self, *, kill: bool) -> None:
        self._surprises += surprises(self._broker.log())
        self._broker.restart(kill=kill)

    def pause(self) -> None:
        os.kill(self._broker.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._broker.pid, signal.SIGCONT)

    def surprises(self) -> list[str]:
        return self._surprises + surprises(self._broker.log())


class OursInTurn:
    """A cluster of ours: each fault meets another broker."""

    has_two_phase = True

    def __init__(self, cluster: OwnCluster) -> None:
        self._cluster = cluster

    @property
    def bootstrap(self) -> str:
        # Each broker is down at times, so clients know all of them.
        return ",".join(broker.bootstrap for broker in self._cluster.brokers.values())

    def restart(self, *, kill: bool) -> None:
        self._cluster.restart_next(kill=kill)

    def pause(self) -> None:
        self._cluster.pause_next()

    def resume(self) -> None:
        self._cluster.resume()

    def surprises(self) -> list[str]:
        return self._cluster.surprises()


@contextmanager
def running_broker(
    folder: Path, settings: Mapping[str, str] | None = None, *, planted: str = ""
) -> Iterator[Running]:
    wanted = {**SETTINGS, **(settings or {})}
    if ON_KAFKA:
        from tests.exactly_once.real import running_kafka

        with running_kafka(folder, wanted) as kafka:
            yield kafka
        return
    if broker_count() > 1 and not planted:
        with OwnCluster(folder, wanted) as cluster:
            yield OursInTurn(cluster)
        return
    broker = Broker(folder, wanted)
    if planted:
        broker = PlantedBroker(folder, wanted)
        broker.bug = planted
    with broker:
        yield Ours(broker)
