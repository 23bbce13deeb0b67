"""The invitations of the rings' benchmark: they have rings, and a run that misses one gives no figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType

import pyarrow as pa
import pytest

from tests.benchmark.programs import imported
from tidelog.spark.pipelines.days import HOUR_MS
from tidelog.testing import Broker

COUNT = 30_000


@pytest.fixture
def bench() -> Iterator[dict[str, ModuleType]]:
    with imported("tables_suite", "load") as modules:
        yield modules


def test_some_invitations_close_a_ring_of_two(bench: dict[str, ModuleType]) -> None:
    from tidelog.spark.pipelines.rings import RingSearch

    suite = bench["tables_suite"]
    inviters, invitees = zip(*map(suite.invitation, range(COUNT)), strict=True)
    times = [suite.MIDNIGHT + number for number in range(COUNT)]
    rows = pa.table({"inviter": list(map(str, inviters)), "invitee": list(map(str, invitees)), "ts": times})
    found = RingSearch(5, HOUR_MS).add(rows, 0)
    assert [ring.subject for ring in found] == ["1000>10001", "2000>20001"]


def test_runs_that_miss_or_double_an_alert_give_no_figure(bench: dict[str, ModuleType]) -> None:
    suite, failed = bench["tables_suite"], bench["load"].LoadFailed
    ring, other = json.dumps({"rule": "ring"}), json.dumps({"rule": "many-on-device"})
    with Broker() as broker:
        broker.produce(suite.RING_ALERTS, other, ring, ring, ring)
        with pytest.raises(failed, match="2 runs raised 3 alerts of rings, not 4"):
            suite.check_rings(broker.bootstrap_servers, COUNT, 2)
        broker.produce(suite.RING_ALERTS, ring)
        suite.check_rings(broker.bootstrap_servers, COUNT, 2)
        broker.produce(suite.RING_ALERTS, ring)
        with pytest.raises(failed, match="2 runs raised 5 alerts of rings, not 4"):
            suite.check_rings(broker.bootstrap_servers, COUNT, 2)
