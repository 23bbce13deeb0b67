"""Partitions with a replica on Kafka 3.9 and one on our broker, with either as leader and as controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kafka.servers import Kafka3, ZooKeeper
from tests.kafka.test_mixed_cluster import INTERNAL
from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog import Admin, Consumer, NewTopic, Producer

pytestmark = pytest.mark.kafka

OURS, THEIRS = 1, 2
LAG = {"replica.lag.time.max.ms": "2000"}
LED_BY = {OURS: 0, THEIRS: 1}  # the partitions


class Mixed:
    """Two brokers: the first to start is the controller."""

    def __init__(self, folder: Path, zookeeper: ZooKeeper, controller: int) -> None:
        settings = {"broker.id": str(OURS), "zookeeper.connect": zookeeper.bootstrap, **INTERNAL, **LAG}
        self.ours = Broker(folder / "ours", settings)
        self.theirs = Kafka3(
            folder / "kafka", folder / "kafka-data", zookeeper, {"broker.id": str(THEIRS), **LAG}
        )
        first, second = (self.ours, self.theirs) if controller == OURS else (self.theirs, self.ours)
        with ExitStack() as started:  # if the second cannot start, the first is stopped
            started.enter_context(first)
            started.enter_context(second)
            self._started = started.pop_all()

    def close(self) -> None:
        self.theirs.resume()
        self._started.close()

    def bootstrap(self, broker: int) -> str:
        return self.ours.bootstrap if broker == OURS else self.theirs.bootstrap

    def isr(self, asked: int, partition: int) -> list[int]:
        with Admin(bootstrap_servers=self.bootstrap(asked)) as admin:
            return sorted(admin.describe_topics(["copied"])["copied"].partitions[partition].isr)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture(params=[OURS, THEIRS], ids=["our-controller", "their-controller"])
def mixed(tmp_path: Path, zookeeper: ZooKeeper, request: pytest.FixtureRequest) -> Iterator[Mixed]:
    made = Mixed(tmp_path, zookeeper, request.param)
    try:
        yield made
    finally:
        made.close()


def produce(bootstrap: str, partition: int, values: list[bytes], acks: str = "all") -> None:
    with Producer(bootstrap_servers=bootstrap, acks=acks, enable_idempotence=acks == "all") as producer:
        for sent in [producer.send("copied", value, partition=partition) for value in values]:
            sent.result(60)


def consume(bootstrap: str, partition: int, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("copied", partition)])

        def all_there() -> bool:
            found.extend(record.value or b"" for record in consumer.poll(0.2))
            return len(found) >= count

        eventually(all_there, f"{count} records", 60.0)
    return found


def test_either_follows_the_other_and_theirs_leaves_and_joins_the_isr(mixed: Mixed) -> None:
    both = f"{mixed.bootstrap(OURS)},{mixed.bootstrap(THEIRS)}"
    with Admin(bootstrap_servers=mixed.bootstrap(OURS)) as admin:
        eventually(lambda: len(admin.describe_cluster().nodes) == 2, "both are there", 60.0)
    with Admin(bootstrap_servers=both) as admin:
        admin.create_topics([NewTopic("copied", replica_assignments={0: [OURS, THEIRS], 1: [THEIRS, OURS]})])
    first = [b"%d" % number for number in range(200)]
    for partition in LED_BY.values():
        produce(both, partition, first)
        assert consume(both, partition, 200) == first
        assert mixed.isr(OURS, partition) == [OURS, THEIRS]
    mixed.theirs.pause()
    produce(mixed.bootstrap(OURS), LED_BY[OURS], [b"alone"], acks="1")
    eventually(lambda: "asking for them to leave" in mixed.ours.log(), "the follower lags", 30.0)
    mixed.theirs.resume()
    eventually(lambda: "asking for it to join" in mixed.ours.log(), "it has caught up", 60.0)
    eventually(lambda: mixed.isr(OURS, LED_BY[OURS]) == [OURS, THEIRS], "in sync again", 60.0)
    produce(both, LED_BY[OURS], [b"again"])
    assert consume(both, LED_BY[OURS], 202) == [*first, b"alone", b"again"]
