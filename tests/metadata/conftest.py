"""A real ZooKeeper for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.zookeeper import zookeeper_server
from tidelog.server.zookeeper_process import ZooKeeperProcess


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
