"""The pytest plugin: `tidelog_broker` and `tidelog_topic`, registered by the package.

- `tidelog_broker`: one broker for the whole session (with xdist one for each worker), started by the first
  test that asks for it. Tests are kept apart by their topics. Override the fixture
  `tidelog_broker_settings`, of session scope, to give it other settings; a test that stops or breaks its
  broker makes its own by `tidelog.testing.Broker`.
- `tidelog_topic`: the name of a fresh topic with one partition; `@pytest.mark.tidelog_topic(partitions=3,
  configs={"cleanup.policy": "compact"})` makes it otherwise.
- A test that fails shows what the broker logged meanwhile.

Nothing of the broker is imported before a test uses it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker

LONGEST_NAME = 200  # a topic's name has at most 249 characters


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "tidelog_topic(partitions=1, configs={}): how the topic of the fixture tidelog_topic is made",
    )


@pytest.fixture(scope="session")
def tidelog_broker_settings() -> Mapping[str, object]:
    """Settings of the session's broker, as in server.properties; none unless a conftest.py overrides this."""
    return {}


@pytest.fixture(scope="session")
def tidelog_broker(tidelog_broker_settings: Mapping[str, object]) -> Iterator[Broker]:
    """A broker for all tests of the session; `tidelog_broker.bootstrap_servers` is where it listens."""
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


def fresh_name(test: str) -> str:
    """A topic's name that tells of its test and that no other test has."""
    return f"{re.sub('[^a-zA-Z0-9._-]+', '-', test)[:LONGEST_NAME].strip('-')}-{uuid.uuid4().hex[:8]}"


_BROKERS = pytest.StashKey[WeakKeyDictionary["Broker", tuple[str, int]]]()
"""The fixture of each broker, and how many lines of it have had their chance to be shown."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    value = yield
    # By name, so that the class need not be imported where nobody uses it.
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
        # The names of all fixtures that the test comes to use, also by way of others.
        if report.failed and lines and name in getattr(item, "fixturenames", ()):
            report.sections.append((f"Log of the broker {name} ({report.when})", "\n".join(lines)))
    return report
