"""The pytest plugin: fixtures for a broker, a topic, a producer and a consumer. The package registers it.

- `tidelog_broker`: one broker for the session (with xdist one for each worker), started by the first test
  that uses it. Each test has its own topics. Override the session fixture `tidelog_broker_settings` to
  change its settings. A test that stops its broker makes its own with `tidelog.testing.Broker`.
- `tidelog_topic`: the name of a new topic with one partition; `@pytest.mark.tidelog_topic(partitions=3,
  configs={"cleanup.policy": "compact"})` changes that.
- `tidelog_producer`: a `Producer`; `@pytest.mark.tidelog_producer(acks=1)` gives it settings.
- `tidelog_consumer`: a `Consumer` of `tidelog_topic` from its first record, without a group;
  `@pytest.mark.tidelog_consumer(group_id="billing")` gives it settings.
- `tidelog_pipeline`: runs pipelines on Spark, see `tidelog.testing.pipelines`. Override the session fixture
  `tidelog_spark` to use a Spark session of your own.
- The report of a failed test has the lines that the broker logged during it.

The broker is imported when a test uses it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog import Consumer, Producer
    from tidelog.testing.broker import Broker
    from tidelog.testing.pipelines import PipelineTest

LONGEST_NAME = 200  # a topic's name has at most 249 characters


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "tidelog_topic(partitions=1, configs={}): how the topic of the fixture tidelog_topic is made",
    )
    for client in ("producer", "consumer"):
        config.addinivalue_line(
            "markers", f"tidelog_{client}(**settings): settings of the fixture tidelog_{client}"
        )


@pytest.fixture(scope="session")
def tidelog_broker_settings() -> Mapping[str, object]:
    """Settings of the session's broker, as in server.properties. Override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def tidelog_broker(tidelog_broker_settings: Mapping[str, object]) -> Iterator[Broker]:
    """A broker for all tests of the session; clients connect to `tidelog_broker.bootstrap_servers`."""
    from tidelog.testing.broker import Broker

    with Broker(tidelog_broker_settings) as broker:
        yield broker


@pytest.fixture
def tidelog_topic(tidelog_broker: Broker, request: pytest.FixtureRequest) -> str:
    """The name of a topic of this test alone."""
    marker = request.node.get_closest_marker("tidelog_topic")
    arguments = marker.args if marker is not None else ()
    options = marker.kwargs if marker is not None else {}
    name = fresh_name(request.node.name)
    tidelog_broker.create_topic(name, *arguments, **options)
    return name


@pytest.fixture
def tidelog_producer(tidelog_broker: Broker, request: pytest.FixtureRequest) -> Iterator[Producer[Any, Any]]:
    """A producer, closed after the test."""
    from tidelog import Producer

    settings = {"bootstrap_servers": tidelog_broker.bootstrap_servers} | _marked(request, "tidelog_producer")
    with Producer(settings) as producer:
        yield producer


@pytest.fixture
def tidelog_consumer(
    tidelog_broker: Broker, tidelog_topic: str, request: pytest.FixtureRequest
) -> Iterator[Consumer[Any, Any]]:
    """A consumer of the test's topic from its first record, closed after the test."""
    from tidelog import Consumer

    settings = {
        "bootstrap_servers": tidelog_broker.bootstrap_servers,
        "auto_offset_reset": "earliest",
    } | _marked(request, "tidelog_consumer")
    with Consumer(tidelog_topic, settings) as consumer:
        yield consumer


@pytest.fixture(scope="session")
def tidelog_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session on two cores of this machine, for all tests. Override it to use your own."""
    from tidelog.testing.pipelines import local_session

    with local_session(tmp_path_factory.mktemp("spark")) as spark:
        yield spark


@pytest.fixture
def tidelog_pipeline(
    tidelog_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelineTest]:
    """Runs pipelines over events of the test, with a broker and a data folder of this test alone."""
    from tidelog.testing.pipelines import PipelineTest

    test = PipelineTest(tidelog_spark, tmp_path_factory.mktemp("pipeline"))
    try:
        yield test
    finally:
        test.close()


def _marked(request: pytest.FixtureRequest, name: str) -> dict[str, object]:
    """The settings in a marker of the test."""
    marker = request.node.get_closest_marker(name)
    return {} if marker is None else dict(marker.kwargs)


def fresh_name(test: str) -> str:
    """The name of a topic: the name of its test, and a random part."""
    return f"{re.sub('[^a-zA-Z0-9._-]+', '-', test)[:LONGEST_NAME].strip('-')}-{uuid.uuid4().hex[:8]}"


_BROKERS = pytest.StashKey[WeakKeyDictionary["Broker", tuple[str, int]]]()
"""The fixture of each broker, and the number of its lines that earlier tests have seen."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    value = yield
    # Compared by name: the class is not imported before a test uses it.
    if type(value).__module__ == "tidelog.testing.broker":
        brokers = request.config.stash.setdefault(_BROKERS, WeakKeyDictionary())
        brokers.setdefault(cast("Broker", value), (fixturedef.argname, 0))
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    brokers = item.config.stash.setdefault(_BROKERS, WeakKeyDictionary())
    for broker, (name, since) in list(brokers.items()):
        lines = broker.log_lines(since)
        brokers[broker] = (name, broker.log_count)
        # `fixturenames` has the fixtures of fixtures, too.
        if report.failed and lines and name in getattr(item, "fixturenames", ()):
            report.sections.append((f"Log of the broker {name} ({report.when})", "\n".join(lines)))
    return report
