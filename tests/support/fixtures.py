"""Fixtures for tests that need some running broker and do not mind which, as long as names do not clash.

TIDELOG_TEST_BOOTSTRAP=host:port names another broker to use instead of one of ours.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.support.broker import Broker


def given_broker() -> str | None:
    """The broker that was named to be used instead of ours."""
    return os.environ.get("TIDELOG_TEST_BOOTSTRAP") or None


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = given_broker()
    if given:
        yield given
        return
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """A topic name that no other test uses, here or on the broker that was given."""
    return lambda hint: f"{hint}-{uuid.uuid4().hex[:12]}"
