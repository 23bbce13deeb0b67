"""AlterClientQuotas and DescribeClientQuotas, against what Apache Kafka 3.9 answered."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.server.quota_calls import CALLS, answers
from tidelog.testing import Broker

RECORDED = Path(__file__).parent.parent / "data" / "client-quota-calls.json.gz"


def test_every_call_has_kafkas_answer() -> None:
    recorded = json.loads(gzip.decompress(RECORDED.read_bytes()))
    assert len(recorded) == len(CALLS)
    with Broker() as broker:
        for call, expected, answer in zip(
            CALLS, recorded, answers(broker.bootstrap_servers), strict=True
        ):
            assert answer == expected, call
