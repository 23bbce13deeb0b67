"""The broker that groups are tried on: ours, or Kafka 4.3 itself with TIDELOG_TEST_BROKER=kafka4, so that
whatever a test expects can be asked of Kafka first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.faults.client import surprises
from tests.support.broker import Broker

QUICK_GROUPS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "auto.create.topics.enable": "false",
}


class Running(Protocol):
    """A broker that is there, can be stopped or killed, and comes back on the same port."""

    @property
    def bootstrap(self) -> str: ...

    def restart(self, *, kill: bool) -> None: ...

    def surprises(self) -> list[str]:
        """What it complained of that nobody caused on purpose."""


class Ours:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._surprises: list[str] = []

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def restart(self, *, kill: bool) -> None:
        self._surprises += surprises(self._broker.log())
        self._broker.restart(kill=kill)

    def surprises(self) -> list[str]:
        return self._surprises + surprises(self._broker.log())


@contextmanager
def running_broker(folder: Path, settings: dict[str, str] | None = None) -> Iterator[Running]:
    wanted = {**QUICK_GROUPS, **(settings or {})}
    if os.environ.get("TIDELOG_TEST_BROKER") == "kafka4":
        from tests.groups.real import running_kafka

        with running_kafka(folder, wanted) as kafka:
            yield kafka
        return
    with Broker(folder, wanted) as broker:
        yield Ours(broker)
