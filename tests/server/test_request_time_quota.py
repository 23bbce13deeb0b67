"""The share of the broker's time that clients with a `request_percentage` reach.

Broker and clients are processes of their own: in one process the clients' threads would slow the broker's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.asking_clients import CLIENT_ID
from tests.support.broker import Broker
from tests.support.ports import free_port
from tests.support.raw import RawConnection
from tidelog import Admin, NewTopic
from tidelog.protocol.messages.metadata import MetadataRequest

PERCENT = 10.0
WITHIN = 0.1
FILL_SECONDS = 14.0
"""Eleven windows of a second. What the first ones had at once is out of the rate then."""
SECONDS = 30.0
PROCESSES = 4
SHARE = re.compile(
    rf'^kafka_server_request_request_time\{{.*client_id="{CLIENT_ID}".*\}} (\S+)$', re.MULTILINE
)


@contextmanager
def asking(bootstrap: str, clients: int) -> Iterator[None]:
    count = min(PROCESSES, clients)
    command = [sys.executable, "-m", "tests.server.asking_clients", bootstrap, str(clients // count)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
        assert all(process.poll() is None for process in running), "the clients have not asked to the end"
    finally:
        for process in running:
            process.communicate(timeout=30)


@pytest.mark.long
@pytest.mark.parametrize("clients", [1, 20])
def test_clients_reach_their_share_and_others_are_not_slowed(tmp_path: Path, clients: int) -> None:
    listener = f"127.0.0.1:{free_port()}"
    with Broker(tmp_path, {"metrics.listener": listener}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("metadata", 100)])
            admin.alter_client_quotas({(("client-id", CLIENT_ID),): {"request_percentage": PERCENT}})
        other = RawConnection(broker.bootstrap, client_id="other")
        with asking(broker.bootstrap, clients):
            time.sleep(FILL_SECONDS)  # a rate needs real time
            shares, slowest, began = list[float](), 0.0, time.monotonic()
            while time.monotonic() - began < SECONDS:
                asked = time.monotonic()
                other.call(MetadataRequest(topics=None), 9)
                slowest = max(slowest, time.monotonic() - asked)
                with urllib.request.urlopen(f"http://{listener}/metrics") as answer:
                    shares += [float(share) for share in SHARE.findall(answer.read().decode())]
                time.sleep(0.5)
        other.close()
    share = sum(shares) / len(shares)
    assert PERCENT * (1 - WITHIN) <= share <= PERCENT * (1 + WITHIN), share
    assert slowest < 1.0
