"""Fixtures for tests that need some running broker and do not mind which, as long as names do not clash.

TIDELOG_TEST_BOOTSTRAP=host:port names another broker to use instead of one of ours; brokers that tests start
for themselves are of the kind that TIDELOG_TEST_BROKER names. TIDELOG_TEST_BROKERS=3 starts three brokers in
place of one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.own_broker import OwnBroker, OwnBrokers
from tests.support.own_broker import own_broker as start_own_broker
from tests.support.own_cluster import any_broker

QUICK_REBALANCES = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}
"""A group does not wait for more members, and its members soon learn what they have to give up. Sessions are
as long as Kafka's: a member on a busy machine stays."""


def given_broker() -> str | None:
    """The broker that was named to be used instead of ours."""
    return os.environ.get("TIDELOG_TEST_BOOTSTRAP") or None


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = given_broker()
    if given:
        yield given
        return
    # It outlives the five minutes between two looks for old records, and tests write records of 1970.
    settings = {**QUICK_REBALANCES, "log.retention.check.interval.ms": str(24 * 3600 * 1000)}
    with any_broker(tmp_path_factory.mktemp("broker"), settings) as broker:
        yield broker.bootstrap


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """A topic name that no other test uses, here or on the broker that was given."""
    return lambda hint: f"{hint}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_broker(tmp_path: Path) -> OwnBrokers:
    """Starts brokers that nobody else uses and that may be killed, each on a folder of its own."""
    count = iter(range(1000))

    def start(settings: Mapping[str, str] | None = None) -> AbstractContextManager[OwnBroker]:
        return start_own_broker(tmp_path / f"broker-{next(count)}", settings)

    return start
