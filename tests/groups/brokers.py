"""The broker that groups are tried on: ours, or Kafka itself with TIDELOG_TEST_BROKER=kafka4, so that
whatever a test expects can be asked of Kafka first.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.own_broker import OwnBroker as Running
from tests.support.own_broker import own_broker

__all__ = ["QUICK_GROUPS", "Running", "running_broker"]

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


def running_broker(folder: Path, settings: dict[str, str] | None = None) -> AbstractContextManager[Running]:
    return own_broker(folder, {**QUICK_GROUPS, **(settings or {})})
