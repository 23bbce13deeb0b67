"""The canary measures produce, round trip and commit through the broker's own listener."""

from __future__ import annotations

from pathlib import Path

from tests.server.scrape import Metrics, scrape
from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog.clients.admin.blocking import Admin

PREFIX = "tidelog_end_to_end_"
SETTINGS = {"broker.id": "7", "metrics.listener": "127.0.0.1:0", "tidelog.canary.interval.ms": "20"}


def test_each_round_is_measured_and_nothing_is_lost(tmp_path: Path) -> None:
    with Broker(tmp_path, SETTINGS) as broker:

        def measured() -> Metrics | None:
            metrics = scrape(broker)
            rounds = metrics.all(PREFIX + "offset_commit_latency_seconds_count")
            return metrics if rounds and rounds[0] >= 3 else None

        metrics = eventually(measured, "three rounds of the canary", timeout=60.0)
        assert metrics.types[PREFIX + "roundtrip_latency_seconds"] == "histogram"
        assert metrics(PREFIX + "up") == 1
        assert metrics(PREFIX + "messages_lost_total") == 0
        assert metrics(PREFIX + "messages_received_total") >= 3
        for name in ("produce", "roundtrip", "offset_commit"):
            latency = f"{PREFIX}{name}_latency_seconds"
            count = metrics(latency + "_count")
            assert metrics.all(latency + "_bucket", le="+Inf") == [count]
            assert 0 < metrics(latency + "_sum") < 60 * count
        with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
            offsets = admin.list_consumer_group_offsets(["tidelog-canary-7"])["tidelog-canary-7"]
        assert ("__tidelog_canary", 0) in offsets
        assert broker.terminate() == 0
