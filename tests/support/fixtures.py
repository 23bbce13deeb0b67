"""Fixtures for tests that need some running broker and do not mind which, as long as names do not clash.

TIDELOG_TEST_BOOTSTRAP=host:port names another broker to use instead of one of ours.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.support.broker import Broker


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """A topic name that no other test uses, here or on the broker that was given."""
    return lambda hint: f"{hint}-{uuid.uuid4().hex[:12]}"
