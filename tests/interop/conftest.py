"""One broker for all these tests of a process; TIDELOG_TEST_BOOTSTRAP names another to use instead."""

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
    with Broker(tmp_path_factory.mktemp("interop")) as broker:
        yield broker.bootstrap


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """A topic name that no other test uses, here or on the broker that was given."""
    return lambda hint: f"{hint}-{uuid.uuid4().hex[:12]}"
