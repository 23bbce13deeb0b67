"""`--zk-tls-config-file`: how tools that write to ZooKeeper itself connect to it, as in Kafka's tools.

The file may be the properties file of a broker. Settings without a part in the connection are ignored.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.metadata.zookeeper import ZooKeeperSettings

CONNECT_SECONDS = 10.0
NAMES = ("zookeeper.clientCnxnSocket", "zookeeper.set.acl", "tidelog.zookeeper.digest")
PREFIX = "zookeeper.ssl."


def zookeeper_settings(file: str | None) -> ZooKeeperSettings:
    """Without a file neither TLS nor an identity. Raises ValueError if the settings cannot be used."""
    if file is None:
        return ZooKeeperSettings(connect_timeout=CONNECT_SECONDS)
    from tidelog.config.properties import read_properties
    from tidelog.server.config.broker import BrokerConfig
    from tidelog.server.run import StartFailed
    from tidelog.server.zookeeper_connection import zookeeper_settings as settings_of_broker

    given = {
        name: text for name, text in read_properties(file).items() if name in NAMES or name.startswith(PREFIX)
    }
    config = BrokerConfig({**given, "zookeeper.connect": "any"}).cluster
    assert config is not None
    try:
        return replace(settings_of_broker(config), connect_timeout=CONNECT_SECONDS)
    except StartFailed as error:
        raise ValueError(str(error)) from None
