"""The lag of groups in seconds, as a broker shows it: of new commits and of commits from before its start."""

from __future__ import annotations

import time
from pathlib import Path

from tests.server.scrape import scrape
from tests.support.broker import Broker
from tidelog.clients.admin.blocking import Admin
from tidelog.clients.producer.blocking import Producer

HOUR_MS = 3_600_000
LAG = "kafka_consumergroup_lag_seconds"


def test_lag_is_told_in_seconds_also_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path, {"metrics.listener": "127.0.0.1:0"}) as broker:
        now_ms = time.time_ns() // 1_000_000
        with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            for hours in (3, 2, 1):
                producer.send_and_wait("orders", b"v", partition=0, timestamp_ms=now_ms - hours * HOUR_MS)
            producer.send_and_wait("orders", b"v", partition=0)
        with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
            for offset, group in enumerate(("three", "two", "one", "none", "done")):
                admin.alter_consumer_group_offsets(group, {("orders", 0): offset})
        for _ in range(2):
            metrics = scrape(broker)
            for group, hours in (("three", 3), ("two", 2), ("one", 1), ("none", 0)):
                found = metrics(LAG, consumergroup=group, topic="orders", partition="0")
                assert abs(found - hours * 3600) < 60
                assert metrics("kafka_consumergroup_max_lag_seconds", consumergroup=group) == found
            assert metrics(LAG, consumergroup="done", topic="orders", partition="0") == 0
            assert metrics("kafka_consumergroup_max_lag", consumergroup="three") == 4
            broker.restart()
