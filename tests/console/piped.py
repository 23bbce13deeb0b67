"""A console with the data folder of pipelines: status files, tables and alerts, made without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.console.site import Site
from tests.spark.report_tables import ALERT, EVENT, write_table
from tidelog.spark.pipelines.batch_metrics import BatchRecord, MetricsTable
from tidelog.spark.pipelines.state import FlowStatus, PipelineStatus, StateFolder
from tidelog.testing import Broker

HOSTILE = "<script>alert(1)</script>"
NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)


@contextmanager
def piped_site(data: Path) -> Iterator[Site]:
    """The console. Its first folder is `data`, with a running and a failed pipeline; the other is a store."""
    flow = FlowStatus("running", 7, 1200, 300.0, 400, 5, updated_at=time.time())
    state = StateFolder(str(data))
    lease = state.claim("earnings")
    state.write(
        PipelineStatus("earnings", "running", host="here", started_at=time.time() - 60, flows={"main": flow})
    )
    state.write(PipelineStatus("rings", "failed", error=f"it broke: {HOSTILE}", flows={"main": FlowStatus()}))
    (data / "tables").mkdir()
    MetricsTable(str(data / "tables" / "batch_metrics")).append(
        [BatchRecord("earnings", "main", "q", at, time.time() - 60 + at, 0.5, 100, 90) for at in range(3)]
    )
    write_table(data, "logins", [{"event_id": "old", "ts": 1, "user_id": "u1", "ad_id": None}], EVENT)
    write_table(data, "logins", [{"event_id": "new", "ts": 2, "user_id": HOSTILE, "ad_id": None}], EVENT)
    alerts = [
        {
            "alert_id": f"a{at}",
            "rule": "device-switching",
            "subject": HOSTILE if at else "u1",
            "window_start": NOON,
            "window_end": NOON,
            "raised_at": NOON.replace(hour=12 + at),
            "evidence": json.dumps({"devices": [HOSTILE]}),
        }
        for at in range(2)
    ]
    write_table(data, "device_alerts", alerts, ALERT)
    settings = {"console.listener": "127.0.0.1:0", "console.pipelines": f"{data},s3://bucket/elsewhere"}
    try:
        with Broker(settings) as broker, Site(broker) as site:
            yield site
    finally:
        lease.close()
