"""A real ZooKeeper for tests, from the jars of PySpark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tidelog.server.zookeeper_process import ZooKeeperFailed, ZooKeeperProcess, class_path, find_java

# Sessions of a second: tests of expiry do not wait long.
QUICK = {"tickTime": "200", "minSessionTimeout": "400", "maxSessionTimeout": "60000"}


def tls_settings(port: int, keys: Path, trusted: Path) -> dict[str, str]:
    """The settings of a server that takes TLS connections with certificates of an authority, in PEM files."""
    return {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(keys),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(trusted),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }


def zookeeper_server(folder: Path, settings: Mapping[str, str] | None = None) -> ZooKeeperProcess:
    """A server on a free port; `with` starts and stops it. The test is skipped without Java or PySpark."""
    try:
        find_java()
        class_path()
    except ZooKeeperFailed as reason:
        pytest.skip(str(reason))
    chosen = {**QUICK, **(settings or {})}
    return ZooKeeperProcess(folder, free_port(), settings=chosen, jvm_flags=("-Dzookeeper.forceSync=no",))
