"""Connects to ZooKeeper with the broker's settings."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tidelog.config import ConfigError
from tidelog.metadata.async_tree import SessionEvent
from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree, open_acl, secure_acl
from tidelog.server.config.cluster import ClusterConfig
from tidelog.server.run import StartFailed
from tidelog.server.session_file import SessionFile

if TYPE_CHECKING:
    import ssl

    from tidelog.security.tls import TlsSettings


def zookeeper_settings(config: ClusterConfig) -> ZooKeeperSettings:
    """Raises StartFailed if a file of keys or certificates cannot be used."""
    digest = config.zookeeper_digest
    return ZooKeeperSettings(
        session_timeout=config.zookeeper_session_timeout_ms / 1000,
        connect_timeout=config.zookeeper_connection_timeout_ms / 1000,
        tls=None if config.zookeeper_tls is None else tls_context(config.zookeeper_tls),
        auth=() if digest is None else (("digest", digest.secret.encode()),),
        acl=secure_acl if config.zookeeper_set_acl else open_acl,
        max_in_flight=config.zookeeper_max_in_flight_requests,
    )


async def connect_zookeeper(config: ClusterConfig, folder: str, rng: random.Random) -> ZooKeeperTree:
    """Open a session, write it to the log folder, and end the session of a killed broker in that folder.

    Raises TreeUnavailable if no server answers in time, StartFailed if the settings cannot be used.
    """
    settings, hosts = zookeeper_settings(config), config.zookeeper_connect
    noted = SessionFile(folder)
    try:
        await noted.close_old_session(hosts, settings, rng)
        tree = await ZooKeeperTree.connect(hosts, settings, rng=rng)
    except ValueError as error:
        raise StartFailed(f"zookeeper.connect={hosts}: {error}") from None

    def note(event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            noted.write(tree)

    note(SessionEvent.CONNECTED)
    tree.listen(note)
    return tree


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Raises StartFailed if a store cannot be used."""
    from tidelog.security.tls import client_context

    try:
        return client_context(settings)
    except ConfigError as error:
        raise StartFailed(str(error)) from None
