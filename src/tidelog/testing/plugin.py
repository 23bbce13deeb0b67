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
from typing import TYPE_CHECKING
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


_SHOWN = pytest.StashKey[WeakKeyDictionary["Broker", int]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    shown = item.config.stash.setdefault(_SHOWN, WeakKeyDictionary())
    for name, broker in getattr(item, "funcargs", {}).items():
        # By name, so that the class need not be imported where nobody uses it.
        if type(broker).__module__ != "tidelog.testing.broker":
            continue
        lines = broker.log_lines(since=shown.get(broker, 0))
        shown[broker] = broker.log_count
        if report.failed and lines:
            report.sections.append((f"Log of the broker {name} ({report.when})", "\n".join(lines)))
    return report
