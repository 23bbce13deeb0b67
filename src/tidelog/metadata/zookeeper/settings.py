"""ZooKeeperSettings: the time-outs, limits and identity of a session."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from tidelog.metadata.zookeeper.acl import AclOf, open_acl

MAX_BUFFER = 0xFFFFF
"""The default of ZooKeeper's `jute.maxbuffer`: it closes the connection if a request has more bytes."""


@dataclass(slots=True, frozen=True)
class ZooKeeperSettings:
    """Times are in seconds. ZooKeeper may choose another session time-out, within its own limits."""

    session_timeout: float = 18.0
    connect_timeout: float = 18.0
    """How long the first connection may take, and the longest time for one attempt later."""

    tls: ssl.SSLContext | None = None
    auth: tuple[tuple[str, bytes], ...] = ()
    """Identities as (scheme, credentials): ("digest", b"user:password")."""

    acl: AclOf = open_acl
    max_in_flight: int = 500
    """How many reads of `get_all` and `children_of_all` wait for answers at a time."""

    max_buffer: int = MAX_BUFFER
