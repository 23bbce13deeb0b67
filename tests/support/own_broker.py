"""A broker that a test may kill and start again: ours, or the Apache Kafka that TIDELOG_TEST_BROKER names
(kafka3 for 3.9 with its ZooKeeper, kafka4 for 4.3), so that whatever a test expects can be asked of Kafka.
TIDELOG_TEST_BROKERS=3 makes it a cluster of three brokers that are killed and started together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from tests.faults.client import surprises
from tests.support.broker import Broker
from tests.support.own_cluster import OwnCluster, broker_count

KAFKAS = ("kafka3", "kafka4")


class OwnBroker(Protocol):
    """A broker that is there, can be stopped or killed, and comes back on the same port."""

    @property
    def bootstrap(self) -> str: ...

    def kill(self) -> None: ...

    def restart(self, *, kill: bool) -> None: ...

    def surprises(self) -> list[str]:
        """What it complained of that nobody caused on purpose."""


class OwnBrokers(Protocol):
    """Starts a broker with settings of its own; the fixture `own_broker` is one of these."""

    def __call__(self, settings: Mapping[str, str] | None = None) -> AbstractContextManager[OwnBroker]: ...


class Ours:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._surprises: list[str] = []

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def kill(self) -> None:
        self._broker.kill()

    def restart(self, *, kill: bool) -> None:
        self._surprises += surprises(self._broker.log())
        self._broker.restart(kill=kill)

    def surprises(self) -> list[str]:
        return self._surprises + surprises(self._broker.log())


def kafka_kind() -> str | None:
    """Which Kafka takes the place of our broker, None where it is ours."""
    kind = os.environ.get("TIDELOG_TEST_BROKER") or None
    if kind is not None and kind not in KAFKAS:
        raise ValueError(f"TIDELOG_TEST_BROKER={kind}: one of {', '.join(KAFKAS)} is possible")
    return kind


@contextmanager
def own_broker(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[OwnBroker]:
    kind = kafka_kind()
    with ExitStack() as stack:
        if kind is None and broker_count() > 1:
            yield stack.enter_context(OwnCluster(folder, settings))
        elif kind is None:
            yield Ours(stack.enter_context(Broker(folder, settings)))
        else:
            from tests.kafka.servers import new_kafka

            yield stack.enter_context(new_kafka(kind, folder, settings))
